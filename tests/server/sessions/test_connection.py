"""Connections: what each client sees and answers; all that are open."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.records import subject_of
from sandboxagent.protocol.envelope import parse
from sandboxagent.protocol.errors import AlreadyAnswered, NobodyAsked
from sandboxagent.protocol.request_ids import RequestIds
from sandboxagent.server.log.event import (
    Chunk,
    Direction,
    agent_channel,
    attachment_channel,
    connection_channel,
    session_channel,
)
from sandboxagent.server.sessions.connection import REMEMBERED_WINDOWS, Connection
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.pending import (
    MAX_REMEMBERED_BYTES,
    MAX_REMEMBERED_REQUESTS,
    Outcome,
    PendingRequest,
    PendingRequests,
    Settled,
)
from sandboxagent.server.sessions.session import Replay, Session, SessionFacts
from tests.support.world import World, run, world

TAG = "g0123456789abcdef"
LINE = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}'


def open_guest(own: World) -> Connection:
    return own.hub.connections.open("a", {}, "its id here", TAG)


class Heard:
    """What was appended to a channel."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def appended(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def test_a_guest_that_its_node_forgets_stays_attached_at_its_gateways() -> None:
    async def main() -> None:
        async with world() as own:
            remote_tag, heard = open_guest(own), Heard()
            own.log.follow(attachment_channel(TAG), heard)
            own.hub.attach(remote_tag, own.session)
            own.hub.close_connection(remote_tag, "it was not used")
            assert [line for chunk in heard.chunks for line in chunk.lines] == [b'{"sessionId":"s","attached":true}']
            again = open_guest(own)
            own.hub.attach(again, own.session)
            own.hub.detach(again, own.session)
            assert len(heard.chunks) == 3

    run(main())


def test_replay_of_a_session_new_to_its_node_reaches_guest_and_history() -> None:
    async def main() -> None:
        async with world() as own:
            remote_tag, heard = open_guest(own), Heard()
            own.log.follow(remote_tag.channel, heard)
            own.session.replay = Replay(remote_tag.channel, history=True)
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

    async def wait_sent(self, position: int) -> None: ...


def connection(tag: str = "c1", pending: PendingRequests | None = None) -> Connection:
    return Connection(f"secret of {tag}", tag, "a", 0.0, pending=pending)


def session(id: str) -> Session:
    return Session(SessionFacts(session_id=id, agent_session_id=id, agent="a", cwd="/", created_at=0, updated_at=0))


def ask(
    table: PendingRequests,
    key: int,
    id: str = "0",
    process: str = "p1",
    title: str = "",
    of: Iterable[Connection] = (),
    session: Session | None = None,
) -> PendingRequest:
    """An agent's request, as connections are asked it."""
    params = json.dumps({"toolCall": {"title": title}} if title else {})
    line = f'{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{params}}}'
    pending = PendingRequest(key, table.ids.make(key), parse(line.encode()), FakeProcess(process), session, 0.0)
    pending.asked |= {each.tag for each in of}
    table.ask(pending)
    return pending


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


def test_a_request_has_one_id_for_all_and_the_agents_own_is_nobodys() -> None:
    table = PendingRequests(RequestIds(run="r"))
    one, two = connection("c1", table), connection("c2", table)
    pending = ask(table, 7, "0", of=(one, two))
    assert pending.id == b'"rq_r.7"'
    assert one.request(pending.id) is two.request(pending.id) is pending
    for id in (b"0", b'"0"', b'"rq_r.07"', b'"rq_r.7.7"', b'"rq_other.7"', b'"rq_n.r.7"', b"7", b"null"):
        with pytest.raises(NobodyAsked):
            one.request(id)
    assert one.request(b'"\\u0072q_r.7"') is pending, "spelled otherwise, it is the same id"


def test_who_was_not_asked_cannot_answer() -> None:
    table = PendingRequests(RequestIds())
    one, other = connection("c1", table), connection("c2", table)
    pending = ask(table, 1, of=(one,))
    with pytest.raises(NobodyAsked):
        other.request(pending.id)
    table.settle(pending, Outcome.ANSWERED, "c1")
    with pytest.raises(NobodyAsked):
        other.request(pending.id)


def test_settled_request_is_known_to_asked_and_later_connections() -> None:
    table, of = PendingRequests(RequestIds()), session("s")
    one, later = connection("c1", table), connection("c2", table)
    pending = ask(table, 1, of=(one,), session=of)
    table.settle(pending, Outcome.REJECTED, "c1")
    later.attach("s", 5)
    for own in (one, later):
        with pytest.raises(AlreadyAnswered) as refused:
            own.request(pending.id)
        assert refused.value.fields["outcome"] == "rejected"


def test_a_connection_that_is_gone_is_not_kept_with_what_it_was_asked() -> None:
    async def main() -> None:
        async with world(session="s") as own:
            before = own.hub.connections.open("a")
            own.hub.attach(before, own.session)
            own.asks("q", "session/request_permission", sessionId="s", options=[])
            [pending] = own.hub.pending.of_session(own.session)
            own.hub.close_connection(before, "it was not used")
            assert before.tag not in pending.asked

    run(main())


