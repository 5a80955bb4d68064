"""A socket under HTTP/1.1: what is gathered before it is written, and how headers are read. Contract, section 3."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from sandbox_agent.http.asgi import by_name
from sandbox_agent.http.protocol import GATHERED, LINGER, GatheringTransport, Protocol, ShortCycle
from sandbox_agent.hub.connection import Connection


class Inner(asyncio.Transport):
    """A socket that takes everything and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.ended = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.written))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write_eof(self) -> None:
        self.ended = True

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...


def gathering() -> tuple[Inner, GatheringTransport]:
    inner = Inner()
    return inner, GatheringTransport(inner, asyncio.get_running_loop())


async def next_turn() -> None:
    """Let everything run that was due when this was called."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


def test_what_is_written_in_one_turn_of_the_loop_goes_out_at_once_and_in_order() -> None:
    async def main() -> None:
        inner, outer = gathering()
        outer.write(b"head ")
        outer.write(bytearray(b"and "))
        outer.write_whole(b"body")
        assert inner.written == []
        await next_turn()
        assert inner.written == [b"head and body"]

    asyncio.run(main())


@pytest.mark.requirement("4.slow-bounded")
def test_more_than_64_kib_does_not_wait_for_the_end_of_the_turn() -> None:
    async def main() -> None:
        inner, outer = gathering()
        pieces = [bytes([number]) * 10_000 for number in range(100)]
        for piece in pieces:
            outer.write(piece)
            waiting = outer.get_write_buffer_size() - inner.get_write_buffer_size()
            assert waiting <= GATHERED
        assert inner.get_write_buffer_size() > 900_000
        await next_turn()
        assert b"".join(inner.written) == b"".join(pieces)

    asyncio.run(main())


@pytest.mark.requirement("4.slow-bounded")
def test_what_waits_for_the_end_of_the_turn_counts_as_not_sent() -> None:
    async def main() -> None:
        inner, outer = gathering()
        outer.write_whole(b"12345")
        outer.write(b"678")
        assert inner.get_write_buffer_size() == 5
        assert outer.get_write_buffer_size() == 8
        await next_turn()
        assert inner.get_write_buffer_size() == outer.get_write_buffer_size() == 8

    asyncio.run(main())


def test_closing_writes_what_was_gathered_and_nothing_comes_after() -> None:
    async def main() -> None:
        inner, outer = gathering()
        outer.write(b"last words")
        outer.close()
        assert (inner.written, inner.closed) == ([b"last words"], True)
        outer.write(b"too late")
        await next_turn()
        assert inner.written == [b"last words"]

    asyncio.run(main())


@pytest.mark.requirement("3.answer-early")
def test_a_socket_on_which_somebody_still_sends_is_closed_for_writing_first_and_then_for_good() -> None:
    async def main() -> None:
        inner, timers = Inner(), Timers()
        loop: Any = SimpleNamespace(call_soon=asyncio.get_running_loop().call_soon, call_later=timers.call_later)
        outer = GatheringTransport(inner, loop)
        outer.pause_reading()
        outer.unread = True
        outer.write(b"last words")
        outer.close()
        assert (inner.written, inner.ended, inner.closed) == ([b"last words"], True, False)
        assert outer.is_closing()
        assert inner.is_reading()
        outer.write(b"too late")
        outer.write_whole(b"too late")
        await next_turn()
        assert inner.written == [b"last words"]
        timers.advance()
        assert timers.now == LINGER
        assert inner.closed

    asyncio.run(main())


def test_a_header_that_is_there_twice_is_a_list_of_its_values() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"1"), (b"c", b"")]

    assert by_name(headers) == {b"a": b"1, 3, 1", b"b": b"2", b"c": b""}
    assert by_name(headers[:2]) == {b"a": b"1", b"b": b"2"}


# Sockets that nobody uses


class Timers:
    """An event loop's clock, and the one timer that was set last."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: float | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        self.due, self.callback = self.now + delay, callback
        return callback

    def advance(self) -> None:
        """Go to where the timer is due."""
        assert self.due is not None
        self.now, self.due = self.due, None
        self.callback()


def answered_socket(timers: Timers) -> tuple[Inner, Protocol]:
    """A socket that has just been answered the short way; it may stay unused for five seconds."""
    inner, protocol = Inner(), Protocol.__new__(Protocol)
    for name, value in {"loop": timers, "transport": inner, "_socket": inner, "timeout_keep_alive": 5}.items():
        setattr(protocol, name, value)
    protocol.cycle = protocol._short = ShortCycle()  # type: ignore[assignment]
    protocol.pipeline = deque()
    protocol.server_state = ServerState()
    inner.write_whole = inner.write  # type: ignore[attr-defined]
    protocol._finish(200, [], b"{}")
    return inner, protocol


def test_a_socket_is_closed_when_it_was_not_used_for_the_keep_alive_time() -> None:
    timers = Timers()
    inner, _ = answered_socket(timers)
    assert inner.written
    assert timers.due == 5
    timers.advance()
    assert inner.closed
    assert timers.due is None


@pytest.mark.parametrize("use", ["answered", "in a head", "in a body", "being answered"])
def test_a_socket_that_is_in_use_is_not_closed_until_it_was_unused_for_that_time(use: str) -> None:
    timers = Timers()
    inner, protocol = answered_socket(timers)
    timers.now = 4
    protocol._used_at = 4 if use == "answered" else 0
    protocol._in_head = use == "in a head"
    protocol._waiting = Connection("secret", "c1", "a", 0.0) if use == "in a body" else None
    protocol.cycle.response_complete = use != "being answered"
    timers.advance()
    assert not inner.closed
    assert timers.due is not None

    protocol._in_head, protocol._waiting, protocol.cycle.response_complete = False, None, True
    timers.advance()
    assert timers.now <= 9
    assert inner.closed
