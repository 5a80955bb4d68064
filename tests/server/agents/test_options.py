"""Modes, models and options in the shapes that agents tell them in. Contract, section 6."""

import json

import acp.schema
import pytest

from sandboxagent.protocol.envelope import META, parse
from sandboxagent.server.agents import options
from sandboxagent.server.agents.options import CATEGORIES, MODE, MODEL, OPTIONS, SET_OPTION
from tests.support.shapes import SHAPES, Json, models, modes, select

ALL = pytest.mark.parametrize("name", SHAPES)
GROUPED = {
    "configOptions": [
        {
            "id": "llm",
            "category": "model",
            "currentValue": "b",
            "options": [
                {"group": "one", "name": "One", "options": [{"value": "a", "name": "A"}]},
                {"group": "two", "name": "Two", "options": [{"value": "b", "name": "B", "description": "Better"}]},
            ],
        }
    ]
}


@ALL
def test_the_current_mode_and_model_are_found_in_any_shape(name: str) -> None:
    shape = SHAPES[name]
    assert options.find_current(shape.offers, MODE) == shape.mode[0]
    assert options.find_current(shape.offers, MODEL) == (shape.model[0] if shape.model else None)


@ALL
def test_all_that_can_be_chosen_is_listed_in_any_shape(name: str) -> None:
    shape = SHAPES[name]
    listed = options.listing(shape.offers, MODE)
    assert listed["currentModeId"] == shape.mode[0]
    assert shape.mode[1] in [one["id"] for one in of(listed, "availableModes")]
    listed = options.listing(shape.offers, MODEL)
    ids = [one["modelId"] for one in of(listed, "availableModels")]
    assert (shape.model[1] in ids) if shape.model else (ids == [])


@ALL
def test_every_shape_is_there_and_the_agents_own_are_as_it_told_them(name: str) -> None:
    offers = SHAPES[name].offers
    whole = options.complete_offers(offers)
    assert {name: whole[name] for name in offers} == offers
    assert "modes" in whole
    assert ("models" in whole) is (SHAPES[name].model is not None)
    acp.schema.NewSessionResponse.model_validate({"sessionId": "s", **whole})


def test_options_are_made_of_modes_and_models() -> None:
    [mode, model] = of(options.complete_offers(SHAPES["gemini"].offers), OPTIONS)
    assert (mode["id"], mode["category"], mode["type"], mode["currentValue"]) == ("mode", "mode", "select", "default")
    assert mode["options"][1] == {"value": "autoEdit", "name": "Autoedit"}
    assert (model["id"], model["currentValue"]) == ("model", "gemini-2.5-flash")
    assert [one["value"] for one in model["options"]] == ["auto", "gemini-2.5-pro", "gemini-3.8-flash"]


def test_modes_and_models_are_made_of_options() -> None:
    whole = options.complete_offers(SHAPES["opencode"].offers)
    plan = {"id": "plan", "name": "Plan", "description": "It is plan"}
    assert whole["modes"] == {
        "currentModeId": "build",
        "availableModes": [{"id": "build", "name": "Build", "description": "It is build"}, plan],
    }
    assert [one["modelId"] for one in whole["models"]["availableModels"]] == ["loop/mock-model", "loop/mock-small"]


def test_grouped_options_are_one_list() -> None:
    assert options.values_of(GROUPED[OPTIONS][0]) == ["a", "b"]
    assert options.listing(GROUPED, MODEL) == {
        "availableModels": [{"modelId": "a", "name": "A"}, {"modelId": "b", "name": "B", "description": "Better"}],
        "currentModelId": "b",
    }


