"""Modes, models and options: the same for a client, whatever its agent offers and however that tells of changes."""

import json
from collections.abc import Generator

import acp.schema
import pytest

from tests.support.client import META, Client, Event, Json, Stream, run
from tests.support.history import events_of, view_of
from tests.support.running import Server
from tests.support.shapes import SHAPES

ALL = pytest.mark.parametrize("agent", SHAPES)
WITH_MODELS = pytest.mark.parametrize("agent", [name for name, shape in SHAPES.items() if shape.model])
SETTERS = ("session/set_mode", "session/set_model", "session/set_config_option")


@pytest.fixture(scope="module")
def shapes() -> Generator[Server]:
    """A server with one agent of each shape."""
    agents = {name: shape.agent() for name, shape in SHAPES.items()}
    with Server("--no-persist", agents=agents) as running:
        yield running


async def received(client: Client, session: str, *methods: str) -> list[Json]:
    """What the agent was asked for in this session."""
    lines = (await client.result("x/received", {"sessionId": session}))["lines"]
    envelopes = [json.loads(line) for line in lines]
    return [one for one in envelopes if one.get("method") in methods and one["params"]["sessionId"] == session]


async def make(client: Client, **meta: object) -> Json:
    params = {"cwd": client.server.work, "mcpServers": [], "_meta": {META: meta}}
    return await client.result("session/new", params if meta else {**params, "_meta": {}})


def updates(events: list[Event], session: str, kind: str) -> list[Event]:
    """Updates of one kind in one session."""
    of_session = [one for one in events if one.data.get("params", {}).get("sessionId") == session]
    return [one for one in of_session if one.update.get("sessionUpdate") == kind]


def value_of(update: Json, option: str) -> object:
    """An option's value in a config_option_update or an answer."""
    return {one["id"]: one["currentValue"] for one in update["configOptions"]}.get(option)


def choices_of(offered: Json) -> dict[str, list[Json]]:
    """What there is to choose from, by option."""
    return {one["id"]: one["options"] for one in offered["configOptions"]}


async def all_told(stream: Stream, client: Client) -> list[Event]:
    """All that `stream` has seen once the server has told what it had to tell.

    The server tells in the order of changes: when it has told this one, it has told all before.
    """
    async with Client(client.server, "gemini") as other:
        last = (await make(other))["sessionId"]
        await client.result("_sandboxagent/session/attach", {"sessionId": last})
        await other.result("session/set_mode", {"sessionId": last, "modeId": "plan"})
        await stream.until(lambda event: bool(updates([event], last, "config_option_update")))
        return stream.seen


# What opens a session


@pytest.mark.requirement("6.shapes")
@ALL
def test_every_client_finds_the_shape_that_it_understands(shapes: Server, agent: str) -> None:
    async def main() -> None:
        shape = SHAPES[agent]
        async with Client(shapes, agent) as client:
            made = await make(client)
            acp.schema.NewSessionResponse.model_validate(made)
            assert {name: made[name] for name in shape.offers} == shape.offers, "its own are as it told them"
            assert made["modes"]["currentModeId"] == shape.mode[0]
            assert shape.mode[1] in [one["id"] for one in made["modes"]["availableModes"]]
            assert isinstance(made["configOptions"], list)
            if shape.model:
                assert shape.model[1] in json.dumps(made["models"]["availableModels"])
            all_shapes = {"modes", "configOptions", *(["models"] if shape.model else [])}
            added = made.get("_meta", {}).get(META, {}).get("added", [])
            assert sorted(added) == sorted(all_shapes - shape.offers.keys())

    run(main())


