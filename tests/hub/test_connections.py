"""Guests: clients of gateways, as a node keeps them."""

from sandbox_agent.bus import subjects
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.connections import Guest
from sandbox_agent.hub.session import Replay
from sandbox_agent.log.event import Chunk, attachment_channel
from sandbox_agent.log.wire import subject_of
from tests.support.world import World, run, world

TAG = "g0123456789abcdef"
LINE = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}'


def open_guest(own: World) -> Connection:
    return own.hub.connections.open("a", {}, "its id here", Guest(TAG, "n1"))


class Heard:
    """What was appended to a channel."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def appended(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def test_a_guest_that_its_node_forgets_stays_attached_at_its_gateways() -> None:
    async def main() -> None:
        async with world() as own:
            guest, heard = open_guest(own), Heard()
            own.log.follow(attachment_channel(TAG), heard)
            own.hub.attach(guest, own.session)
            own.hub.close_connection(guest, "it was not used")
            assert [line for chunk in heard.chunks for line in chunk.lines] == [b'{"sessionId":"s","attached":true}']
            again = open_guest(own)
            own.hub.attach(again, own.session)
            own.hub.detach(again, own.session)
            assert len(heard.chunks) == 3

    run(main())


def test_a_guest_that_loads_a_session_which_its_node_never_saw_gets_the_past_and_so_does_the_history() -> None:
    async def main() -> None:
        async with world() as own:
            guest, heard = open_guest(own), Heard()
            own.log.follow(guest.channel, heard)
            own.session.replay = Replay(guest.channel, history=True)
            before = own.session.event_count
            own.hub.record_updates(own.session, [LINE])
            [chunk] = heard.chunks
            assert (chunk.lines, chunk.session_id) == ([LINE], "s")
            assert subject_of(chunk, "n1") == subjects.connection_events(TAG, "n1")
            assert own.session.event_count == before + 1
            await own.log.committed(own.log.position)
            kept = await own.log.history("s", 0, own.log.position + 1, 100)
            assert [subject_of(each, "n1") for each in kept if each.lines == [LINE]] == [subjects.session_events("s")]

    run(main())
