"""Questions and forms (contract, section 7): what each client is asked, and what the agent is answered."""

import json
from typing import Any

import pytest

from sandboxagent.protocol.envelope import Envelope, parse
from sandboxagent.protocol.errors import WrongAnswer
from sandboxagent.server.sessions.pending import (
    ELICITATION,
    PERMISSION,
    QUESTION,
    RequestFormat,
    render,
    translate_answer,
)

FORMS, QUESTIONS, BOTH, NOTHING = (
    RequestFormat(form=True),
    RequestFormat(questions=True),
    RequestFormat(form=True, questions=True),
    RequestFormat(),
)
URLS = RequestFormat(url=True)

CLAUDE = {
    "mode": "form",
    "sessionId": "s",
    "toolCallId": "t",
    "message": "Please answer.",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "question_0": {
                "type": "string",
                "title": "Database",
                "description": "Which database should be used?",
                "oneOf": [
                    {"const": "Postgres", "title": "Postgres", "description": "Relational"},
                    {"const": "Redis", "title": "Redis"},
                ],
            },
            "question_0_custom": {"type": "string", "title": "Other"},
            "question_1": {
                "type": "array",
                "title": "Features",
                "items": {"anyOf": [{"const": "Auth", "title": "Auth"}, {"const": "Billing", "title": "Billing"}]},
            },
            "question_1_custom": {"type": "string", "title": "Other"},
        },
    },
}
CODEX = {
    "mode": "form",
    "sessionId": "s",
    "message": "",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "db": {
                "type": "string",
                "title": "Which database?",
                "description": "Database",
                "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}],
            },
            "db_note": {"type": "string"},
        },
        "required": ["db"],
    },
}
PLAIN = {
    "mode": "form",
    "sessionId": "s",
    "message": "Tell us.",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0},
            "share": {"type": "number"},
            "sure": {"type": "boolean"},
        },
        "required": ["name"],
    },
}
OURS = {
    "sessionId": "s",
    "questionId": "q1",
    "prompt": "Which?",
    "options": [["a", "Apple"], ["b", "Banana"]],
    "questions": [
        {
            "header": "Fruit",
            "question": "Which?",
            "options": [{"id": "a", "label": "Apple"}, {"id": "b", "label": "B"}],
        },
        {"header": "Size", "question": "How big?", "options": [{"id": "s", "label": "S"}], "multiSelect": True},
        {"header": "Name", "question": "What name?", "options": []},
    ],
}
URL = {"mode": "url", "sessionId": "s", "elicitationId": "e", "url": "https://example.org/login", "message": "Log in."}
PERMIT = {"sessionId": "s", "toolCall": {}, "options": [{"optionId": "0", "kind": "allow_once"}, {"optionId": "no"}]}


def asked(method: str, params: dict[str, Any]) -> Envelope:
    return parse(json.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).encode())


def shown(method: str, params: dict[str, Any], request_format: RequestFormat) -> tuple[str, dict[str, Any]]:
    line = json.loads(render(asked(method, params), request_format, 7))
    assert line["id"] == 0
    return line["method"], line["params"]


def told(method: str, params: dict[str, Any], request_format: RequestFormat, result: object) -> Any:
    """What the agent gets when a client of that speech answers this."""
    answer = parse(json.dumps({"jsonrpc": "2.0", "id": 0, "result": result}).encode())
    line = json.loads(translate_answer(asked(method, params), request_format, answer))
    assert line["id"] == 0
    return line["result"]


def refusal(method: str, params: dict[str, Any], request_format: RequestFormat, result: object) -> str:
    with pytest.raises(WrongAnswer) as wrong:
        told(method, params, request_format, result)
    return str(wrong.value)