@pytest.mark.requirement("6.shapes")
@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/fork"])
def test_load_resume_and_fork_have_every_shape_too(shapes: Server, method: str) -> None:
    async def main() -> None:
        async with Client(shapes, "opencode") as client:
            session = (await make(client))["sessionId"]
            await client.result("session/set_mode", {"sessionId": session, "modeId": "plan"})
            params = {"sessionId": session, "cwd": shapes.work, "mcpServers": []}
            live = await client.result(method, params)
            assert live.keys() >= {"modes", "models", "configOptions"}
            if method != "session/fork":
                assert live["modes"]["currentModeId"] == "plan"
                await client.result("session/close", {"sessionId": session})
                again = await client.result(method, params)
                assert again.keys() >= {"modes", "models", "configOptions"}
                assert again["modes"]["currentModeId"] == "build", "as the agent tells it when it takes it up again"
                assert (await view_of(client, session))["mode"] == "build"

    run(main())


# Setting, in whichever way


@pytest.mark.requirement("6.set-any-way")
@ALL
@pytest.mark.parametrize("by", ["method", "option"])
def test_a_mode_is_set_by_its_method_or_as_an_option(shapes: Server, agent: str, by: str) -> None:
    async def main() -> None:
        wanted = SHAPES[agent].mode[1]
        async with Client(shapes, agent) as client:
            session = (await make(client))["sessionId"]
            if by == "method":
                assert await client.result("session/set_mode", {"sessionId": session, "modeId": wanted}) == {}
            else:
                params = {"sessionId": session, "configId": "mode", "value": wanted}
                answer = await client.result("session/set_config_option", params)
                acp.schema.SetSessionConfigOptionResponse.model_validate(answer)
                assert value_of(answer, "mode") == (None if agent == "pi" else wanted)
            assert (await view_of(client, session))["mode"] == wanted
            loaded = await client.result("session/resume", {"sessionId": session, "cwd": shapes.work})
            assert loaded["modes"]["currentModeId"] == wanted
            assert len(await received(client, session, *SETTERS)) == 1

    run(main())


@pytest.mark.requirement("6.set-any-way", "6.list-models")
@WITH_MODELS
@pytest.mark.parametrize("by", ["method", "option"])
def test_a_model_is_set_by_its_method_or_as_an_option(shapes: Server, agent: str, by: str) -> None:
    async def main() -> None:
        shape = SHAPES[agent]
        assert shape.model is not None
        wanted = shape.model[1]
        async with Client(shapes, agent) as client:
            session = (await make(client))["sessionId"]
            before = await client.result("_sandboxagent/session/list_models", {"sessionId": session})
            assert before["currentModelId"] == shape.model[0]
            assert wanted in [one["modelId"] for one in before["availableModels"]]
            if by == "method":
                assert await client.result("session/set_model", {"sessionId": session, "modelId": wanted}) == {}
            else:
                params = {"sessionId": session, "configId": "model", "value": wanted}
                answer = await client.result("session/set_config_option", params)
                acp.schema.SetSessionConfigOptionResponse.model_validate(answer)
                assert value_of(answer, "model") == wanted
            after = await client.result("_sandboxagent/session/list_models", {"sessionId": session})
            assert after == before | {"currentModelId": wanted}
            assert (await view_of(client, session))["model"] == wanted
            [asked] = await received(client, session, *SETTERS)
            assert asked["method"].removeprefix("session/") not in shape.lacks

    run(main())


@pytest.mark.requirement("6.set-any-way")
def test_a_model_that_has_another_name_in_models_is_set_by_that_name_too(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "codex") as client:
            session = (await make(client))["sessionId"]
            await client.result("session/set_model", {"sessionId": session, "modelId": "gpt-6.1-sol[high]"})
            [asked] = await received(client, session, *SETTERS)
            assert (asked["method"], asked["params"]["modelId"]) == ("session/set_model", "gpt-6.1-sol[high]")
            assert (await view_of(client, session))["model"] == "gpt-6.1-sol"
            resumed = await client.result("session/resume", {"sessionId": session, "cwd": shapes.work})
            assert resumed["models"]["currentModelId"] == "gpt-6.1-sol[high]"

    run(main())


