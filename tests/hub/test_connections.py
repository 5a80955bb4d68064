"""Connections: what each client sees and answers; all that are open."""

import json
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandbox_agent.bus import subjects
from sandbox_agent.envelope import parse
from sandbox_agent.errors import AlreadyAnswered, NobodyAsked
from sandbox_agent.hub.connections import REMEMBERED_BYTES, REMEMBERED_REQUESTS, Connection, Guest, Settled
from sandbox_agent.hub.pending import Outcome, PendingRequest, PendingRequests
from sandbox_agent.hub.session import Replay
from sandbox_agent.log.event import (
    Chunk,
    Direction,
    agent_channel,
    attachment_channel,
    connection_channel,
    session_channel,
)
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


@dataclass(frozen=True)
class FakeProcess:
    key: str


@dataclass
class FakeStream:
    pushed: list[Chunk] = field(default_factory=list)

    def push(self, chunk: Chunk) -> None:
        self.pushed.append(chunk)

    def close(self, reason: str) -> None: ...

    async def caught_up(self, position: int) -> None: ...


def connection(tag: str = "c1") -> Connection:
    return Connection(f"secret of {tag}", tag, "a", 0.0)


def request(key: int, id: str = "0", process: str = "p1", title: str = "") -> PendingRequest:
    params = json.dumps({"toolCall": {"title": title}} if title else {})
    line = f'{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{params}}}'
    return PendingRequest(key, parse(line.encode()), FakeProcess(process), None, 0.0)


def chunk(
    position: int,
    channel: str,
    session: str | None = None,
    exclude: str = "",
    request: int | None = None,
    count: int = 1,
) -> Chunk:
    lines = [b'{"jsonrpc":"2.0","id":0,"method":"m"}'] * count
    return Chunk(position, lines, Direction.FROM_AGENT, session, channel, 0.0, exclude, True, request)


# What it sees


def test_it_sees_a_session_only_while_it_is_attached() -> None:
    own = connection()
    own.attach("s", 10)
    own.detach("s", 20)
    own.attach("s", 30)
    seen = [at for at in (10, 11, 20, 21, 30, 31) if own.sees(chunk(at, session_channel("s"), "s"))]
    assert seen == [11, 20, 31]
    assert not own.sees(chunk(15, session_channel("other"), "other"))


def test_detaching_and_attaching_with_nothing_in_between_leaves_one_window() -> None:
    own = connection()
    own.attach("s", 10)
    for _ in range(1000):
        own.detach("s", 20)
        own.attach("s", 20)
    assert len(own.windows["s"]) == 1
    assert own.attached("s")
    own.detach("s", 30)
    own.attach("s", 40)
    seen = [at for at in (10, 11, 20, 21, 30, 31, 41) if own.sees(chunk(at, session_channel("s"), "s"))]
    assert seen == [11, 20, 21, 30, 41]


def test_it_is_attached_from_attach_to_detach() -> None:
    own = connection()
    states = [own.attached("s")]
    own.attach("s", 1)
    states.append(own.attached("s"))
    own.detach("s", 2)
    states.append(own.attached("s"))
    assert states == [False, True, False]


def test_it_sees_what_is_meant_for_it_alone_also_of_a_session_it_has_left() -> None:
    own = connection("c1")
    assert own.sees(chunk(5, connection_channel("c1"), "s"))
    assert own.sees(chunk(5, connection_channel("c1")))
    assert not own.sees(chunk(5, connection_channel("c2")))


def test_it_sees_what_an_agent_says_since_it_met_it() -> None:
    own = connection()
    own.agents["a"] = 10
    assert own.sees(chunk(11, agent_channel("a")))
    assert not own.sees(chunk(10, agent_channel("a")))
    assert not own.sees(chunk(11, agent_channel("b")))


def test_it_does_not_see_what_is_for_the_others() -> None:
    own, other = connection("c1"), connection("c2")
    hidden = chunk(5, session_channel("s"), "s", exclude="c1")
    for one in (own, other):
        one.attach("s", 0)
        one.stream = FakeStream()
        one.appended(hidden)
    assert [own.sees(hidden), other.sees(hidden)] == [False, True]
    assert (own.last_event, other.last_event) == (0, 5)
    assert own.stream == FakeStream([])
    assert other.stream == FakeStream([hidden])


def test_its_last_event_is_the_last_of_a_chunk() -> None:
    own = connection()
    own.appended(chunk(5, session_channel("s"), "s", count=3))
    assert own.last_event == 7


def test_it_follows_its_own_channel_its_agents_and_its_sessions_past_and_present() -> None:
    own = connection("c1")
    own.agents["a"] = 0
    own.attach("s", 1)
    own.detach("s", 2)
    assert set(own.channels()) == {connection_channel("c1"), agent_channel("a"), session_channel("s")}


