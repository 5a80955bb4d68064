"""A socket's transport: what is gathered before it is written, when it is read, and how it is closed."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxagent.server.http.sockets import LINGER_TIMEOUT
from sandboxagent.server.http.transport import MAX_GATHERED_BYTES, BufferedTransport
from tests.support.in_process import PretendedTransport


class Untaken(PretendedTransport):
    """A socket whose other side takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = False


def gathering() -> tuple[Untaken, BufferedTransport]:
    inner = Untaken()
    return inner, BufferedTransport(inner, asyncio.get_running_loop(), lambda: None)


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
        outer.write(b"body")
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
            assert waiting <= MAX_GATHERED_BYTES
        assert inner.get_write_buffer_size() > 900_000
        await next_turn()
        assert b"".join(inner.written) == b"".join(pieces)

    asyncio.run(main())


@pytest.mark.requirement("4.slow-bounded")
def test_what_waits_for_the_end_of_the_turn_counts_as_not_sent() -> None:
    async def main() -> None:
        inner, outer = gathering()
        outer.write(b"12345")
        await next_turn()
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


class Timers:
    """An event loop's timer that goes off when a test says so."""

    def __init__(self) -> None:
        self.delay = 0.0

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        self.delay, self.go_off = delay, callback
        return callback


@pytest.mark.requirement("3.answer-early")
def test_socket_with_unread_data_is_closed_for_writing_first() -> None:
    """The socket is closed for good after a while."""

    async def main() -> None:
        inner, timers = Untaken(), Timers()
        loop: Any = SimpleNamespace(call_soon=asyncio.get_running_loop().call_soon, call_later=timers.call_later)
        outer = BufferedTransport(inner, loop, lambda: None)
        outer.pause_reading()
        outer.set_backlogged(True)
        outer.unread = True
        outer.write(b"last words")
        outer.close()
        assert (inner.written, inner.ended, inner.closed) == ([b"last words"], True, False)
        assert outer.is_closing()
        assert inner.is_reading()
        outer.write(b"too late")
        await next_turn()
        assert inner.written == [b"last words"]
        assert timers.delay == LINGER_TIMEOUT
        timers.go_off()
        assert inner.closed

    asyncio.run(main())


def test_it_reads_only_while_the_request_takes_more_and_nothing_is_held() -> None:
    async def main() -> None:
        inner, outer = gathering()
        for paused in (True, False):
            for held in (True, False):
                (outer.pause_reading if paused else outer.resume_reading)()
                outer.set_backlogged(held)
                assert inner.is_reading() is not (paused or held)
                assert outer.is_reading() is inner.is_reading()

    asyncio.run(main())


def test_a_client_is_admitted_once_and_not_after_its_socket_is_gone() -> None:
    async def main() -> None:
        admitted: list[str] = []
        first, second = (
            BufferedTransport(Untaken(), asyncio.get_running_loop(), lambda: admitted.append("yes")) for _ in range(2)
        )
        first.mark_authenticated()
        first.mark_authenticated()
        second.closed()
        second.mark_authenticated()
        assert admitted == ["yes"]

    asyncio.run(main())