def test_an_option_is_found_by_both_names_then_by_category_then_by_id() -> None:
    other, by_id = select("x", "1", "1", category="mode"), select("mode", "2", "2", category="other")
    both = select("mode", "3", "3")
    assert options.find_option({OPTIONS: [by_id, other, both]}, MODE) is both
    assert options.find_option({OPTIONS: [by_id, other]}, MODE) is other
    assert options.find_option({OPTIONS: [by_id]}, MODE) is by_id
    assert options.find_option({OPTIONS: [select("effort", "a")]}, MODE) is None
    assert options.option({OPTIONS: [other, by_id]}, "mode") is by_id, "a client names an option by its id"
    assert options.option({OPTIONS: [other]}, "mode") is other
    assert options.option({}, "mode") is None


@pytest.mark.parametrize(
    ("name", "category", "methods"),
    [
        ("claude", MODE, [MODE.method, SET_OPTION]),
        ("claude", MODEL, [SET_OPTION]),
        ("codex", MODEL, [SET_OPTION, MODEL.method]),
        ("gemini", MODE, [MODE.method]),
        ("gemini", MODEL, [MODEL.method]),
        ("opencode", MODE, [SET_OPTION]),
        ("pi", MODEL, [SET_OPTION, MODEL.method]),
        ("copilot", MODEL, []),
    ],
)
def test_the_ways_to_an_agent_are_its_own_and_the_safest_comes_first(
    name: str, category: options.Category, methods: list[str]
) -> None:
    ways = options.find_setters(SHAPES[name].offers, category, "x")
    assert [way.method for way in ways] == methods
    for way in ways:
        own = {category.param: "x"} if way.method == category.method else {"configId": category.name, "value": "x"}
        assert way.params == own


def test_an_option_by_another_name_is_set_by_that_name() -> None:
    [way] = options.find_setters(GROUPED, MODEL, "a")
    assert (way.params, way.values) == ({"configId": "llm", "value": "a"}, ["a", "b"])


# What is known after something was reported or set


@ALL
def test_what_was_chosen_is_current_in_every_shape(name: str) -> None:
    shape = SHAPES[name]
    known = options.choose(shape.offers, MODE, shape.mode[1])
    assert options.find_current(known, MODE) == shape.mode[1]
    assert options.complete_offers(known)["modes"]["currentModeId"] == shape.mode[1]
    if shape.model and name != "codex":
        known = options.choose(known, MODEL, shape.model[1])
        assert options.find_current(known, MODEL) == shape.model[1]
        assert options.complete_offers(known)["models"]["currentModelId"] == shape.model[1]
        [option] = [one for one in of(options.complete_offers(known), OPTIONS) if one["id"] == "model"]
        assert option["currentValue"] == shape.model[1]
    assert options.find_current(shape.offers, MODE) == shape.mode[0], "what was known before stays as it was"


@ALL
def test_modes_and_models_follow_the_options_that_an_agent_tells(name: str) -> None:
    shape = SHAPES[name]
    told = json.loads(json.dumps(shape.offers.get(OPTIONS, [])))
    for option in told:
        for category, values in ((MODE, shape.mode), (MODEL, shape.model)):
            if option["id"] == category.name and values:
                option["currentValue"] = values[1]
    known = options.merge_offers(shape.offers, {OPTIONS: told})
    for option in told:
        for category in CATEGORIES:
            if option["id"] == category.name and (name, category) != ("codex", MODEL):
                assert options.complete_offers(known)[category.shape][category.current] == option["currentValue"]


def test_one_model_by_two_names_is_noted_where_it_has_that_name() -> None:
    offers = SHAPES["codex"].offers
    known = options.choose(offers, MODEL, "gpt-6.1-sol[high]")
    assert known["models"]["currentModelId"] == "gpt-6.1-sol[high]"
    assert options.find_current(known, MODEL) == "gpt-5.5", "until the agent tells its option"
    known = options.choose(offers, MODEL, "gpt-6.1-sol")
    assert known["models"]["currentModelId"] == "gpt-5.5[medium]"
    assert options.find_current(known, MODEL) == "gpt-6.1-sol"


def test_a_value_that_is_listed_nowhere_is_noted_everywhere() -> None:
    known = options.choose(SHAPES["qwen"].offers, MODEL, "secret")
    assert known["models"]["currentModelId"] == "secret"
    assert options.find_current(known, MODEL) == "secret"