def test_what_is_open_is_never_forgotten() -> None:
    table = PendingRequests(RequestIds())
    own = connection("c1", table)
    kept, first = ask(table, 1, of=(own,)), ask(table, 2, of=(own,))
    table.settle(first, Outcome.ANSWERED, "c1")
    for key in range(3, MAX_REMEMBERED_REQUESTS + 10):
        table.settle(ask(table, key, of=(own,)), Outcome.ANSWERED, "c1")
    assert own.request(kept.id) is kept
    with pytest.raises(NobodyAsked):
        own.request(first.id)


def test_settled_requests_are_remembered_in_bounded_bytes_their_outcomes_longest() -> None:
    table = PendingRequests(RequestIds())
    own, title, number = connection("c1", table), "x" * 10_000, 2 * MAX_REMEMBERED_BYTES // 10_000
    for key in range(1, number):
        table.settle(ask(table, key, title=title, of=(own,)), Outcome.REJECTED, "c1")

    known = [table.find_asked(key) for key in range(1, number)]
    settled = [each for each in known if isinstance(each, Settled)]
    assert len(settled) == number - 1, "no session, no process"
    assert 0 < sum(len(each.request.line) for each in settled if each.request is not None) <= MAX_REMEMBERED_BYTES
    with pytest.raises(AlreadyAnswered) as refused:
        own.request(table.ids.make(1))
    assert refused.value.fields["outcome"] == "rejected"


def test_a_request_is_shown_under_its_id_also_when_nothing_else_is_known_of_it() -> None:
    table = PendingRequests(RequestIds(run="r"))
    own = connection("c1", table)
    pending = ask(table, 6, of=(own,))
    line = b'{"jsonrpc":"2.0","id":"rq_r.6","method":"session/request_permission","params":{}}'
    shown = b"event: message\nid: 6\ndata: %b\n\n" % line
    asked = Chunk(6, [pending.request.line], Direction.FROM_AGENT, "s", session_channel("s"), 0.0, request=6)
    assert own.frames(asked) == shown
    table.settle(pending, Outcome.ANSWERED, "c1")
    assert own.frames(asked) == shown
    again = connection("c1", PendingRequests(RequestIds(run="r")))
    assert again.frames(asked) == shown
    assert own.frames(chunk(8, session_channel("s"), "s")) == chunk(8, session_channel("s"), "s").frames()


IDS = ['"a"', '"\\u0061"', "0", '"0"', "0.0", "1", '"1"', *(f'"rq_{key}"' for key in range(1, 8))]


class Answers(RuleBasedStateMachine):
    """Whatever agents ask, under any ids, of any clients, in any order, in any number of runs of the server.

    Clients keep every id that they ever saw, and give them to each other.
    """

    @initialize()
    def begin(self) -> None:
        self.given: dict[str, PendingRequest] = {}
        """Every id that was ever given out, as its clients write it, and what for."""
        self.asked: list[PendingRequest] = []
        self.restart()

    @rule()
    def restart(self) -> None:
        """The log begins anew, and so do its positions and the tags of connections."""
        self.table = PendingRequests(RequestIds())
        self.keys = count(1)
        self.asked.clear()
        self.connections = [connection("c1", self.table), connection("c2", self.table)]

    @rule(which=st.sampled_from([0, 1]))
    def reconnect(self, which: int) -> None:
        tag = f"{self.connections[which].tag}'"
        self.table.forget_connection(self.connections[which].tag)
        self.connections[which] = connection(tag, self.table)

    @rule(id=st.sampled_from(IDS), process=st.sampled_from(["p1", "p2"]), to=st.sets(st.sampled_from([0, 1])))
    def ask(self, id: str, process: str, to: set[int]) -> None:
        of = [self.connections[index] for index in to]
        pending = ask(self.table, next(self.keys), id, process, of=of)
        self.asked.append(pending)
        written = pending.id.decode()
        assert written not in self.given, "the id was used before"
        self.given[written] = pending

    @rule(data=st.data(), to=st.sampled_from([0, 1]))
    def deliver(self, data: st.DataObject, to: int) -> None:
        if opened := [pending for pending in self.asked if pending.open]:
            data.draw(st.sampled_from(opened)).asked.add(self.connections[to].tag)

    @rule(data=st.data(), by=st.sampled_from([0, 1]))
    def answer(self, data: st.DataObject, by: int) -> None:
        own = self.connections[by]
        text = data.draw(st.sampled_from([*IDS, *self.given]))
        expected = self.given.get(text)
        if expected is None or expected not in self.asked or own.tag not in expected.asked:
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
            assert all(other.open for other in others)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if opened := [pending for pending in self.asked if pending.open]:
            self.table.settle(data.draw(st.sampled_from(opened)), Outcome.CANCELLED, None)

    @rule(process=st.sampled_from(["p1", "p2"]), id=st.sampled_from(IDS))
    def find(self, process: str, id: str) -> None:
        found = self.table.find(FakeProcess(process), id.encode())
        mine = [p for p in self.asked if p.process.key == process and as_read(p.agent_id) == as_read(id.encode())]
        assert found is None or (found.open and found in mine)
        if [p for p in mine if p.open] == mine[-1:] != []:
            assert found is mine[-1]


