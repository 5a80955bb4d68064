"""What an agent writes in one go, and streams get together: what `Log.hold` and `let_go` are for."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandboxagent.server.http.stream import MAX_JOINED_BYTES, StreamLimits
from sandboxagent.server.log.event import Direction, session_channel
from sandboxagent.server.log.log import Limits
from tests.support import sse
from tests.support.client import run
from tests.support.message_path import message_path
from tests.support.streams import Client, StreamWorld, open_client


@pytest.fixture
def world() -> Iterator[StreamWorld]:
    built = StreamWorld(Limits(), StreamLimits())
    yield built
    built.close()


class Socket:
    """What a stream writes to while its writer sleeps."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.takes_more = True

    def write(self, data: bytes) -> bool:
        if self.takes_more:
            self.writes.append(positions(data))
        return self.takes_more


def positions(data: bytes) -> list[int]:
    return [int(frame.id) for frame in sse.parse(data)[0]]


async def listen(client: Client) -> Socket:
    """A socket of a client that keeps up."""
    await client.connect(0)
    assert client.stream is not None
    await client.stream.next()
    client.reading = asyncio.ensure_future(client.stream.next())
    socket = Socket()
    client.stream.direct = socket.write
    for _ in range(3):
        await asyncio.sleep(0)
    return socket


def say(world: StreamWorld, text: bytes = b"{}", *, is_request: bool = False) -> int:
    return world.log.append(
        [text], Direction.FROM_AGENT, "s", session_channel("s"), is_request=is_request, history=True
    ).last


def test_what_is_said_in_one_go_is_one_write_for_each_reader(world: StreamWorld) -> None:
    one, other = open_client(world, "s"), open_client(world, "s")

    async def step() -> None:
        sockets = [await listen(one), await listen(other)]
        assert world.log.hold(join=True)
        said = [say(world), say(world), say(world)]
        assert [socket.writes for socket in sockets] == [[], []]
        world.log.let_go(at_once=False)
        assert [socket.writes for socket in sockets] == [[said], [said]]
        after = say(world)
        assert [socket.writes for socket in sockets] == [[said, [after]]] * 2, "nothing is held any more"

    world.run(step())


def test_one_line_is_written_at_once(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        socket = await listen(client)
        world.log.hold(join=False)
        said = say(world)
        assert socket.writes == [[said]]
        world.log.let_go(at_once=False)

    world.run(step())


def test_what_is_large_is_written_by_itself_behind_what_came_before_it(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        socket = await listen(client)
        world.log.hold(join=True)
        said = [say(world), say(world), say(world, b'"%b"' % (b"x" * MAX_JOINED_BYTES)), say(world)]
        world.log.let_go(at_once=False)
        assert socket.writes == [said[:2], said[2:3], said[3:]]

    world.run(step())


def test_a_reader_whose_socket_is_full_gets_what_was_held_from_its_writer(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        socket = await listen(client)
        socket.takes_more = False
        world.log.hold(join=True)
        said = [say(world), say(world, b'"%b"' % (b"x" * MAX_JOINED_BYTES)), say(world)]
        world.log.let_go(at_once=False)
        assert client.reading is not None
        assert positions(await client.reading or b"") == said

    world.run(step())


def test_a_question_among_what_was_held_keeps_its_place(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        socket = await listen(client)
        world.log.hold(join=True)
        said = [say(world), say(world, b'{"id":1}', is_request=True), say(world)]
        world.log.let_go(at_once=False)
        assert socket.writes == []
        assert client.reading is not None
        assert positions(await client.reading or b"") == said

    world.run(step())


def test_a_reader_that_falls_behind_while_it_waits_loses_nothing(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await listen(client)
        assert client.stream is not None
        world.log.hold(join=True)
        said = [say(world), say(world)]
        client.stream.resync()
        said.append(say(world))
        world.log.let_go(at_once=False)
        assert client.reading is not None
        assert positions(await client.reading or b"") == said

    world.run(step())


def test_a_socket_that_fails_keeps_nothing_from_other_readers_nor_from_its_own(world: StreamWorld) -> None:
    broken, other = open_client(world, "s"), open_client(world, "s")

    def fail(data: bytes) -> bool:
        raise RuntimeError("no such socket")

    async def step() -> None:
        await listen(broken)
        assert broken.stream is not None
        broken.stream.direct = fail
        socket = await listen(other)
        world.log.hold(join=True)
        said = [say(world), say(world)]
        world.log.let_go(at_once=False)
        assert socket.writes == [said]
        assert broken.reading is not None
        assert positions(await broken.reading or b"") == said

    world.run(step())


def test_a_producer_that_was_paused_meanwhile_goes_on() -> None:
    world = StreamWorld(Limits(), StreamLimits(buffer=2_000))
    client = open_client(world, "s")

    async def step() -> None:
        await listen(client)
        assert client.stream is not None
        resumed: list[int] = []
        world.log.hold(join=True)
        say(world, b'"%b"' % (b"x" * 600))
        assert client.stream.apply_backpressure(partial(resumed.append, 1))
        world.log.let_go(at_once=False)
        assert resumed == [1]

    world.run(step())
    world.close()


def test_the_last_update_of_a_turn_and_its_end_are_one_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with message_path(tmp_path) as path:
            (client,) = path.clients
            # The first event is its writer's, which then sleeps.
            for _ in range(2):
                await client.take_turn()
            assert b"agent_message_chunk" in client.heard
            assert b'"state":"ended"' in client.heard

    run(main())
