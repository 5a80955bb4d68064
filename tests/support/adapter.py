"""The Amp adapter as its client sees it: a process on stdio, with a fake Amp behind it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import Queue
from typing import Any

import acp.schema

from tests.support import fake_amp
from tests.support.model.gate import BOUND

Json = dict[str, Any]


class Adapter:
    """A running adapter. Every update is checked against ACP's types."""

    def __init__(self, directory: Path, **environment: str | None) -> None:
        self.home = directory / "home"
        self.home.mkdir(exist_ok=True)
        self.temporary = Path(tempfile.mkdtemp(prefix="amp-"))
        """Where its own files go: a short path, because a socket is among them."""
        program = directory / "amp"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{fake_amp.__file__}" "$@"\n')
        program.chmod(0o755)
        given: dict[str, str | None] = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "AMP_CLI": str(program),
            "AMP_CLI_VERSION": "1.2.3",
            "AMP_API_KEY": "none",
            "FAKE_AMP_THREADS": str(directory / "threads"),
            **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandboxagent.adapters.amp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in given.items() if value is not None},
        )
        self.seen: list[Json] = []
        """All that came, but for answers."""
        self.answer: Callable[[Json], Json] = lambda _: {"outcome": {"outcome": "cancelled"}}
        """What is said when the adapter asks; an error where the result is one."""
        self._arrived: Queue[Json | None] = Queue()
        self._answers: dict[int, Json] = {}
        self._ids = count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Adapter":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """Close its stdin, and wait for its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(BOUND)
        self._reader.join(BOUND)
        self.process.stdout.close()
        # Fails unless it has cleaned up.
        self.temporary.rmdir()
        return code

    def call(self, method: str, **params: object) -> Json:
        """The answer to a request."""
        return self.wait(self.send(method, **params))

    def result(self, method: str, **params: object) -> Json:
        answer = self.call(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, **params: object) -> Json:
        answer = self.call(method, **params)
        assert "error" in answer, answer
        return answer["error"]

    def send(self, method: str, **params: object) -> int:
        """Ask, and go on."""
        id = next(self._ids)
        self._write({"id": id, "method": method, "params": params})
        return id

    def notify(self, method: str, **params: object) -> None:
        self._write({"method": method, "params": params})

    def wait(self, id: int) -> Json:
        """Wait for an answer."""
        while id not in self._answers:
            self._take()
        return self._answers.pop(id)

    def until(self, holds: Callable[[Json], bool]) -> Json:
        """Wait for something that is no answer, or find it among what has come."""
        while not any(map(holds, self.seen)):
            self._take()
        return next(filter(holds, self.seen))

    def session(self, directory: Path, **params: object) -> str:
        given = {"cwd": str(directory), "mcpServers": [], **params}
        return self.result("session/new", **given)["sessionId"]

    def prompt(self, session: str, *steps: object) -> Json:
        """The answer to a prompt that has Amp do these steps."""
        return self.call("session/prompt", **prompt(session, *steps))

    def updates(self, session: str, kind: str | None = None) -> list[Json]:
        params = [each["params"] for each in self.seen if each["method"] == "session/update"]
        updates = [each["update"] for each in params if each["sessionId"] == session]
        return [update for update in updates if kind in (None, update["sessionUpdate"])]

    @property
    def asked(self) -> list[Json]:
        return [each["params"] for each in self.seen if each["method"] == "session/request_permission"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(json.loads(line))
        self._arrived.put(None)

    def _take(self) -> None:
        envelope = self._arrived.get(timeout=BOUND)
        assert envelope is not None, "the adapter has ended"
        if "method" not in envelope:
            self._answers[envelope["id"]] = envelope
            return
        if envelope["method"] == "session/update":
            acp.schema.SessionNotification.model_validate(envelope["params"])
        self.seen.append(envelope)
        if "id" in envelope:
            acp.schema.RequestPermissionRequest.model_validate(envelope["params"])
            given = self.answer(envelope["params"])
            member = "error" if "code" in given else "result"
            self._write({"id": envelope["id"], member: given})

    def _write(self, members: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n")
        self.process.stdin.flush()


def prompt(session: str, *steps: object) -> Json:
    """The parameters of a prompt that has Amp do these steps."""
    return {"sessionId": session, "prompt": [{"type": "text", "text": json.dumps(steps)}]}


def selected(option: str) -> Json:
    return {"outcome": {"outcome": "selected", "optionId": option}}