def as_read(id: bytes) -> object:
    """An id as a client reads it: a string, or a number by its text, since 1 and 1.0 differ."""
    return id.decode() if id[:1] != b'"' else json.loads(id).encode()


TestAnswers = Answers.TestCase
TestAnswers.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# Windows


def _read(connection: Connection, events: list[tuple[int, str]], trims: dict[str, int], after: int) -> list[int | str]:
    """What a stream reads from the disk: positions of events, and gaps as texts."""
    read: list[int | str] = []
    if lost := connection.lost(trims, after):
        read.append(f"gap to {lost}")
        after = lost
    for position, session_id in events:
        if position > max(after, trims.get(session_channel(session_id), 0)):
            chunk = Chunk(position, [LINE], Direction.FROM_AGENT, session_id, session_channel(session_id), 0.0)
            read += [position] if connection.sees(chunk) else []
    return read


_STEPS = st.lists(
    st.tuples(st.sampled_from(["event", "event", "toggle", "toggle", "trim", "look"]), st.integers(0, 3)), max_size=80
)


def _play(steps: list[tuple[str, int]], most: int) -> None:
    """Of two connections that do the same, one forgets windows whenever it may."""
    whole, lean = Connection("i1", "c1", "a", 0.0), Connection("i2", "c1", "a", 0.0)
    events, trims, position = list[tuple[int, str]](), dict[str, int](), 0
    for what, number in steps:
        session_id = f"s{number}"
        if what == "event":
            position += 1
            events.append((position, session_id))
        elif what == "trim":
            # The oldest of a session goes first.
            left = [at for at, of in events if of == session_id and at > trims.get(session_channel(of), 0)]
            if left:
                trims[session_channel(session_id)] = left[len(left) // 2]
        elif what == "toggle":
            for each in (whole, lean):
                each.detach(session_id, position) if each.attached(session_id) else each.attach(session_id, position)
        lean._most_over = -1  # pyright: ignore[reportPrivateUsage]
        lean.forget_windows(trims, position, most)
        if what != "look":
            continue
        for after in range(position + 1):
            expected, found = _read(whole, events, trims, after), _read(lean, events, trims, after)
            if most > len(steps):
                assert found == expected
                continue
            missing = [each for each in expected if isinstance(each, int) and each not in found]
            through = max((int(each.split()[-1]) for each in found if isinstance(each, str)), default=0)
            assert all(each <= through for each in missing)
            assert [each for each in found if isinstance(each, int) and each not in expected] == []
    over = [window for windows in lean.windows.values() for window in windows if window.end is not None]
    assert len(over) == lean._over <= max(most, 0)  # pyright: ignore[reportPrivateUsage]
    assert lean.attached("s0") == whole.attached("s0")


@given(_STEPS)
def test_forgetting_windows_of_trimmed_events_changes_nothing_for_readers(steps: list[tuple[str, int]]) -> None:
    _play(steps, most=1000)


@given(_STEPS)
def test_oldest_windows_beyond_the_limit_are_reported_as_a_gap(steps: list[tuple[str, int]]) -> None:
    _play(steps, most=2)


def test_long_connection_remembers_a_bounded_number_of_windows() -> None:
    connection = Connection("i", "c1", "a", 0.0)
    for position in range(1, 5 * REMEMBERED_WINDOWS):
        connection.attach("s", position)
        connection.detach("s", position + 1)
        connection.attach("s", position + 1)
        connection.forget_windows({}, position)
        connection.detach("s", position + 2)
        connection.forget_windows({}, position)
    assert len(connection.windows["s"]) < 2.2 * REMEMBERED_WINDOWS
    assert connection.lost({}, 0) > 0


def test_ended_session_leaves_memory_while_clients_stay_attached() -> None:
    async def main() -> None:
        async with world() as own:
            for number in range(50):
                session = own.add_session(f"other-{number}")
                own.hub.attach(own.client, session)
                own.hub.move(session, Event.TERMINATE)
                own.hub.move(session, Event.WOUND_DOWN)
            del session
            for _ in range(5):
                own.now += 10
                own.timeout_loop.tick()
                await own.log.flushed()
            assert len(own.hub.store._kept) == 1  # pyright: ignore[reportPrivateUsage]
            # They are attached all the same, and learn what becomes of it.
            again = own.hub.session("other-7")
            own.hub.delete_session(again)
            await own.log.flushed()
            assert not own.client.attached("other-7")
            last = (await own.log.since(0))[-1]
            assert last.channel == own.client.channel
            assert b'"deleted"' in last.lines[0]

    run(main())
