"""`sandbox-agent run` and `attach` as people use them: in pipes, and on a terminal that can be looked at."""

import json
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.cli.cli_call import CliCall
from tests.cli.place import LONGEST, PROGRAM, Place
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


def reading(stream: IO[bytes] | None, wanted: Callable[[bytes], bool] = lambda line: True) -> bytes:
    """The first line that is wanted. Nothing beyond it is read, so that the next reader finds the rest."""
    assert stream is not None
    end, line = time.monotonic() + LONGEST, b""
    while time.monotonic() < end:
        if not select.select([stream], [], [], 0.1)[0]:
            continue
        letter = os.read(stream.fileno(), 1)
        line += letter
        if not letter:
            raise EOFError
        if letter == b"\n":
            if wanted(line):
                return line
            line = b""
    raise AssertionError(f"it did not come; the last was {line!r}")


class Talking(CliCall):
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
