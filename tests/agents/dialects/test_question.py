"""Agents' questions in the form that clients know."""

import pytest

from sandbox_agent.agents.dialects.question import answers_in, question_params
from tests.support.client import Json


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
