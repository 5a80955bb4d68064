"""Qwen's questions, which are requests for permission."""

import json

import pytest

from sandboxagent.protocol.envelope import Envelope, parse
from sandboxagent.server.agents.dialects.qwen import Qwen
from tests.support.client import Json

QUESTIONS = [
    {"header": "Database", "question": "Which database?", "options": [{"label": "SQLite", "description": "One file"}]},
    {"header": "More", "question": "Which features?", "options": [{"label": "Auth"}, {"label": "Mail"}]}
    | {"multiSelect": True},
]
OPTIONS = [
    {"optionId": "proceed_once", "name": "Submit", "kind": "allow_once"},
    {"optionId": "cancel", "name": "Cancel", "kind": "reject_once"},
]
META = {"qwenInteractionKind": "user_question", "qwenQuestions": QUESTIONS}


def asked(meta: object = META, options: object = OPTIONS, method: str = "session/request_permission") -> Envelope:
    params = {"sessionId": "s", "toolCall": {"toolCallId": "call-1", "_meta": meta}, "options": options}
    return parse(json.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).encode())


def told(result: Json, request: Envelope | None = None) -> Json:
    answer = json.dumps({"jsonrpc": "2.0", "id": 0, "result": result}).encode()
    return json.loads(Qwen().translate_answer(request or asked(), answer))


def test_a_permission_that_is_a_question_is_heard_as_one() -> None:
    heard = Qwen().translate_request(asked())

    assert (heard.id, heard.method) == (b"0", "_sandboxagent/session/request_question")
    assert heard.params() == {
        "sessionId": "s",
        "questionId": "call-1",
        "toolCallId": "call-1",
        "prompt": "Which database?\nWhich features?",
        "options": [["SQLite", "SQLite"]],
        "questions": [
            {
                "header": "Database",
                "question": "Which database?",
                "options": [{"id": "SQLite", "label": "SQLite", "description": "One file"}],
                "multiSelect": False,
            },
            {
                "header": "More",
                "question": "Which features?",
                "options": [
                    {"id": "Auth", "label": "Auth", "description": ""},
                    {"id": "Mail", "label": "Mail", "description": ""},
                ],
                "multiSelect": True,
            },
        ],
    }


@pytest.mark.parametrize(
    "request_",
    [
        asked(meta={}),
        asked(meta=None),
        asked(meta={"qwenInteractionKind": "user_question"}),
        asked(meta={"qwenInteractionKind": "user_question", "qwenQuestions": "x"}),
        asked(options=[]),
        asked(method="elicitation/create"),
    ],
    ids=["no kind", "no meta", "no questions", "odd questions", "no option", "another method"],
)
def test_anything_else_stays_as_it_is_and_so_does_its_answer(request_: Envelope) -> None:
    result = {"outcome": {"outcome": "selected", "optionId": "proceed_once"}}

    assert Qwen().translate_request(request_) is request_
    assert told(result, request_)["result"] == result


@pytest.mark.parametrize(
    ("answers", "given"),
    [
        ([["SQLite"], ["Auth", "Mail"]], {"0": "SQLite", "1": "Auth, Mail"}),
        ([["a text file"], []], {"0": "a text file"}),
        ([[], []], {}),
    ],
)
def test_answers_go_beside_the_permission_by_number(answers: list[list[str]], given: Json) -> None:
    answer = told({"status": "answered", "answers": answers})

    assert answer["id"] == 0
    assert answer["result"] == {"outcome": {"outcome": "selected", "optionId": "proceed_once"}, "answers": given}


def test_rejection_takes_the_cancel_option_and_a_cancel_takes_none() -> None:
    assert told({"status": "rejected"})["result"] == {"outcome": {"outcome": "selected", "optionId": "cancel"}}
    assert told({"status": "cancelled"})["result"] == {"outcome": {"outcome": "cancelled"}}
    assert told({"status": "rejected"}, asked(options=OPTIONS[:1]))["result"] == {"outcome": {"outcome": "cancelled"}}


def test_an_error_is_told_as_it_is() -> None:
    error = b'{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}'

    assert Qwen().translate_answer(asked(), error) == error