# --- who gets what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "meta", "request_format"),
    [
        ({"elicitation": {"form": {}}}, {}, FORMS),
        ({"elicitation": {"form": {}, "url": {}}}, {}, RequestFormat(form=True, url=True)),
        ({"elicitation": {}}, {}, NOTHING),
        ({"elicitation": {"form": None}}, {}, NOTHING),
        ({"_meta": {"sandboxagent.dev": {"questions": True}}}, {}, QUESTIONS),
        ({}, {"sandboxagent.dev": {"questions": True}}, QUESTIONS),
        ({"_meta": {"sandboxagent.dev": {"questions": False}}}, {}, NOTHING),
    ],
)
def test_what_a_client_understands_follows_from_what_it_declares(
    capabilities: dict[str, Any], meta: dict[str, Any], request_format: RequestFormat
) -> None:
    assert RequestFormat.of(capabilities, meta) == request_format


@pytest.mark.parametrize(
    ("method", "params", "request_format", "expected"),
    [
        (ELICITATION, CLAUDE, FORMS, ELICITATION),
        (ELICITATION, CLAUDE, BOTH, ELICITATION),
        (ELICITATION, CLAUDE, QUESTIONS, QUESTION),
        (ELICITATION, CLAUDE, NOTHING, QUESTION),
        (ELICITATION, URL, URLS, ELICITATION),
        (ELICITATION, URL, QUESTIONS, QUESTION),
        (ELICITATION, URL, FORMS, ELICITATION),
        (QUESTION, OURS, FORMS, ELICITATION),
        (QUESTION, OURS, BOTH, QUESTION),
        (QUESTION, OURS, QUESTIONS, QUESTION),
        (QUESTION, OURS, NOTHING, QUESTION),
        (PERMISSION, PERMIT, FORMS, PERMISSION),
    ],
)
def test_each_client_is_asked_by_a_method_that_it_declared(
    method: str, params: dict[str, Any], request_format: RequestFormat, expected: str
) -> None:
    assert shown(method, params, request_format)[0] == expected


@pytest.mark.parametrize(("method", "params"), [(ELICITATION, CLAUDE), (QUESTION, OURS), (PERMISSION, PERMIT)])
def test_what_a_client_understands_reaches_it_byte_for_byte(method: str, params: dict[str, Any]) -> None:
    request = asked(method, params)

    assert render(request, BOTH, 7) == request.line


# --- forms as questions -----------------------------------------------------------------------------------------------


def test_a_form_of_claude_becomes_questions_with_their_headers() -> None:
    _, question = shown(ELICITATION, CLAUDE, QUESTIONS)

    assert question == {
        "sessionId": "s",
        "toolCallId": "t",
        "questionId": "question-7",
        "prompt": "Please answer.",
        "options": [["Postgres", "Postgres"], ["Redis", "Redis"]],
        "questions": [
            {
                "header": "Database",
                "question": "Which database should be used?",
                "options": [
                    {"id": "Postgres", "label": "Postgres", "description": "Relational"},
                    {"id": "Redis", "label": "Redis", "description": ""},
                ],
                "multiSelect": False,
            },
            {
                "header": "",
                "question": "Features",
                "options": [
                    {"id": "Auth", "label": "Auth", "description": ""},
                    {"id": "Billing", "label": "Billing", "description": ""},
                ],
                "multiSelect": True,
            },
        ],
    }


def test_codex_has_header_and_question_the_other_way_round() -> None:
    (question,) = shown(ELICITATION, CODEX, QUESTIONS)[1]["questions"]

    assert (question["header"], question["question"]) == ("Database", "Which database?")


def test_one_question_of_claude_has_its_words_in_the_message() -> None:
    choice = {"type": "string", "title": "Database", "oneOf": [{"const": "Redis", "title": "Redis"}]}
    form = {**CLAUDE, "message": "Which database?", "requestedSchema": {"type": "object", "properties": {"q": choice}}}

    (question,) = shown(ELICITATION, form, QUESTIONS)[1]["questions"]

    assert (question["header"], question["question"]) == ("Database", "Which database?")


