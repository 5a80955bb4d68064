"""Contract, section 4: a reader that does not read holds back no other, costs little, and loses nothing."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.client import Client, run
from tests.support.raw_stream import raw_stream, resident
from tests.support.running import BOUND, Server

MIB = 1 << 20
SMALL = 16 << 10
"""A receive buffer, so that the kernel takes little of what stays unread."""


async def read_to_the_last(client: Client, seen: list[tuple[int, int]], count: int) -> int:
    """Go on by id, as often as it takes; gives how often that was."""
    streams = 0
    async with asyncio.timeout(BOUND):
        while not seen or seen[-1][1] < count - 1:
            after = seen[-1][0] if seen else 0
            async with raw_stream(client, Last_Event_ID=str(after)) as stream:
                streams += 1
                wanted = b'"text":"%d ' % (count - 1)
                while wanted not in stream.body[-(1 << 18) :] and await stream.more():
                    pass
                seen += stream.numbered()
    return streams


@pytest.mark.requirement("4.slow-holds-back-nobody")
@pytest.mark.requirement("4.slow-bounded")
@pytest.mark.requirement("4.slow-resumes")
def test_a_reader_that_stops_reading_during_a_flood_harms_no_other_and_loses_nothing() -> None:
    async def main(server: Server) -> None:
        count, size = 600, 100_000
        async with Client(server) as writer, Client(server) as reader, Client(server) as stalled:
            session = await writer.new_session()
            for client in (reader, stalled):
                await client.result("_sandboxagent/session/attach", {"sessionId": session})
            await writer.prompt(session, [["flood", 20, size]])
            before = resident(server.process.pid)
            async with raw_stream(stalled, receive_buffer=SMALL) as stuck, raw_stream(reader) as stream:
                await stream.until(b"ended")
                turn = asyncio.create_task(writer.prompt(session, [["flood", count, size]]))
                largest = before
                async with asyncio.timeout(BOUND):
                    while b'"text":"%d ' % (count - 1) not in stream.body[-2 * size :]:
                        assert await stream.more(), "the reader that reads is not disconnected"
                        largest = max(largest, resident(server.process.pid))
                assert (await turn)["result"]["stopReason"] == "end_turn"
                assert [number for _, number in stream.numbered()][-count:] == list(range(count))
                assert largest - before < 160 * MIB, f"{(largest - before) / MIB:.0f} MiB"
                # Its own POSTs are answered while it does not read.
                await stalled.result("_sandboxagent/session/pending", {"sessionId": session})
                await stuck.until_abandoned()
                await stuck.to_the_end()
                assert stuck.cut_off
                seen = stuck.numbered()
            assert 0 < len(seen) < 20 + count
            await read_to_the_last(stalled, seen, count)
            assert [number for _, number in seen] == [*range(20), *range(count)]
            assert [id for id, _ in seen] == sorted({id for id, _ in seen})

    with Server("--stall-timeout", "2s") as server:
        run(main(server))


@pytest.mark.requirement("4.slow-bounded")
def test_many_readers_that_do_not_read_share_what_waits_for_them() -> None:
    async def main(server: Server) -> None:
        count, size = 400, 50_000
        async with AsyncExitStack() as stack:
            writer = await stack.enter_async_context(Client(server))
            session = await writer.new_session()
            await writer.prompt(session, [["flood", 100, size]])
            for _ in range(30):
                stalled = await stack.enter_async_context(Client(server))
                await stalled.result("_sandboxagent/session/attach", {"sessionId": session})
                await stack.enter_async_context(raw_stream(stalled, receive_buffer=SMALL))
            before = resident(server.process.pid)
            turn = asyncio.create_task(writer.prompt(session, [["flood", count, size]]))
            largest = before
            while not turn.done():
                await asyncio.wait([turn], timeout=0.01)
                largest = max(largest, resident(server.process.pid))
            # 20 MB were said. Thirty copies of what is waiting would be 240 MiB and more.
            assert largest - before < 150 * MIB, f"{(largest - before) / MIB:.0f} MiB"

    with Server("--replay-bytes", "8MiB", "--stall-timeout", "2s") as server:
        run(main(server))


@pytest.mark.requirement("4.slow-but-steady")
def test_a_reader_that_takes_a_large_event_slowly_but_steadily_gets_it() -> None:
    """Were it disconnected for being slow, it would meet the same event again whenever it resumes."""

    stall = 3

    async def main(server: Server) -> None:
        size, piece = 24 * MIB, 256 << 10
        pause = 1.5 * stall / (size / piece)
        async with Client(server) as client:
            session = await client.new_session()
            async with raw_stream(client, receive_buffer=piece) as stream:
                await stream.until(b"\n\n")
                # What follows is more than may wait for it in memory.
                turn = asyncio.create_task(client.prompt(session, [["line", size], ["flood", 200, 100_000]]))
                read, begun = 0, asyncio.get_running_loop().time()
                async with asyncio.timeout(BOUND):
                    while read < size:
                        data = await stream._reader.read(piece)
                        assert data, f"disconnected after {read} bytes"
                        read += len(data)
                        # A slow network, not a wait for something.
                        await asyncio.sleep(pause)
                # Longer than a reader may take nothing at all.
                assert asyncio.get_running_loop().time() - begun > stall
                await turn

    with Server("--stall-timeout", f"{stall}s", "--no-persist") as server:
        run(main(server))


@pytest.mark.requirement("4.replay-from-disk")
@pytest.mark.requirement("4.slow-resumes")
def test_a_replay_of_more_than_memory_holds_is_complete_while_more_is_said() -> None:
    async def main(server: Server) -> None:
        count, size = 3_000, 500
        async with Client(server) as client, Client(server) as other:
            session, noise = await client.new_session(), await other.new_session()
            await client.prompt(session, [["flood", count, size]])
            more = asyncio.create_task(client.prompt(session, [["flood", count, size]]))
            beside = asyncio.create_task(other.prompt(noise, [["flood", count, size]]))
            seen: list[tuple[int, int]] = []
            async with raw_stream(client) as stream:
                async with asyncio.timeout(BOUND):
                    while stream.body.count(b'"state":"ended"') < 2 and await stream.more():
                        pass
                seen = stream.numbered()
            assert [number for _, number in seen] == [*range(count), *range(count)][: len(seen)]
            assert len(seen) >= count
            while len(seen) < 2 * count:
                async with raw_stream(client, Last_Event_ID=str(seen[-1][0])) as stream:
                    await stream.until(b'"state":"ended"')
                    seen += stream.numbered()
            assert [number for _, number in seen] == [*range(count), *range(count)]
            assert [id for id, _ in seen] == sorted({id for id, _ in seen})
            await asyncio.gather(more, beside)

    with Server("--replay-bytes", "64KiB", "--stream-buffer", "32KiB") as server:
        run(main(server))
