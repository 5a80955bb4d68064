"""Define what is particular to one agent, such as how it asks people, and list all dialects.

A dialect says what an agent's request means, and an answer to it in the agent's own words; it is pure. A companion runs
beside the process of an agent that asks in another place than on its stdout, and asks there in its stead.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, list_at, objects_at, text_at
from sandboxagent.server.agents.manifest import Dialect as Name


class Dialect(Protocol):
    """How an agent asks people."""

    def translate_request(self, request: Envelope) -> Envelope:
        """Translate an agent's request into the common form; the same envelope when it needs no translation."""
        ...

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        """Translate an answer to this request into the one that its agent expects."""
        ...


class Companion(Protocol):
    """Speaks for an agent process. Answers come back to it; nothing of it outlives the process."""

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process, with the address where it can be reached; variables that are set stay."""
        ...

    async def connect(self, pid: int) -> bool:
        """Reach the agent, which has answered its handshake; False when that cannot be done in time."""
        ...

    def start(self, say: Callable[[bytes], None]) -> None:
        """From now on say what the agent would: one envelope at a time, as if it came from its stdout."""
        ...

    def answer(self, line: bytes) -> bool:
        """Take an answer to what was said here; False when the agent itself had asked. Does not raise."""
        ...

    def stop(self) -> None:
        """The process has ended, or is about to."""
        ...


class Plain:
    """An agent that asks in the common form."""

    def translate_request(self, request: Envelope) -> Envelope:
        return request

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        return answer


def dialect_of(name: Name | None) -> Dialect:
    """The dialect of that name; None is no dialect."""
    if name == "qwen":
        from sandboxagent.server.agents.dialects.qwen import Qwen

        return Qwen()
    return Plain()


def companion_of(name: Name | None) -> Companion | None:
    """A new companion for a process of an agent with that dialect, where it needs one."""
    if name == "opencode":
        from sandboxagent.server.agents.dialects.opencode import OpenCode

        return OpenCode()
    return None


METHOD = methods.REQUEST_QUESTION


def question_params(
    session_id: str | None, question_id: str, questions: list[Object], call_id: str | None, several: str
) -> Object:
    """The params of a request; `several` is what the agent calls a question that takes more than one answer."""
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
    # These agents know their options by what they show.
    label = text_at(option, "label") or ""
    return {"id": label, "label": label, "description": text_at(option, "description") or ""}


def answers_in(result: Object) -> list[list[str]] | None:
    """One list of texts for each question; None when they were not answered."""
    if result.get("status") != "answered":
        return None
    return [
        [text for text in list_at({"list": each}, "list") if isinstance(text, str)]
        for each in list_at(result, "answers")
    ]
