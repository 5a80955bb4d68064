"""Which dialects there are, and questions in the form that clients know."""

from typing import get_args

import pytest

from sandboxagent.protocol.envelope import parse
from sandboxagent.server.agents.dialects.dialect import Plain, answers_in, companion_of, dialect_of, question_params
from sandboxagent.server.agents.manifest import Dialect, load_manifest
from tests.support.client import Json


def test_an_agent_without_a_dialect_is_taken_at_its_word() -> None:
    request = parse(b'{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{}}')
    plain = dialect_of(None)

    assert companion_of(None) is None
    assert plain.translate_request(request) is request
    assert plain.translate_answer(request, b"{}") == b"{}"


def test_every_name_means_something_and_is_some_agents() -> None:
    names = get_args(Dialect)

    assert [name for name in names if isinstance(dialect_of(name), Plain) and companion_of(name) is None] == []
    assert {agent.dialect for agent in load_manifest(None).agents} == {*names, None}


def test_every_process_has_a_companion_of_its_own() -> None:
    assert companion_of("opencode") is not companion_of("opencode")


def test_odd_questions_are_still_asked() -> None:
    params = question_params("s", "q", [{}, {"question": "Sure?", "options": "x", "many": True}], None, "many")

    assert params == {
        "sessionId": "s",
        "questionId": "q",
        "prompt": "\nSure?",
        "options": [],
        "questions": [
            {"header": "", "question": "", "options": [], "multiSelect": False},
            {"header": "", "question": "Sure?", "options": [], "multiSelect": True},
        ],
    }


@pytest.mark.parametrize(
    ("result", "answers"),
    [
        ({"status": "answered", "answers": [["a", "b"], []]}, [["a", "b"], []]),
        ({"status": "answered", "answers": [["a", 1], "b"]}, [["a"], []]),
        ({"status": "answered"}, []),
        ({"status": "rejected", "answers": [["a"]]}, None),
        ({}, None),
    ],
)
def test_answers_are_one_list_for_each_question(result: Json, answers: object) -> None:
    assert answers_in(result) == answers
