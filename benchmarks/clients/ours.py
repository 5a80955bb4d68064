"""Run a job with our Python SDK for `sdk.py`, print its figures, and wait in between.

clients/driver.mjs does the same with the TypeScript SDKs.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypedDict

from sandboxagent import SandboxAgent, Session, text_of

QUIET_TIMEOUT = 3.0
"""Seconds without an update after which a burst with missing updates is over."""


class Job(TypedDict):
    do: str
    agent: str
    cwd: str
    url: str
    token: str
    count: int
    warmup: int
    size: int
    tag: str


class Tally:
    """Which updates came, by the number in their text, with the repeated ones and those after a higher number."""

    def __init__(self, count: int, tag: str) -> None:
        self.first = self.last = 0.0
        self.delivered = self.repeated = self.reordered = 0
        self._seen = bytearray(count)
        self._mark = f"@{tag}:"
        self._next = 0

    @property
    def lost(self) -> int:
        return len(self._seen) - self.delivered

    async def settled(self, ended: float) -> None:
        """Wait for updates that come after the end of the prompt, which count as delivered."""
        while self.lost and time.perf_counter() - max(ended, self.last) < QUIET_TIMEOUT:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def take(self, text: str) -> None:
        at = len(self._mark)
        if not text.startswith(self._mark):
            return
        number = int(text[at : at + 10])
        self.last = time.perf_counter()
        self.first = self.first or self.last
        if self._seen[number]:
            self.repeated += 1
            return
        self._seen[number] = 1
        self.delivered += 1
        if number < self._next:
            self.reordered += 1
        else:
            self._next = number + 1


async def main(job: Job) -> None:
    async with _client(job) as client:
        session = await client.sessions.create(job["agent"], cwd=job["cwd"])
        await JOBS[job["do"]](session, job)
        _wait()


def _client(job: Job) -> AbstractAsyncContextManager[SandboxAgent]:
    if job["do"] == "start":
        return SandboxAgent.start(options={"config_dir": job["cwd"]})
    return SandboxAgent.connect(job["url"], job["token"])


async def burst(session: Session, job: Job) -> None:
    tally = Tally(job["count"], job["tag"])
    _say(ready=True)
    _wait()
    began = time.perf_counter()
    await _prompt(session, f"burst {job['count']} {job['size']} {job['tag']}", tally.take)
    ended = time.perf_counter()
    before = tally.delivered
    await tally.settled(ended)
    _say(
        seconds=max(ended, tally.last) - began,
        first_ms=(tally.first - began) * 1000,
        delivered=tally.delivered,
        lost=tally.lost,
        repeated=tally.repeated,
        reordered=tally.reordered,
        late=tally.delivered - before,
    )


async def trips(session: Session, job: Job) -> None:
    times: list[float] = []
    _say(ready=True)
    _wait()
    for trip in range(-job["warmup"], job["count"]):
        began = time.perf_counter()
        await _prompt(session, "hello", lambda text: None)
        if trip >= 0:
            times.append((time.perf_counter() - began) * 1000)
    times.sort()
    _say(p50_ms=times[int(job["count"] * 0.5)], p99_ms=times[int(job["count"] * 0.99)])


async def start(session: Session, job: Job) -> None:
    tally = Tally(1, job["tag"])

    def take(text: str) -> None:
        tally.take(text)
        if tally.delivered == 1:
            _say(updated=True)

    await _prompt(session, f"burst 1 120 {job['tag']}", take)
    await tally.settled(time.perf_counter())


JOBS = {"burst": burst, "trips": trips, "start": start}


async def _prompt(session: Session, text: str, take: Callable[[str], None]) -> None:
    async for item in session.prompt(text):
        if item.session_update == "agent_message_chunk":
            take(text_of(item))


def _say(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def _wait() -> None:
    """Wait for a line on stdin, or its end. Meanwhile, `sdk.py` reads the CPU time and memory of this process."""
    sys.stdin.readline()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
