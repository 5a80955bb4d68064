"""A node that floods waits; others do not."""

import asyncio

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.gateway.ingest import Ingest
from sandbox_agent.gateway.quota import BURST, LEAST, MOST_OPEN, Quotas
from sandbox_agent.log.event import Chunk, Direction, session_channel
from sandbox_agent.log.wire import outgoing
from sandbox_agent.wire import fleet
from sandbox_agent.wire.fleet import LogReply, LogRequest
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
        clock.now = 5.0
        assert (await say("evil", "s2")).published

    run(main())