def test_a_mode_of_an_agent_that_told_none_is_known_from_then_on() -> None:
    known = options.choose({}, MODE, "plan")
    assert options.find_current(known, MODE) == "plan"
    assert options.find_setters(known, MODE, "x")[0].values == []


def test_a_mode_of_an_agent_with_options_alone_makes_no_modes_up() -> None:
    known = options.choose(SHAPES["opencode"].offers, MODE, "plan")
    assert list(known) == [OPTIONS]
    assert options.find_current(known, MODE) == "plan"


def test_options_follow_the_modes_that_an_agent_tells_alone() -> None:
    known = options.merge_offers(SHAPES["claude"].offers, {"modes": modes("plan", "default", "plan")})
    assert options.find_current(known, MODE) == "plan"


def test_modes_and_options_told_together_are_taken_as_they_are() -> None:
    told = {"modes": modes("a", "a", "b"), OPTIONS: [select("mode", "b", "a", "b")]}
    assert options.merge_offers({}, told) == told


def test_another_list_replaces_the_old_one() -> None:
    known = options.merge_offers(SHAPES["claude"].offers, {OPTIONS: [select("model", "haiku", "default", "haiku")]})
    assert [one["id"] for one in known[OPTIONS]] == ["model"]
    assert options.find_current(known, MODE) == "default", "from its modes, now that it has no such option"
    known = options.merge_offers({"models": models("a", "a")}, {OPTIONS: []})
    assert [one["id"] for one in options.complete_offers(known)[OPTIONS]] == ["model"]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"modes": None, "models": None, OPTIONS: None},
        {"modes": [], "models": "x", OPTIONS: {}},
        {OPTIONS: [None, 7, {"id": 1}, {"category": {"x": 1}, "options": [{"name": "no value"}, 3]}]},
        {"modes": {"availableModes": [{"name": "no id"}, None]}, "models": {"availableModels": 3}},
        {OPTIONS: [{"id": "mode", "type": "boolean", "currentValue": True}]},
    ],
)
def test_odd_things_are_no_modes_and_no_models(told: Json) -> None:
    known = options.merge_offers({}, told)
    for category in CATEGORIES:
        assert options.find_current(known, category) is None
        assert options.listing(known, category)[category.current] is None
        options.choose(known, category, "x")
        options.find_setters(known, category, "x")
    options.complete_offers(known)


# Answers that open a session


def test_an_answer_gets_the_shapes_that_its_agent_left_out() -> None:
    offers = SHAPES["claude"].offers
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s", "_meta": {"x": 1}, **offers}}).encode()
    result = parse(options.complete_answer(line, offers)).result()
    assert {name: result[name] for name in offers} == offers
    assert result["models"] == options.complete_offers(offers)["models"]
    assert result["_meta"] == {"x": 1, META: {"added": ["models"]}}


def test_an_answer_that_has_all_shapes_keeps_its_bytes() -> None:
    offers = SHAPES["codex"].offers
    line = json.dumps({"jsonrpc": "2.0", "id": 1.0, "result": {"sessionId": "s", **offers}}).encode()
    assert options.complete_answer(line, offers) is line
    assert (
        options.complete_answer(b'{"jsonrpc":"2.0","id":1,"result":{}}', {}) == b'{"jsonrpc":"2.0","id":1,"result":{}}'
    )


@pytest.mark.parametrize("result", ["null", "{}", "[]", '"x"'])
def test_an_answer_that_says_nothing_gets_what_is_known(result: str) -> None:
    line = b'{"jsonrpc":"2.0","id":"a","result":%b}' % result.encode()
    answer = parse(options.complete_answer(line, SHAPES["gemini"].offers))
    assert answer.id == b'"a"'
    assert sorted(answer.result()) == ["_meta", "configOptions", "models", "modes"]


def of(value: Json, name: str) -> list[Json]:
    return value[name]
