"""`sandbox-agent run` and `attach` as people use them: in pipes, and on a terminal that can be looked at."""

import json
from pathlib import Path
from typing import Any

from tests.cli.calling import Calling
from tests.cli.place import PROGRAM, Place
from tests.support.on_terminal import OnTerminal
from tests.support.running import Server

PERMISSION = {
    "toolCall": {"toolCallId": "1", "title": "Run tests", "kind": "execute", "rawInput": {"command": "make test"}},
    "options": [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "always", "name": "Yes, always", "kind": "allow_always"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ],
}


def program(*steps: list[Any]) -> str:
    """A prompt for the scripted agent."""
    return json.dumps(steps)


def asks(method: str, params: dict[str, Any], *after: list[Any]) -> str:
    """A prompt after which the scripted agent asks something, and says what it was answered."""
    return program(["ask", method, params], ["echo_answer"], *after)


def questions(*questions: dict[str, Any]) -> str:
    facts = {"questionId": "q-1", "prompt": "Some questions", "options": [], "questions": questions}
    return asks("_sandboxagent/session/request_question", facts)


def form(properties: dict[str, Any], *required: str) -> str:
    schema = {"type": "object", "properties": properties, "required": required}
    return asks("elicitation/create", {"mode": "form", "message": "Fill this in", "requestedSchema": schema})


class Talking(Calling):
    """Runs of one server's agents."""

    def __init__(self, place: Place, server: Server) -> None:
        super().__init__(place, server)
        self.work = Path(server.work)

    def on_terminal(self, *arguments: str, columns: int = 80, **environ: str) -> OnTerminal:
        """A command on a terminal of its own."""
        settings = {**self.place.environment, **self.environ, **environ}
        return OnTerminal([*PROGRAM, *arguments], settings, columns, self.work)

    def sessions(self) -> list[Any]:
        """All sessions, newest first."""
        return self.well("sessions", "list", "--json").json["sessions"]
