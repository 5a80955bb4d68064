"""Large lines of agents: they are looked at in a thread, their agent waits, and everything else goes on."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE_BYTES, Peek, parse_large, prepare_response
from sandboxagent.server.agents.lines import MAX_LINE_BYTES
from sandboxagent.server.sessions.agent_events import _look_at  # pyright: ignore[reportPrivateUsage]
from tests.support.world import CAPABILITIES, FakeAgent, World, error_of, run, world

MOST = 0.1
"""Seconds of its processor that a turn of the event loop may take: twice the promise, for a busy machine."""
MOST_IN_A_THREAD = 0.15
"""Seconds of its processor that a step in a thread may hold the interpreter: three times the promise."""
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
SIZE = MAX_LINE_BYTES - 4096
VALUES = {
    "a text": lambda: b'"%b"' % (b"x" * SIZE),
    "escapes": lambda: b'"%b"' % (b"\\n" * (SIZE // 2)),
    "half a pair": lambda: b'"\\ud800%b"' % (b"\\n" * (SIZE // 2 - 8)),
    "cyrillic": lambda: b'"%b"' % ("ж".encode() * (SIZE // 2)),
    "too many values": lambda: b"[%b1]" % (b"1," * (SIZE // 2 - 8)),
}
RESPONSES = {
    "of a turn": ("session/prompt", b"result"),
    "of a turn that failed": ("session/prompt", b"error"),
    "of a request that goes on as it is": ("x/y", b"result"),
    "of a request that the server reads": ("session/set_mode", b"result"),
}


async def longest_turn(own: World, line: bytes, until: Callable[[], Any]) -> float:
    """The processor's seconds that the longest turn of the event loop takes while an agent's line is handled."""
    loop, longest, since = asyncio.get_running_loop(), 0.0, time.thread_time()

    def look() -> None:
        nonlocal longest, since, timer
        now = time.thread_time()
        longest, since = max(longest, now - since), now
        timer = loop.call_later(EACH, look)

    timer = loop.call_soon(look)
    loop.call_soon(own.hears, line)
    await until()
    await own.log.flushed()
    await asyncio.sleep(2 * EACH)
    timer.cancel()
    return longest


@pytest.mark.measures
@pytest.mark.parametrize("what", ENVELOPES)
def test_a_line_of_an_agent_at_the_limit_does_not_hold_the_event_loop(what: str) -> None:
    async def measure(line: bytes) -> float:
        async with world() as own:
            own.session.facts.metadata = {"permissions": [{"kind": "execute", "action": "allow"}]}
            before = own.log.position

            async def handled() -> None:
                await own.has_logged(before + 1)
                if b"request_permission" in line and b"[1,1" not in line[:1024]:
                    await own.process.has_been_sent(1)

            return await longest_turn(own, line, handled)

    def try_value(value: bytes) -> float:
        return asyncio.run(measure(ENVELOPES[what].replace(b"VALUE", value) + b"\n"))

    took = {name: try_value(make()) for name, make in VALUES.items()}
    assert {name: seconds for name, seconds in took.items() if seconds > MOST} == {}


def response(id: Any, name: bytes, value: bytes) -> bytes:
    known = b'"stopReason":"end_turn","usage":{"totalTokens":7},"code":-32603,"message":"no"'
    return b'{"jsonrpc":"2.0","id":%b,"%b":{"a":%b,%b}}\n' % (json.dumps(id).encode(), name, value, known)


@pytest.mark.measures
@pytest.mark.parametrize("what", RESPONSES)
def test_a_response_of_an_agent_at_the_limit_does_not_hold_the_event_loop(what: str) -> None:
    method, name = RESPONSES[what]

    async def measure(value: bytes) -> float:
        async with world() as own:
            own.add_session("t")
            asked = own.request(method, {"sessionId": "s", "prompt": [], "modeId": "m"})
            line = response((await own.process.request(method))["id"], name, value)
            took = await longest_turn(own, line, lambda: asked)
            answer = asked.result()
            if method == "session/set_mode":
                assert error_of(answer)["data"]["type"] == "agent-answer-too-long"
            else:
                rest = line[line.index(b',"%b"' % name) : -1]
                assert answer.line == b'{"jsonrpc":"2.0","id":"r"%b' % rest
            return took

    values = {name: make for name, make in VALUES.items() if name != "too many values"}
    took = {name: asyncio.run(measure(make())) for name, make in values.items()}
    assert {name: seconds for name, seconds in took.items() if seconds > MOST} == {}


@pytest.mark.parametrize(("name", "end"), [(b"result", {"stopReason": "end_turn"}), (b"error", None)])
def test_a_large_response_ends_its_turn_as_a_small_one_does(name: bytes, end: Any) -> None:
    async def scenario() -> None:
        async with world() as own:
            for size, tokens in ((1, 7), (LARGE_BYTES, 14)):
                asked = own.prompt()
                id = (await own.process.request("session/prompt"))["id"]
                own.hears(said(1) + response(id, name, b'"%b"' % (b"x" * size)) + said(2))
                answer = json.loads((await asked).line)
                assert (answer["id"], len(answer[name.decode()]["a"])) == ("p", size)
                turn = [each for each in await own.events() if each.get("method") == methods.TURN][-1]["params"]
                assert {each: turn.get(each) for each in ("state", "stopReason", "error")} == {
                    "state": "ended",
                    "stopReason": end and end["stopReason"],
                    "error": None if end else {"code": -32603, "message": "no"},
                }
                assert own.session.facts.activity.tokens == (tokens if end else None)

    run(scenario())


def longest_step(work: Callable[[], object]) -> float:
    """The processor's seconds of the longest operation of Python, at whose end another thread may get its turn."""
    longest, since = 0.0, time.thread_time()

    def note(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal longest, since
        frame.f_trace_opcodes = True
        longest = max(longest, time.thread_time() - since)
        since = time.thread_time()
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return longest


HELD = VALUES | {
    "escaped letters": lambda: b'"%b"' % (b"\\u0041" * (SIZE // 6)),
    "backslashes and half a pair": lambda: b'"\\ud800%b"' % (b"\\\\" * (SIZE // 2 - 8)),
    "halves of pairs": lambda: b'"%b"' % (b"\\ud800" * (SIZE // 6)),
    "line ends": lambda: b" \r" * (SIZE // 2) + b"1",
}


@pytest.mark.measures
@pytest.mark.parametrize("value", HELD)
def test_a_large_line_in_a_thread_does_not_hold_up_the_others(value: str) -> None:
    update = ENVELOPES["an update"].replace(b"VALUE", HELD[value]())
    answer = response(1, b"result", HELD[value]())

    def look() -> None:
        lines, peeks, _, each = _look_at(answer)
        if each is None:
            prepare_response(lines[0], peeks[0], b'"a"')
        for one in each or ():
            if type(peek := getattr(one, "peek", None)) is Peek:
                prepare_response(one.line, peek, b'"a"')

    assert longest_step(lambda: _look_at(update + b"\n")) < MOST_IN_A_THREAD
    assert longest_step(look) < MOST_IN_A_THREAD
    if value not in ("too many values", "halves of pairs"):
        assert longest_step(lambda: parse_large(update)) < MOST_IN_A_THREAD


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
            own.hears(said(2, LARGE_BYTES) + said(3))
            own.hears(said(4))
            own.hears(said(5, LARGE_BYTES))
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
            own.hears(said(1, LARGE_BYTES))
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
            own.hears(said(1) + b"x" * LARGE_BYTES + b"\n" + said(2))
            await own.has_logged(3)
            assert await numbers(own) == [1, 2]

    run(scenario())