@pytest.mark.requirement("6.set-any-way")
def test_option_named_by_category_is_set_and_other_params_reach_the_agent(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "claude") as client:
            session = (await make(client))["sessionId"]
            level = {"sessionId": session, "configId": "thought_level", "value": "high", "_meta": {"trace": 1}}
            answer = await client.result("session/set_config_option", level)
            assert value_of(answer, "effort") == "high"
            model = {"sessionId": session, "modelId": "opus", "_meta": {"trace": 2}}
            await client.result("session/set_model", model)
            assert [one["params"] for one in await received(client, session, *SETTERS)] == [
                level | {"configId": "effort"},
                {"sessionId": session, "configId": "model", "value": "opus", "_meta": {"trace": 2}},
            ]

    run(main())


# What the agent does not have


@pytest.mark.requirement("6.set-unknown")
@ALL
def test_what_is_not_in_the_agents_list_is_refused_without_asking_it(shapes: Server, agent: str) -> None:
    async def main() -> None:
        shape = SHAPES[agent]
        asked = [
            ("session/set_mode", {"modeId": "bogus"}, shape.mode[1]),
            ("session/set_config_option", {"configId": "mode", "value": "bogus"}, shape.mode[1]),
            ("session/set_config_option", {"configId": "bogus", "value": "on"}, "mode" if agent != "pi" else "model"),
        ]
        if shape.model and not shape.any_model:
            asked.append(("session/set_model", {"modelId": "bogus"}, shape.model[1]))
            asked.append(("session/set_config_option", {"configId": "model", "value": "bogus"}, shape.model[1]))
        async with Client(shapes, agent) as client:
            session = (await make(client))["sessionId"]
            for method, params, known in asked:
                error = await client.error(method, {"sessionId": session, **params})
                assert error["code"] == -32602
                assert agent in error["message"]
                assert "bogus" in error["message"]
                assert known in error["message"]
                assert known in error["data"]["available"]
            assert await received(client, session, *SETTERS) == []
            assert (await view_of(client, session))["mode"] == shape.mode[0]

    run(main())


@pytest.mark.requirement("6.set-unknown")
@pytest.mark.parametrize("agent", [name for name, shape in SHAPES.items() if shape.any_model])
def test_an_agent_that_takes_any_model_is_asked(shapes: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(shapes, agent) as client:
            session = (await make(client))["sessionId"]
            await client.result("session/set_model", {"sessionId": session, "modelId": "brand-new"})
            assert (await view_of(client, session))["model"] == "brand-new"
            params = {"sessionId": session, "configId": "model", "value": "newer"}
            assert value_of(await client.result("session/set_config_option", params), "model") == "newer"
            assert len(await received(client, session, *SETTERS)) == 2

    run(main())


@pytest.mark.requirement("6.set-unknown")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/set_mode", {}),
        ("session/set_mode", {"modeId": 7}),
        ("session/set_model", {"modelId": None}),
        ("session/set_config_option", {"configId": "mode"}),
        ("session/set_config_option", {"value": "plan"}),
        ("session/set_config_option", {"configId": 1, "value": "plan"}),
        ("session/set_config_option", {"configId": "mode", "value": True}),
        ("session/set_config_option", {"configId": "mode", "value": ["plan"]}),
    ],
)
@pytest.mark.parametrize("agent", ["claude", "gemini"])
def test_a_setting_that_names_nothing_is_refused(shapes: Server, agent: str, method: str, params: Json) -> None:
    async def main() -> None:
        async with Client(shapes, agent) as client:
            session = (await make(client))["sessionId"]
            assert (await client.error(method, {"sessionId": session, **params}))["code"] == -32602
            assert await received(client, session, *SETTERS) == []

    run(main())


@pytest.mark.requirement("6.set-passed")
def test_an_agent_without_models_says_so(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "copilot") as client:
            session = (await make(client))["sessionId"]
            error = await client.error("session/set_model", {"sessionId": session, "modelId": "x"})
            assert (error["code"], error["message"]) == (-32601, "agent copilot offers no models")
            listed = await client.result("_sandboxagent/session/list_models", {"sessionId": session})
            assert listed == {"availableModels": [], "currentModelId": None}

    run(main())