def test_answers_become_the_fields_of_the_form_and_a_free_one_goes_beside_the_choice() -> None:
    chosen = told(ELICITATION, CLAUDE, QUESTIONS, {"status": "answered", "answers": [["Redis"], ["Auth", "Billing"]]})
    own = told(ELICITATION, CLAUDE, QUESTIONS, {"status": "answered", "answers": [["DuckDB"], ["Auth", "Search"]]})

    assert chosen == {"action": "accept", "content": {"question_0": "Redis", "question_1": ["Auth", "Billing"]}}
    assert own == {
        "action": "accept",
        "content": {"question_0_custom": "DuckDB", "question_1": ["Auth"], "question_1_custom": "Search"},
    }


def test_fields_without_choices_take_texts_that_are_read_as_what_they_are() -> None:
    _, question = shown(ELICITATION, PLAIN, QUESTIONS)
    answer = {"status": "answered", "answers": [["Ada"], ["36"], ["0.5"], ["true"]]}

    assert [each["options"] for each in question["questions"][:3]] == [[], [], []]
    assert [each["id"] for each in question["questions"][3]["options"]] == ["true", "false"]
    assert told(ELICITATION, PLAIN, QUESTIONS, answer) == {
        "action": "accept",
        "content": {"name": "Ada", "age": 36, "share": 0.5, "sure": True},
    }


def test_a_free_answer_to_a_choice_that_is_required_is_none_of_the_above() -> None:
    choice = {"type": "string", "title": "Which?", "enum": ["a", "None of the above"]}
    schema = {"properties": {"db": choice, "db_note": {"type": "string"}}, "required": ["db"]}
    form = {"sessionId": "s", "mode": "form", "message": "?", "requestedSchema": schema}

    result = told(ELICITATION, form, QUESTIONS, {"status": "answered", "answers": [["mine"]]})

    assert result == {"action": "accept", "content": {"db": "None of the above", "db_note": "mine"}}


@pytest.mark.parametrize(("status", "action"), [("rejected", "decline"), ("cancelled", "cancel")])
def test_a_rejected_question_declines_the_form(status: str, action: str) -> None:
    assert told(ELICITATION, CLAUDE, QUESTIONS, {"status": status}) == {"action": action}


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([["Ada"]], "4 questions and 1 answers"),
        ([["Ada"], ["x"], [], []], "age is not an integer"),
        ([["Ada"], [], ["nan"], []], "share is not a number"),
        ([["Ada"], [], ["1e999"], []], "share is not a number"),
        ([["Ada"], ["-1"], [], []], "age is less than 0"),
        ([["Lovelace"], [], [], []], "name is longer than 5"),
        ([[], [], [], []], "name is required"),
        ([["Ada", "Eve"], [], [], []], "name takes one answer"),
        ([["Ada"], [], [], ["perhaps"]], "sure is not a boolean"),
        ("Ada", "a question is answered by"),
        ([["Ada"], [1], [], []], "a question is answered by"),
    ],
)
def test_answers_that_break_the_form_are_named(answers: object, complaint: str) -> None:
    assert complaint in refusal(ELICITATION, PLAIN, QUESTIONS, {"status": "answered", "answers": answers})


# --- questions as forms -----------------------------------------------------------------------------------------------


def test_our_question_becomes_a_form_with_room_for_an_answer_of_ones_own() -> None:
    _, form = shown(QUESTION, OURS, FORMS)
    properties = form["requestedSchema"]["properties"]

    assert (form["mode"], form["message"], form["sessionId"]) == ("form", "Which?", "s")
    assert list(properties) == ["question_0", "question_0_other", "question_1", "question_1_other", "question_2"]
    assert properties["question_0"]["oneOf"] == [{"const": "a", "title": "Apple"}, {"const": "b", "title": "B"}]
    assert properties["question_1"]["items"] == {"anyOf": [{"const": "s", "title": "S"}]}
    assert properties["question_2"] == {"type": "string", "title": "Name", "description": "What name?"}


