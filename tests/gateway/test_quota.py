"""A node that floods waits; others do not."""

import asyncio

import msgspec
import pytest

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.fleet_errors import NodeUnreachable
from sandbox_agent.gateway.flows import ANSWERS, NodeAnswer, NodeRequest
from sandbox_agent.gateway.ingest import Ingest
from sandbox_agent.gateway.quota import BURST, LEAST, MOST_OPEN, Quotas
from sandbox_agent.http.asgi import Receive, Scope, Send
from sandbox_agent.log.event import Chunk, Direction, session_channel
from sandbox_agent.log.wire import outgoing
from sandbox_agent.wire import fleet
from sandbox_agent.wire.fleet import LogReply, LogRequest
from tests.gateway.test_flows import in_memory
from tests.support.client import run


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_node_gets_its_rate_and_no_more() -> None:
    clock = Clock()
    quotas = Quotas(10 * LEAST, clock)
    taken = 0
    while quotas.begin("evil", LEAST) is None:
        quotas.end("evil")
        taken += 1
    assert taken == 10 * BURST
    assert "evil publishes more than 10240 bytes a second" in (quotas.begin("evil", 1) or "")
    assert quotas.begin("good", LEAST) is None
    clock.now = 0.5
    assert quotas.begin("evil", 1) is None


def test_requests_of_one_node_are_not_piled_up() -> None:
    quotas = Quotas(1 << 30, Clock())
    for _ in range(MOST_OPEN):
        assert quotas.begin("evil", 1) is None
    assert "under way" in (quotas.begin("evil", 1) or "")
    assert quotas.begin("good", 1) is None
    quotas.end("evil")
    assert quotas.begin("evil", 1) is None


def test_a_gateway_answers_slow_to_a_node_that_floods_and_takes_all_of_it_in_time() -> None:
    async def main() -> None:
        bus, clock = MemoryBus(Cluster()), Clock()
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        holders = {name: fleet.Lease(name, "", "", {}, [], 0) for name in ("evil", "good")}
        tables = await bus.table("nodes"), await bus.table("sess")
        ingest = Ingest("g", events, *tables, holders, quotas=Quotas(LEAST, clock))

        async def say(node: str, session: str) -> LogReply:
            chunk = Chunk(1, [b"{}"], Direction.FROM_AGENT, session, session_channel(session), 0.0)
            messages = list(outgoing(chunk, subjects.session_events(session)))
            body = msgspec.msgpack.encode(LogRequest(messages, {each.subject: 0 for each in messages}))
            answer = await ingest.take(subjects.request_to_gateway(node, fleet.LOG, "g"), body)
            assert answer is not None
            return msgspec.msgpack.decode(answer, type=LogReply)

        replies = await asyncio.gather(*(say("evil", f"s{place}") for place in range(5)))
        assert [bool(each.published) for each in replies] == [True, True, False, False, False]
        assert all("evil publishes more than" in (each.slow or "") for each in replies[2:])
        assert (await say("good", "other")).published
        # Its gateway is not silent: it says why the lease is not renewed.
        for verb, reply in ((fleet.BEAT, fleet.BeatReply), (fleet.FACTS, fleet.FactsReply)):
            answer = await ingest.take(subjects.request_to_gateway("evil", verb, "g"), b"")
            assert answer is not None
            assert "evil publishes more than" in (msgspec.msgpack.decode(answer, type=reply).failed or "")
        clock.now = 5.0
        assert (await say("evil", "s2")).published

    run(main())


def test_answers_that_are_large_together_end_for_their_node_alone() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 90, "more_body": True})
            await release.wait()
            await send({"type": "http.response.body", "body": b"x" * 10})

        async with in_memory() as fleet:
            await fleet.join("evil", answer)
            await fleet.join("other", answer)

            def call(node: str) -> "asyncio.Task[NodeAnswer]":
                return asyncio.create_task(fleet.gateway.call(node, NodeRequest("POST", b"/"), b"{}", most=100))

            asking = {call("evil") for _ in range(ANSWERS + 1)}
            ended, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            with pytest.raises(NodeUnreachable, match="too much"):
                await ended.pop()
            asking.add(call("other"))
            release.set()
            assert [len(each.body) for each in await asyncio.gather(*asking)] == [100] * (ANSWERS + 1)
            assert len((await call("evil")).body) == 100

    run(main())