# Which clients learn of it


async def change_everywhere(shapes: Server, other: Client, category: str, by: str) -> dict[str, str]:
    """Sessions by agent, in each of which a mode or a model was set after `other` had attached."""
    sessions: dict[str, str] = {}
    for agent, shape in SHAPES.items():
        values = shape.mode if category == "mode" else shape.model
        if values is None:
            continue
        async with Client(shapes, agent) as client:
            session = sessions[agent] = (await make(client))["sessionId"]
            await other.result("_sandboxagent/session/attach", {"sessionId": session})
            if by == "method":
                await client.result(f"session/set_{category}", {"sessionId": session, f"{category}Id": values[1]})
            else:
                params = {"sessionId": session, "configId": category, "value": values[1]}
                await client.result("session/set_config_option", params)
    return sessions


@pytest.mark.requirement("6.change-told")
@pytest.mark.parametrize("by", ["method", "option"])
def test_all_clients_get_another_mode_once_however_the_agent_reports_it(shapes: Server, by: str) -> None:
    async def main() -> None:
        async with Client(shapes) as other, other.stream() as stream:
            sessions = await change_everywhere(shapes, other, "mode", by)
            seen = await all_told(stream, other)
            for agent, session in sessions.items():
                wanted = SHAPES[agent].mode[1]
                told = updates(seen, session, "current_mode_update")
                assert [one.update["currentModeId"] for one in told] == [wanted], agent
                [options] = updates(seen, session, "config_option_update")
                acp.schema.ConfigOptionUpdate.model_validate(options.update)
                assert value_of(options.update, "mode") == (None if agent == "pi" else wanted), agent

    run(main())


@pytest.mark.requirement("6.change-told")
@pytest.mark.parametrize("by", ["method", "option"])
def test_all_clients_get_another_model_once_however_the_agent_reports_it(shapes: Server, by: str) -> None:
    async def main() -> None:
        async with Client(shapes) as other, other.stream() as stream:
            sessions = await change_everywhere(shapes, other, "model", by)
            seen = await all_told(stream, other)
            for agent, session in sessions.items():
                told = [value_of(one.update, "model") for one in updates(seen, session, "config_option_update")]
                assert told == [SHAPES[agent].model[1]], agent  # type: ignore[index]

    run(main())


@pytest.mark.requirement("6.change-told")
def test_what_the_server_tells_is_marked_and_in_the_log_and_seen_by_who_asked(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "gemini") as client, client.stream() as stream:
            session = (await make(client))["sessionId"]
            await client.result("session/set_mode", {"sessionId": session, "modeId": "plan"})
            [mode] = updates(await all_told(stream, client), session, "current_mode_update")
            assert mode.data["params"]["_meta"] == {META: {"fromServer": True}}
            told = {one["id"]: one for one in await events_of(client, session)}[mode.id]
            assert (told["direction"], told["envelope"]) == ("fromServer", mode.data)

    run(main())


@pytest.mark.requirement("6.change-agents-own")
@pytest.mark.parametrize(
    ("agent", "step"),
    [
        ("claude", ["update", {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}]),
        (
            "claude",
            [
                "update",
                {
                    "sessionUpdate": "config_option_update",
                    "configOptions": [
                        one | {"currentValue": "plan"} if one["id"] == "mode" else one
                        for one in SHAPES["claude"].offers["configOptions"]
                    ],
                },
            ],
        ),
        ("gemini", ["update", {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}]),
        ("qwen", ["notify", "vendor/notify/session/mode-update", {"v": 1, "currentModeId": "plan"}]),
    ],
)
def test_a_mode_that_an_agent_changes_itself_is_known_and_told_alike(
    shapes: Server, agent: str, step: list[object]
) -> None:
    async def main() -> None:
        async with Client(shapes, agent) as client, client.stream() as stream:
            session = (await make(client))["sessionId"]
            own = [*step[:-1], {"sessionId": session, **step[-1]}] if step[0] == "notify" else step  # type: ignore[dict-item]
            await client.prompt(session, [own])
            assert (await view_of(client, session))["mode"] == "plan"
            seen = await all_told(stream, client)
            [mode] = updates(seen, session, "current_mode_update")
            [options] = updates(seen, session, "config_option_update")
            assert (mode.update["currentModeId"], value_of(options.update, "mode")) == ("plan", "plan")

    run(main())