@pytest.mark.parametrize(
    ("trims", "after", "missed"),
    [
        ({}, 0, False),
        ({"session:s": 15}, 0, True),
        ({"session:s": 15}, 15, False),
        ({"session:s": 10}, 0, False),  # all of it before it was attached
        ({"session:s": 25}, 20, False),  # it had left by then
        ({"session:other": 99}, 0, False),
        ({"connection:c1": 3}, 2, True),
        ({"connection:c2": 3}, 2, False),
        ({"agent:a": 6}, 0, True),
        ({"agent:a": 5}, 0, False),  # before it met the agent
        ({"agent:a": 6}, 6, False),
    ],
)
def test_it_knows_whether_something_it_should_have_seen_is_gone(
    trims: dict[str, int], after: int, missed: bool
) -> None:
    own = connection("c1")
    own.agents["a"] = 5
    own.attach("s", 10)
    own.detach("s", 20)
    assert bool(own.lost(trims, after)) is missed


# Ids


@pytest.mark.parametrize("id", ["0", '"0"', "1.0", "-1", '"5f0c7c1e-9a40-4b39-8f7d-d1f4a7e1c1aa"', '""'])
def test_a_free_id_is_used_as_it_is(id: str) -> None:
    own, pending = connection(), request(7, id)
    assert own.open_request(pending) == id.encode()
    assert own.request(id.encode()) is pending
    assert own.knows(pending)


def test_a_request_keeps_its_id_however_often_it_is_delivered() -> None:
    own, first, second = connection(), request(1), request(2)
    ids = [own.open_request(first), own.open_request(second)]
    assert [own.open_request(first), own.open_request(second)] == ids
    assert ids[0] != ids[1]


def test_an_id_that_is_taken_becomes_a_string_of_our_own() -> None:
    own = connection()
    own.open_request(request(1, process="p1"))
    id = own.open_request(request(2, process="p2"))
    assert isinstance(json.loads(id), str)


def test_an_id_stays_taken_after_its_request_is_settled() -> None:
    table, own, old, new = PendingRequests(), connection(), request(1), request(2)
    table.ask(old)
    own.open_request(old)
    table.settle(old, Outcome.REJECTED, "c2")
    own.settle(old)

    assert own.open_request(new) != b"0"

    with pytest.raises(AlreadyAnswered) as refused:
        own.request(b"0")
    assert refused.value.fields["outcome"] == "rejected"


def test_an_id_stays_taken_after_it_has_been_forgotten() -> None:
    own, table = connection(), PendingRequests()
    given: set[bytes] = set()
    for key in range(REMEMBERED_REQUESTS + 10):
        pending = request(key, str(key))
        table.ask(pending)
        given.add(own.open_request(pending))
        table.settle(pending, Outcome.ANSWERED, "c1")
        own.settle(pending)

    for key in range(5):
        assert own.open_request(request(1_000_000 + key, str(key))) not in given


def test_what_is_open_is_never_forgotten() -> None:
    own, table, kept = connection(), PendingRequests(), request(0, '"kept"')
    own.open_request(kept)
    for key in range(1, REMEMBERED_REQUESTS + 10):
        pending = request(key, str(key))
        table.ask(pending)
        own.open_request(pending)
        table.settle(pending, Outcome.ANSWERED, "c1")
        own.settle(pending)
    assert own.request(b'"kept"') is kept


def test_settled_requests_are_remembered_in_bounded_bytes_their_outcomes_longest() -> None:
    own, table = connection(), PendingRequests()
    for key in range(1, 3000):
        pending = request(key, str(key), title="x" * 1000)
        table.ask(pending)
        own.open_request(pending)
        table.settle(pending, Outcome.REJECTED, "c1")
        own.settle(pending)

    remembered = [settled.asked.line for settled in own._settled.values() if settled.asked is not None]
    assert 0 < sum(map(len, remembered)) <= REMEMBERED_BYTES
    assert len(own._settled) == 2999
    assert all(isinstance(settled, Settled) for settled in own._settled.values()), "no session, no process"
    with pytest.raises(AlreadyAnswered) as refused:
        own.request(b"1")
    assert refused.value.fields["outcome"] == "rejected"


