"""Large lines of agents: they are looked at in a thread, their agent waits, and everything else goes on."""

import asyncio
import time
from typing import Any

import pytest

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE
from sandboxagent.server.agents.lines import MAX_LINE
from tests.support.world import CAPABILITIES, FakeAgent, World, run, world

MOST = 0.1
"""Seconds of its processor that a turn of the event loop may take: twice what is promised, for a busy machine."""
EACH = 0.002
"""Seconds between two looks at what the turns take."""

UPDATE = (
    b'{"jsonrpc":"2.0","method":"session/update","params":'
    b'{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","a":VALUE}}}'
)
ENVELOPES = {
    "an update": UPDATE,
    "an update that may tell something": UPDATE.replace(b"agent_message_chunk", b"session_info_update"),
    "an update that speaks for the server": UPDATE.replace(b'"s",', b'"s","_meta":{"sandboxagent.dev":{}},'),
    "a notification": b'{"jsonrpc":"2.0","method":"x/y","params":{"sessionId":"s","a":VALUE}}',
    "a request that people answer": b'{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"sessionId":"s","a":VALUE}}',
    "a request that rules decide": (
        b'{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s",'
        b'"toolCall":{"toolCallId":"c","kind":"execute","rawInput":{"command":"ls","a":VALUE}},'
        b'"options":[{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}'
    ),
}
SIZE = MAX_LINE - 4096
VALUES = {
    "a text": lambda: b'"%b"' % (b"x" * SIZE),
    "escapes": lambda: b'"%b"' % (b"\\n" * (SIZE // 2)),
    "half a pair": lambda: b'"\\ud800%b"' % (b"\\n" * (SIZE // 2 - 8)),
    "cyrillic": lambda: b'"%b"' % ("ж".encode() * (SIZE // 2)),
    "too many values": lambda: b"[%b1]" % (b"1," * (SIZE // 2 - 8)),
}


async def longest_turn(own: World, line: bytes) -> float:
    """The processor's seconds that the longest turn of the event loop takes while an agent's line is handled."""
    loop, longest, since = asyncio.get_running_loop(), 0.0, time.thread_time()

    def look() -> None:
        nonlocal longest, since, timer
        now = time.thread_time()
        longest, since = max(longest, now - since), now
        timer = loop.call_later(EACH, look)

    own.session.facts.metadata = {"permissions": [{"kind": "execute", "action": "allow"}]}
    before = own.log.position
    timer = loop.call_soon(look)
    loop.call_soon(own.hears, line)
    await own.has_logged(before + 1)
    if b"request_permission" in line and b"[1,1" not in line[:1024]:
        await own.process.has_been_sent(1)
    await own.log.flushed()
    await asyncio.sleep(2 * EACH)
    timer.cancel()
    return longest


@pytest.mark.measures
@pytest.mark.parametrize("what", ENVELOPES)
def test_a_line_of_an_agent_at_the_limit_does_not_hold_the_event_loop(what: str) -> None:
    async def measure(line: bytes) -> float:
        async with world() as own:
            return await longest_turn(own, line)

    def try_value(value: bytes) -> float:
        return asyncio.run(measure(ENVELOPES[what].replace(b"VALUE", value) + b"\n"))

    took = {name: try_value(make()) for name, make in VALUES.items()}
    assert {name: seconds for name, seconds in took.items() if seconds > MOST} == {}


def said(number: int, size: int = 1, session: str = "s") -> bytes:
    value = b'{"number":%d,"text":"%b"}' % (number, b"x" * size)
    return UPDATE.replace(b'"s"', f'"{session}"'.encode()).replace(b"VALUE", value) + b"\n"


async def numbers(own: World, session: str = "s") -> list[Any]:
    """Of the updates in its log, in their order; of anything else, its method."""
    params = [(each["method"], each["params"]) for each in await own.events(session)]
    return [each["update"]["a"]["number"] if "update" in each else method for method, each in params]


def test_what_an_agent_says_after_a_large_line_comes_after_it_also_its_end() -> None:
    async def scenario() -> None:
        async with world() as own:
            own.hears(said(1))
            own.hears(said(2, LARGE) + said(3))
            own.hears(said(4))
            own.hears(said(5, LARGE))
            own.agent_events.oversized(own.running, b"six")
            own.agent.crashes()
            # Nothing is said of it before it has been taken.
            assert not own.session.facts.ended
            await own.has_logged(6)
            await own.settled()
            assert await numbers(own) == [1, 2, 3, 4, 5, methods.ENDED]
            assert own.session.facts.ended

    run(scenario())


def test_an_agent_waits_while_its_large_line_is_looked_at_and_no_other_one() -> None:
    async def scenario() -> None:
        async with world() as own:
            other = FakeAgent(own, "a-2", CAPABILITIES)
            own.add_session("t", other)
            own.hears(said(1, LARGE))
            assert not own.process.is_read
            own.agent_events.receive(other.running, said(2, session="t"))
            assert other.pipe.is_read
            assert own.log.position == 1
            await own.has_logged(2)
            await own.settled()
            assert own.process.is_read
            assert (await numbers(own), await numbers(own, "t")) == ([1], [2])

    run(scenario())


def test_a_bad_line_that_is_large_is_set_aside_and_its_neighbours_arrive() -> None:
    async def scenario() -> None:
        async with world() as own:
            own.hears(said(1) + b"x" * LARGE + b"\n" + said(2))
            await own.has_logged(3)
            assert await numbers(own) == [1, 2]

    run(scenario())