@pytest.mark.requirement("6.change-resumed")
def test_a_mode_that_an_agent_forgot_when_it_was_restarted_is_known_and_told(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "codex") as client, client.stream() as stream:
            session = (await make(client))["sessionId"]
            await client.result("session/set_mode", {"sessionId": session, "modeId": "read-only"})
            await all_told(stream, client)
            await client.prompt(session, [["kill"]])
            assert (await view_of(client, session))["mode"] == "read-only"
            await client.prompt(session, "hello")
            assert (await view_of(client, session))["mode"] == "agent"
            seen = await all_told(stream, client)
            modes = [one.update["currentModeId"] for one in updates(seen, session, "current_mode_update")]
            options = [value_of(one.update, "mode") for one in updates(seen, session, "config_option_update")]
            assert (modes, options) == (["read-only", "agent"], ["read-only", "agent"])

    run(main())


@pytest.mark.requirement("6.change-resumed")
def test_modes_and_models_are_known_after_a_restart_of_the_server() -> None:
    async def before(server: Server) -> str:
        async with Client(server, "gemini") as client:
            session = (await make(client))["sessionId"]
            await client.result("session/set_mode", {"sessionId": session, "modeId": "yolo"})
            await client.result("session/set_model", {"sessionId": session, "modelId": "auto"})
            return session

    async def after(server: Server, session: str) -> None:
        async with Client(server, "gemini") as client:
            view = await view_of(client, session)
            assert (view["mode"], view["model"], view["ended"]) == ("yolo", "auto", True)
            listed = await client.result("_sandboxagent/session/list_models", {"sessionId": session})
            assert listed["currentModelId"] == "auto"
            await client.result("session/set_mode", {"sessionId": session, "modeId": "plan"})
            view = await view_of(client, session)
            assert (view["mode"], view["model"]) == ("plan", "gemini-2.5-flash"), "what the agent tells counts"

    with Server(agents={"gemini": SHAPES["gemini"].agent()}) as server:
        session = run(before(server))
        server.kill()
        server.start()
        run(after(server, session))


# Options at the start


@pytest.mark.requirement("6.agent-options")
@ALL
def test_an_agents_options_can_be_known_before_a_session(shapes: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(shapes, agent) as client:
            found = await client.result("_sandboxagent/agent/get", {"agent": agent, "models": True})
            # Which values they have is another matter: that is as in the newest session.
            assert choices_of(found) == choices_of(await make(client))

    run(main())


@pytest.mark.requirement("6.new-options")
def test_options_in_session_new_are_set_at_the_agent_after_its_model(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "claude") as client:
            made = await make(client, model="haiku", configOptions={"effort": "high", "fast": "on"})
            assert [value_of(made, name) for name in ("model", "effort", "fast")] == ["haiku", "high", "on"]
            asked = await received(client, made["sessionId"], *SETTERS)
            assert [one["params"]["configId"] for one in asked] == ["model", "effort", "fast"]

    run(main())


@pytest.mark.requirement("6.new-options")
def test_an_option_that_cannot_be_had_is_a_warning_and_the_others_are_set(shapes: Server) -> None:
    async def main() -> None:
        async with Client(shapes, "claude") as client:
            made = await make(client, configOptions={"effort": "heroic", "colour": "red", "fast": "on"})
            warnings = made["_meta"][META]["warnings"]
            assert [one.partition(" was not set")[0] for one in warnings] == [
                "option effort 'heroic'",
                "option colour 'red'",
            ]
            assert value_of(made, "fast") == "on"

    run(main())
