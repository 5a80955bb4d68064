"""A client of the fleet: one connection, at whichever gateway answers. What breaks is repeated elsewhere."""

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import httpx

from tests.chaos.parts import Endpoint
from tests.support.client import CAPABLE, META, Event, Json, Stream

TIMEOUT = 5.0
"""Seconds of silence after which a client goes elsewhere."""
PAUSE = 0.1
REST = 10.0
"""Seconds for which a client leaves a gateway alone that has failed, while there is another one."""
PASSING = (502, 503, 504, 507)
"""What a gateway answers when it could not have something done, and has not done it."""


@dataclass
class Journal:
    """What took clients long, so that a pause can be explained."""

    long: float = 0.5
    """Seconds from which on a step is kept."""
    began_at: float = field(default_factory=time.monotonic)
    """The time that all others are told from."""
    steps: deque[str] = field(default_factory=lambda: deque[str](maxlen=400))

    @contextmanager
    def step(self, who: str, what: str) -> Generator[None]:
        """Something that a client waits for."""
        began, outcome = time.monotonic(), "done"
        try:
            yield
        except BaseException as error:
            outcome = repr(error)
            raise
        finally:
            ended = time.monotonic()
            if ended - began >= self.long:
                span = f"{began - self.began_at:5.1f} to {ended - self.began_at:5.1f} s"
                self.steps.append(f"  {span}: {who}: {what}: {outcome[:200]}")

    def note(self, who: str, what: str) -> None:
        self.steps.append(f"  {time.monotonic() - self.began_at:5.1f} s: {who}: {what}")

    def begin_round(self) -> None:
        self.began_at = time.monotonic()
        self.steps.clear()


async def hear(stream: Stream, leaves_at: float) -> Event | None:
    """The next event; None when it is time to leave. One that sends no sign of life either ends for its reader."""
    try:
        return await stream.next(max(0.0, leaves_at - time.monotonic()))
    except TimeoutError:
        return None


@dataclass
class Choice:
    """Which gateway a client goes to."""

    gateways: Callable[[], Sequence[Endpoint]]
    random: random.Random
    who: str
    """The client, for the journal."""
    journal: Journal
    _failed: dict[str, float] = field(default_factory=dict[str, float])
    """Gateway → when it failed last."""

    def choose(self, but: str = "") -> Endpoint:
        """Any but those that have failed lately, and rather not this one; when all have, the first that did."""
        all_of_them, now = self.gateways(), time.monotonic()
        well = [each for each in all_of_them if now - self._failed.get(each.url, -REST) >= REST]
        if not well:
            return min(all_of_them, key=lambda each: self._failed[each.url])
        return self.random.choice([each for each in well if each.url != but] or well)

    def fail(self, gateway: Endpoint) -> None:
        """It is left alone for a while."""
        self._failed[gateway.url] = time.monotonic()

    def step(self, gateway: Endpoint, what: str) -> AbstractContextManager[None]:
        """Something that the client waits for at a gateway."""
        return self.journal.step(self.who, f"{what} at {gateway.name}")


@dataclass
class Caller:
    """Posts as the SDKs do: a request has a key, and is repeated under it until there is an outcome."""

    choice: Choice
    id: str = ""
    """Of its connection, which belongs to the fleet."""
    last_status: str = ""
    """What the last attempt came to, for those who look into a hang."""
    _http: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(
            trust_env=False, verify=False, timeout=httpx.Timeout(TIMEOUT), limits=httpx.Limits(max_connections=None)
        )
    )

    async def open(self) -> None:
        params = {"protocolVersion": 1, "clientCapabilities": CAPABLE, "_meta": {META: {"agent": "scripted"}}}
        self.id = ""
        response = await self.post({"id": 0, "method": "initialize", "params": params})
        assert response.status_code == 200, response.text
        self.id = response.headers["X-ACP-Connection-Id"]

    async def result(self, method: str, params: Json, key: str | None = None) -> Json:
        response = await self.post({"id": self.choice.random.getrandbits(40), "method": method, "params": params}, key)
        assert response.status_code == 200, f"{method}: {response.status_code} {response.text}"
        assert "result" in response.json(), f"{method}: {response.text}"
        return response.json()["result"]

    async def post(self, envelope: Json, key: str | None = None, but: str = "") -> httpx.Response:
        """What comes of an envelope in the end, by any gateway, rather not by `but`."""
        content = json.dumps({"jsonrpc": "2.0", **envelope})
        while True:
            gateway = self.choice.choose(but)
            try:
                with self.choice.step(gateway, envelope.get("method", "answer")):
                    response = await self._http.post(
                        f"{gateway.url}/v1/rpc", content=content, headers=self.headers(gateway, key)
                    )
            except httpx.HTTPError as error:
                self.last_status = f"{gateway.url} {error!r}"
            else:
                self.last_status = f"{gateway.url} {response.status_code} {response.text[:200]}"
                if response.status_code not in PASSING:
                    return response
                self.choice.journal.note(self.choice.who, self.last_status)
            self.choice.fail(gateway)
            await asyncio.sleep(PAUSE)

    def stream(self, gateway: Endpoint, last: int):
        """An open stream that goes on behind an event."""
        more = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(last)} if last else {})
        return self._http.stream("GET", f"{gateway.url}/v1/rpc", headers={**self.headers(gateway), **more})

    def headers(self, gateway: Endpoint, key: str | None = None) -> dict[str, str]:
        found = {"Authorization": f"Bearer {gateway.token}", "Content-Type": "application/json"}
        if self.id:
            found["X-ACP-Connection-Id"] = self.id
        return found if key is None else {**found, "Idempotency-Key": key}

    async def close(self) -> None:
        await self._http.aclose()
