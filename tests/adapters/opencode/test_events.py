"""Events on their way to readers: in order, bounded, and none at the cost of another."""

import asyncio
import json
from typing import Any

from sandboxagent.adapters.opencode.events import EventBus, EventReader
from tests.support.world import run

Json = dict[str, Any]


class Socket:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def make_bus(limit: int = 1 << 20) -> EventBus:
    return EventBus(limit, lambda directory: f"project of {directory}", lambda: 1_794_722_412.634)


async def read(reader: EventReader) -> list[Json]:
    """All that waits."""
    data = await reader.next()
    assert data
    return [json.loads(frame.removeprefix(b"data: ")) for frame in data.split(b"\n\n") if frame]


def test_a_reader_is_greeted_and_gets_events_in_their_order() -> None:
    async def main() -> None:
        bus = make_bus()
        reader = bus.open(Socket(), wrapped=False, directory=None)
        for number in range(3):
            bus.publish("/w", "session.idle", {"number": number})

        greeting, *events = await read(reader)
        assert greeting["type"] == "server.connected"
        assert [each["properties"]["number"] for each in events] == [0, 1, 2]
        ids = [each["id"] for each in (greeting, *events)]
        assert ids == sorted(set(ids))

    run(main())


def test_the_stream_of_everything_says_whose_an_event_is() -> None:
    async def main() -> None:
        bus = make_bus()
        wrapped, bare = (bus.open(Socket(), wrapped=each, directory=None) for each in (True, False))
        bus.publish("/w", "session.idle", {})

        greeting, event = await read(wrapped)
        assert set(greeting) == {"payload"}
        assert (event["directory"], event["project"]) == ("/w", "project of /w")
        assert event["payload"] == (await read(bare))[1]

    run(main())


def test_a_reader_of_one_directory_gets_nothing_of_another() -> None:
    async def main() -> None:
        bus = make_bus()
        reader = bus.open(Socket(), wrapped=False, directory="/w")
        bus.publish("/v", "session.idle", {"of": "/v"})
        bus.publish("/w", "session.idle", {"of": "/w"})

        _, *events = await read(reader)
        assert [each["properties"]["of"] for each in events] == ["/w"]

    run(main())


def test_refresh_makes_programs_reload_what_they_read_at_start() -> None:
    async def main() -> None:
        bus = make_bus()
        wrapped, bare = (bus.open(Socket(), wrapped=each, directory=None) for each in (True, False))
        bus.refresh()

        _, *told = await read(wrapped)
        assert [each["payload"]["type"] for each in told] == ["catalog.updated", "server.instance.disposed"]
        _, *told = await read(bare)
        assert [each["type"] for each in told] == ["catalog.updated"]

    run(main())


def test_a_reader_that_takes_nothing_is_cut_off_and_no_other_is() -> None:
    async def main() -> None:
        bus, sockets = make_bus(limit=10_000), (Socket(), Socket())
        slow, quick = (bus.open(socket, wrapped=False, directory=None) for socket in sockets)
        for _ in range(100):
            bus.publish("/w", "message.part.delta", {"delta": "x" * 1000})
            assert await read(quick)

        assert [socket.aborted for socket in sockets] == [True, False]
        assert await slow.next() is None
        bus.forget(slow)
        bus.publish("/w", "session.idle", {})
        assert (await read(quick))[-1]["type"] == "session.idle"

    run(main())


def test_what_was_published_is_flushed_once_it_is_written() -> None:
    async def main() -> None:
        bus = make_bus()
        reader = bus.open(Socket(), wrapped=False, directory=None)
        await read(reader)
        bus.publish("/w", "session.idle", {})
        flushed = asyncio.create_task(bus.flushed())
        await asyncio.sleep(0)
        await read(reader)
        await asyncio.sleep(0)
        assert not flushed.done()

        # To ask for more is to have written what was there.
        more = asyncio.create_task(reader.next())
        await flushed
        bus.close()
        assert await more is None

    run(main())


def test_no_one_waits_long_for_a_reader_that_takes_nothing() -> None:
    async def main() -> None:
        bus = make_bus()
        reader = bus.open(Socket(), wrapped=False, directory=None)
        await read(reader)
        bus.publish("/w", "session.idle", {})

        # It ends, although nothing is ever written; afterwards it does not even begin to wait.
        await bus.flushed()
        await bus.flushed()

    run(main())


def test_a_reader_that_leaves_lets_go_of_those_who_wait_for_it() -> None:
    async def main() -> None:
        bus = make_bus()
        reader = bus.open(Socket(), wrapped=False, directory=None)
        flushed = asyncio.create_task(bus.flushed())
        await asyncio.sleep(0)
        bus.forget(reader)

        await flushed
        assert not bus.read

    run(main())


def test_a_server_that_stops_ends_its_streams_and_new_ones_at_once() -> None:
    async def main() -> None:
        bus = make_bus()
        reader = bus.open(Socket(), wrapped=False, directory=None)
        await read(reader)
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        bus.close()

        assert await waiting is None
        late = bus.open(Socket(), wrapped=False, directory=None)
        assert (await read(late))[0]["type"] == "server.connected"
        assert await late.next() is None

    run(main())