def test_ids_of_settled_requests_take_bounded_bytes_however_long_an_agent_makes_them() -> None:
    own, table = connection(), PendingRequests()
    for key in range(1, 30):
        pending = request(key, json.dumps(f"{key}" + "x" * (REMEMBERED_BYTES // 10)))
        table.ask(pending)
        own.open_request(pending)
        table.settle(pending, Outcome.ANSWERED, "c1")
        own.settle(pending)
    assert sum(map(len, own._settled)) <= REMEMBERED_BYTES
    assert own._settled.keys() == set(own._ids.values())


def test_a_settled_request_whose_question_is_forgotten_keeps_its_id_on_replay() -> None:
    own, table = connection(), PendingRequests()
    first, second = request(1, "0"), request(2, "0", process="p2")
    for pending in (first, second):
        table.ask(pending)
        own.open_request(pending)
        table.settle(pending, Outcome.ANSWERED, "c1")
        own.settle(pending)
    asked = Chunk(2, [second.request.line], Direction.FROM_AGENT, None, "c", 0.0, request=2)
    shown = own.frames(asked)
    own._forget_question(own._settled[b"0"])
    own._forget_question(own._settled[own.open_request(second)])
    assert own.open_request(second) in shown
    assert own.frames(asked) == shown


def test_an_id_nobody_asked_under_is_refused() -> None:
    own = connection()
    own.open_request(request(1, "0"))
    for id in (b"1", b'"0"', b"0.0"):
        with pytest.raises(NobodyAsked):
            own.request(id)


def test_a_request_is_shown_under_the_id_it_has_here() -> None:
    own, first, second = connection(), request(5), request(6)
    own.open_request(first)
    id = own.open_request(second)
    shown = own.frames(chunk(6, session_channel("s"), "s", request=6))
    line = b'{"jsonrpc":"2.0","id":%b,"method":"session/request_permission","params":{}}' % id
    assert shown == b"event: message\nid: 6\ndata: %b\n\n" % line
    assert b'"id":0' in own.frames(chunk(5, session_channel("s"), "s", request=5))
    assert own.frames(chunk(8, session_channel("s"), "s")) == chunk(8, session_channel("s"), "s").frames()


IDS = ['"a"', '"\\u0061"', "0", '"0"', "0.0", "1", '"1"', *(f'"request-{key}"' for key in range(1, 8))]


class IdMap(RuleBasedStateMachine):
    """Whatever agents ask, under any ids, of any clients, in any order."""

    @initialize()
    def begin(self) -> None:
        self.table = PendingRequests()
        self.connections = [connection("c1"), connection("c2")]
        self.keys = count(1)
        self.asked: list[PendingRequest] = []
        self.given: dict[str, dict[object, PendingRequest]] = {"c1": {}, "c2": {}}
        """For each connection: every id it was ever given, as its client reads it, and what for."""

    @rule(id=st.sampled_from(IDS), process=st.sampled_from(["p1", "p2"]), to=st.sets(st.sampled_from([0, 1])))
    def ask(self, id: str, process: str, to: set[int]) -> None:
        pending = request(next(self.keys), id, process)
        self.asked.append(pending)
        self.table.ask(pending)
        for index in to:
            self.deliver_to(self.connections[index], pending)

    @rule(data=st.data(), to=st.sampled_from([0, 1]))
    def deliver(self, data: st.DataObject, to: int) -> None:
        opened = [pending for pending in self.asked if pending.open]
        if opened:
            self.deliver_to(self.connections[to], data.draw(st.sampled_from(opened)))

    def deliver_to(self, own: Connection, pending: PendingRequest) -> None:
        known = own.knows(pending)
        id = as_read(own.open_request(pending))
        given = self.given[own.tag]
        if known:
            assert given[id] is pending, "its id has changed"
        else:
            assert id not in given, "the id was used before"
            given[id] = pending

    @rule(data=st.data(), by=st.sampled_from([0, 1]))
    def answer(self, data: st.DataObject, by: int) -> None:
        own = self.connections[by]
        text = data.draw(st.sampled_from([*IDS, *(as_written(id) for id in self.given[own.tag])]))
        expected = self.given[own.tag].get(as_read(text.encode()))
        if expected is None:
            with pytest.raises(NobodyAsked):
                own.request(text.encode())
        elif not expected.open:
            with pytest.raises(AlreadyAnswered) as refused:
                own.request(text.encode())
            assert refused.value.fields["outcome"] == expected.outcome
        else:
            others = [pending for pending in self.asked if pending.open and pending is not expected]
            pending = own.request(text.encode())
            assert pending is expected
            self.table.settle(pending, Outcome.ANSWERED, own.tag)
            for one in self.connections:
                one.settle(pending)
            assert all(other.open for other in others)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        opened = [pending for pending in self.asked if pending.open]
        if opened:
            pending = data.draw(st.sampled_from(opened))
            self.table.settle(pending, Outcome.CANCELLED, None)
            for one in self.connections:
                one.settle(pending)

    @rule(process=st.sampled_from(["p1", "p2"]), id=st.sampled_from(IDS))
    def find(self, process: str, id: str) -> None:
        found = self.table.find(FakeProcess(process), id.encode())
        mine = [p for p in self.asked if p.process.key == process and as_read(p.agent_id) == as_read(id.encode())]
        assert found is None or (found.open and found in mine)
        if [p for p in mine if p.open] == mine[-1:] != []:
            assert found is mine[-1]

    @invariant()
    def every_open_request_has_exactly_one_id(self) -> None:
        for own in getattr(self, "connections", []):
            given = self.given[own.tag]
            opened = [pending for pending in given.values() if pending.open]
            assert len(opened) == len({pending.key for pending in opened})
            for id, pending in given.items():
                if pending.open:
                    assert own.request(as_written(id).encode()) is pending


def as_read(id: bytes) -> object:
    """An id as a client reads it: a string, or a number by its text, since 1 and 1.0 differ."""
    return id.decode() if id[:1] != b'"' else json.loads(id).encode()


def as_written(id: object) -> str:
    """An id as a client writes it."""
    return json.dumps(id.decode()) if isinstance(id, bytes) else str(id)


TestIdMap = IdMap.TestCase
TestIdMap.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
