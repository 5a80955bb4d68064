"""The relay in a process of its own, and browsers that look at it."""

import re
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import httpx
from httpx_sse import EventSource, connect_sse

from tests.examples.staging import TIMEOUT, Stage, python
from tests.support.running import BOUND

Json = dict[str, Any]


class Relay:
    """`relay/app.py` as it is started by hand, with an agent; on any free port, unless told."""

    program = "relay/app.py"

    def __init__(self, stage: Stage, agent: str = "mock", port: int = 0, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*python(self.program), agent, str(port)],
            cwd=stage.project,
            env=stage.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stderr = ""
        self.url = ""
        self._running = Event()
        self._reading = Thread(target=self._read)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr += line
            if found := re.search(r"Uvicorn running on (\S+)", line):
                self.url = found[1]
                self._running.set()
        self._running.set()

    def __enter__(self) -> "Relay":
        self._reading.start()
        if not (self._running.wait(TIMEOUT) and self.url):
            self._end()
            raise AssertionError(f"the relay does not start:\n{self.stderr}")
        self.http = httpx.Client(base_url=self.url, timeout=BOUND)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(TIMEOUT)
        finally:
            self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def post(self, path: str, body: Json, status: int) -> Json:
        """What it answers, which must be with this status."""
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json() if status == 201 else {}

    def new_session(self) -> str:
        """The path of one."""
        return f"/sessions/{self.post('/sessions', {}, 201)['id']}"

    @contextmanager
    def browser(self, session: str, after: int | None = None) -> Generator["Browser"]:
        """A page that is opened, or one that was cut off after an event and comes again; closing it cuts it off."""
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        with connect_sse(self.http, "GET", f"{session}/events", headers=headers) as source:
            assert source.response.status_code == 200
            yield Browser(source)


@dataclass
class Browser:
    """What one page got."""

    source: EventSource
    ids: list[int] = field(default_factory=list[int])
    events: list[Json] = field(default_factory=list[Json])
    asked: list[Json] | None = None
    heard: str = ""
    """All of it, word for word."""

    def __post_init__(self) -> None:
        self._coming = self.source.iter_sse()

    @property
    def text(self) -> str:
        """All that the agent has said."""
        updates = [event["update"] for event in self.events if event["kind"] == "update"]
        said = [each for each in updates if each["sessionUpdate"] == "agent_message_chunk"]
        return "".join(each["content"]["text"] for each in said)

    @property
    def turns(self) -> int:
        """How many turns have ended."""
        return sum(event["kind"] == "turn" and event["state"] == "ended" for event in self.events)

    def until(self, condition: Callable[["Browser"], bool]) -> None:
        """Read on until a condition holds; a read ends after five seconds."""
        while not condition(self):
            event = next(self._coming)
            self.heard += f"{event.event} {event.id} {event.data}\n"
            if event.event == "asked":
                self.asked = event.json()
            else:
                self.ids.append(int(event.id))
                self.events.append(event.json())