def test_what_is_filled_in_becomes_one_list_for_each_question() -> None:
    content = {"question_0": "a", "question_1": ["s"], "question_1_other": "XL", "question_2": "Eve"}

    result = told(QUESTION, OURS, FORMS, {"action": "accept", "content": content})

    assert result == {"status": "answered", "answers": [["a"], ["s", "XL"], ["Eve"]]}


@pytest.mark.parametrize(("action", "status"), [("decline", "rejected"), ("cancel", "cancelled")])
def test_a_declined_form_rejects_the_question(action: str, status: str) -> None:
    assert told(QUESTION, OURS, FORMS, {"action": action}) == {"status": status}


def test_a_short_question_is_a_form_with_one_field() -> None:
    short = {"sessionId": "s", "questionId": "q", "prompt": "Sure?", "options": [["y", "Yes"], ["n", "No"]]}

    _, form = shown(QUESTION, short, FORMS)

    assert form["requestedSchema"]["properties"]["question_0"]["title"] == "Sure?"
    assert told(QUESTION, short, FORMS, {"action": "accept", "content": {"question_0": "y"}})["answers"] == [["y"]]


@pytest.mark.parametrize("options", [[], None, "x", [["only"]], [[]], [1]])
def test_a_question_with_strange_options_is_still_asked(options: object) -> None:
    strange = {"sessionId": "s", "questionId": "q", "prompt": "Sure?", "options": options}

    assert shown(QUESTION, strange, FORMS)[1]["requestedSchema"]["properties"]["question_0"]["type"] == "string"


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_address_is_a_question_whether_it_was_opened() -> None:
    _, question = shown(ELICITATION, URL, QUESTIONS)

    assert question["prompt"] == "Log in.\nhttps://example.org/login"
    assert [id for id, _ in question["options"]] == ["accept", "decline"]
    for answer in ("accept", "decline"):
        assert told(ELICITATION, URL, QUESTIONS, {"status": "answered", "answers": [[answer]]}) == {"action": answer}


def test_an_address_is_a_form_without_fields_for_a_client_that_knows_only_forms() -> None:
    _, form = shown(ELICITATION, URL, FORMS)

    assert (form["mode"], form["requestedSchema"]["properties"]) == ("form", {})
    assert told(ELICITATION, URL, FORMS, {"action": "accept", "content": {}})["action"] == "accept"


# --- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        {"outcome": {"outcome": "selected", "optionId": "yes"}},
        {"outcome": {"outcome": "selected", "optionId": 0}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "allowed"}},
        {"outcome": "selected"},
        {},
    ],
)
def test_a_permission_takes_only_an_option_that_was_offered(result: object) -> None:
    assert "still open" in refusal(PERMISSION, PERMIT, BOTH, result)


def test_a_permission_takes_an_option_whose_id_is_a_zero_and_what_agents_add_to_it() -> None:
    result = {"outcome": {"outcome": "selected", "optionId": "0"}, "answers": {"0": "SQLite"}}

    assert told(PERMISSION, PERMIT, BOTH, result) == result
    assert told(PERMISSION, PERMIT, BOTH, {"outcome": {"outcome": "cancelled"}})


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ({"action": "accept", "content": {"db": "c"}}, "db is none of a, b"),
        ({"action": "accept", "content": {}}, "db is required"),
        ({"action": "accept"}, "db is required"),
        ({"action": "yes"}, "accept, decline or cancel"),
    ],
)
def test_a_form_that_is_filled_in_wrong_stays_open(result: object, complaint: str) -> None:
    assert complaint in refusal(ELICITATION, CODEX, FORMS, result)


def test_an_error_of_a_client_is_passed_on_as_it_is() -> None:
    answer = parse(b'{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}')

    assert translate_answer(asked(ELICITATION, CODEX), QUESTIONS, answer) == answer.line
