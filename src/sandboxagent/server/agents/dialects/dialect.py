"""Define how to translate the particular forms of single agents, and list all dialects.

A dialect translates an agent's request into the common form, and the answer into the agent's form. It is pure. A
companion is for an agent that does not ask on its stdout. It runs beside the agent's process, and passes its questions
on.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, list_at, objects_at, text_at
from sandboxagent.server.agents.manifest import Dialect as Name


class Dialect(Protocol):
    """The translation of an agent's requests to people."""

    def translate_request(self, request: Envelope) -> Envelope:
        """Translate an agent's request into the common form; the same envelope when it needs no translation."""
        ...

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        """Translate an answer to this request into the one that its agent expects."""
        ...


class Companion(Protocol):
    """A helper of an agent process, which passes on its questions and gets the answers. It ends with the process."""

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the process, with the variables that the companion needs.

        Variables that are set stay.
        """
        ...

    async def connect(self, pid: int) -> bool:
        """Connect to the agent, which has answered its handshake. Return False when that fails or takes too long."""
        ...

    def start(self, say: Callable[[bytes], None]) -> None:
        """Begin to pass questions to `say`, one envelope at a time, as if they came from the agent's stdout."""
        ...

    def answer(self, line: bytes) -> bool:
        """Take an answer to a question that was passed on. Return False for a request of the agent itself.

        Does not raise.
        """
        ...

    def stop(self) -> None:
        """Stop, because the process has ended, or is about to."""
        ...


class Plain:
    """The dialect of agents that ask in the common form."""

    def translate_request(self, request: Envelope) -> Envelope:
        return request

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        return answer


def dialect_of(name: Name | None) -> Dialect:
    """Return the dialect with a name; None is no dialect."""
    if name == "qwen":
        from sandboxagent.server.agents.dialects.qwen import Qwen

        return Qwen()
    return Plain()


def companion_of(name: Name | None) -> Companion | None:
    """Return a new companion for a process of an agent with that dialect, where it needs one."""
    if name == "opencode":
        from sandboxagent.server.agents.dialects.opencode import OpenCode

        return OpenCode()
    return None


METHOD = methods.REQUEST_QUESTION


def question_params(
    session_id: str | None, question_id: str, questions: list[Object], call_id: str | None, several: str
) -> Object:
    """Return the params of a request. `several` is the agent's name for a question that takes more than one answer."""
    asked = [_question(each, several) for each in questions]
    first = objects_at(asked[0], "options") if asked else []
    params: Object = {
        "sessionId": session_id,
        "questionId": question_id,
        "prompt": "\n".join(str(each["question"]) for each in asked),
        "options": [[option["id"], option["label"]] for option in first],
        "questions": asked,
    }
    return params if call_id is None else params | {"toolCallId": call_id}


def _question(question: Object, several: str) -> Object:
    return {
        "header": text_at(question, "header") or "",
        "question": text_at(question, "question") or "",
        "options": [_option(option) for option in objects_at(question, "options")],
        "multiSelect": question.get(several) is True,
    }


def _option(option: Object) -> Object:
    # These agents identify options by their labels.
    label = text_at(option, "label") or ""
    return {"id": label, "label": label, "description": text_at(option, "description") or ""}


def answers_in(result: Object) -> list[list[str]] | None:
    """Return one list of texts for each question; None when they were not answered."""
    if result.get("status") != "answered":
        return None
    return [
        [text for text in list_at({"list": each}, "list") if isinstance(text, str)]
        for each in list_at(result, "answers")
    ]
