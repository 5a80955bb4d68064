"""Turns that are begun and answered through gateways: writers prompt, and people answer what the agents ask."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count

import httpx

from tests.chaos.caller import Caller, Choice, Journal, hear
from tests.chaos.parts import Endpoint
from tests.support.asking import PERMISSION, PERMISSION_PARAMS
from tests.support.client import META, Client, Json, OutOfOrder, Stream

TEXTS = 3
"""Of each turn."""
LOST = ("node-lost", "outcome-unknown")
"""How a turn ends whose node was lost: while it was away, or asked again when it was back."""
BROKEN = (httpx.HTTPError, AssertionError, EOFError, TimeoutError, OSError)
"""What a client sees of a part that fails."""


def program(number: int) -> list[list[object]]:
    """A turn that asks in its middle, and says what it was answered."""
    call = {"toolCallId": str(number), "title": f"turn {number}"}
    texts: list[list[object]] = [["say", f"{number}.{place}"] for place in range(TEXTS)]
    asks: list[list[object]] = [["ask", PERMISSION, {**PERMISSION_PARAMS, "toolCall": call}], ["echo_answer"]]
    return [texts[0], *asks, *texts[1:]]


@dataclass
class Writer:
    """Takes turns in one session of a node. A POST that breaks is repeated under its key at another gateway."""

    node: str
    caller: Caller
    session: str = ""
    finished: list[int] = field(default_factory=list[int])
    """Numbers of turns whose result came."""
    lost: list[int] = field(default_factory=list[int])
    """Those that ended because their node was lost."""
    neither: list[str] = field(default_factory=list[str])
    """What else came of one."""
    number: int = 0
    """Of the turn that runs."""

    @property
    def ended(self) -> int:
        return len(self.finished) + len(self.lost) + len(self.neither)

    async def open(self, work: str) -> str:
        await self.caller.open()
        params = {"cwd": work, "mcpServers": [], "_meta": {META: {"node": self.node}}}
        self.session = (await self.caller.result("session/new", params, "new"))["sessionId"]
        return self.session

    async def run(self) -> None:
        for number in count(1):
            self.number = number
            params = Client.prompt_params(self.session, program(number))
            request = {"id": f"turn-{number}", "method": "session/prompt", "params": params}
            self._note(number, await self.caller.post(request, f"{self.session} {number}"))
            await asyncio.sleep(0.02)

    def _note(self, number: int, response: httpx.Response) -> None:
        reply = response.json() if response.status_code == 200 else {}
        if "result" in reply:
            self.finished.append(number)
        elif reply.get("error", {}).get("data", {}).get("type") in LOST:
            self.lost.append(number)
        else:
            self.neither.append(f"turn {number} of {self.node}: {response.status_code} {response.text}")


class Gate:
    """While it is shut, no person answers: what is asked stays pending."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()


@dataclass
class Person:
    """Is attached to a session, reads at one gateway after another, and answers through another one."""

    session: str
    option: str
    caller: Caller
    gate: Gate
    taken: set[int] = field(default_factory=set[int])
    """Turns whose question it has answered, first of all."""
    asked: set[int] = field(default_factory=set[int])
    """Turns that wait for its answer."""
    refused: list[str] = field(default_factory=list[str])
    """What came of an answer that was neither taken nor too late."""
    last: int = 0
    disordered: int = 0
    """Events that came twice, or too late."""
    at: str = ""
    """Where it reads."""
    _answering: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def open(self) -> None:
        await self.caller.open()
        attached = await self.caller.result("_sandboxagent/session/attach", {"sessionId": self.session})
        self.last = attached["position"]
        for each in attached["pending"]:
            self._take(each["envelope"] | {"id": each["id"]})

    async def run(self) -> None:
        try:
            while True:
                gateway = self.caller.choice.choose()
                try:
                    await self._listen(gateway)
                except BROKEN as error:
                    self.disordered += isinstance(error, OutOfOrder)
                    self.caller.choice.fail(gateway)
                    await asyncio.sleep(0.05)
        finally:
            for task in self._answering:
                task.cancel()

    async def _listen(self, gateway: Endpoint) -> None:
        leaves_at = time.monotonic() + self.caller.choice.random.uniform(0.5, 3)
        self.at = gateway.url
        async with AsyncExitStack() as stack:
            with self.caller.choice.step(gateway, "opening a stream"):
                response = await stack.enter_async_context(self.caller.stream(gateway, self.last))
            assert response.status_code == 200, (await response.aread()).decode()
            stream = Stream(response)
            while (event := await hear(stream, leaves_at)) is not None:
                self.disordered += event.id <= self.last
                self.last = event.id
                if event.method == PERMISSION:
                    self._take(event.data)

    def _take(self, request: Json) -> None:
        number = int(request["params"]["toolCall"]["toolCallId"])
        if number not in self.asked:
            self.asked.add(number)
            self._spawn(self._answer(request["id"], number))

    async def _answer(self, id: object, number: int) -> None:
        try:
            await self.gate.passed()
            await asyncio.sleep(self.caller.choice.random.uniform(0, 0.05))
            answer = {"outcome": {"outcome": "selected", "optionId": self.option}}
            response = await self.caller.post({"id": id, "result": answer}, but=self.at)
        finally:
            self.asked.discard(number)
        if response.status_code == 202:
            self.taken.add(number)
        elif response.status_code not in (404, 409):
            # 409: another one was first. 404: the node has started anew, and does not ask any more.
            self.refused.append(f"turn {number}: {response.status_code} {response.text}")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)


def make_caller(gateways: Callable[[], Sequence[Endpoint]], seed: int, who: str, journal: Journal) -> Caller:
    return Caller(Choice(gateways, random.Random(f"{seed} {who}"), who, journal))
