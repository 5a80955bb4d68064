"""Sessions in memory and on disk: what rests costs nothing, and comes back as it was. Contract, section 6."""

import asyncio
import gc
import json
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from sandboxagent.protocol.envelope import notification
from sandboxagent.protocol.errors import SessionDamaged
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.journal import Group
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.session import Session, SessionFacts
from sandboxagent.server.sessions.store import MAX_UNKNOWN, MAX_UNKNOWN_NAME, index_entry
from tests.server.sessions.test_hub import ALLOW
from tests.support.asking import UNPARSED
from tests.support.client import run
from tests.support.world import World, envelope, world

MODES = {"currentModeId": "ask", "availableModes": [{"id": f"m{number}", "name": "x" * 40} for number in range(5)]}
PLACES = [None, "log.db"]


async def call(own: World, client: Connection, method: str, params: Any, result: Any) -> Any:
    """A client's request, and the agent's answer to it."""
    before = len(own.process.sent)
    reply = own.requests.submit(client, envelope(id=1, method=method, params=params))
    await own.process.has_been_sent(before + 1)
    own.says(id=own.process.sent[-1]["id"], result=result)
    answer = await reply
    own.process.sent.clear()
    return json.loads(answer.line)["result"]


async def visit(own: World, name: str) -> None:
    """A client comes, makes a session, takes a turn and leaves."""
    client = own.hub.connections.open("a")
    made = await call(own, client, "session/new", {"cwd": "/", "mcpServers": []}, {"sessionId": name, "modes": MODES})
    prompt = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "hello"}]}
    await call(own, client, "session/prompt", prompt, {"stopReason": "end_turn"})
    own.hub.close_connection(client, "left")


async def rest(own: World) -> None:
    """Until nothing is left to be done."""
    own.hub.report_changes(float("inf"))
    while own.hub.store._active:
        own.hub.drop_idle()
        await own.log.flushed()
        await asyncio.sleep(0)


def place(tmp_path: Path, name: str | None) -> Path | None:
    return None if name is None else tmp_path / name


def objects() -> int:
    gc.collect()
    return sum(type(one) is Session for one in gc.get_objects())


@pytest.mark.requirement("6.memory")
def test_a_session_that_rests_takes_no_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db", tail_bytes=0) as own:
            # Traced from the beginning: what takes the place of something older is not taken for growth.
            tracemalloc.start()
            try:
                sizes: list[int] = []
                counts: list[int] = []
                for batch in range(5):
                    for number in range(20):
                        await visit(own, f"session-{batch}-{number}")
                    await rest(own)
                    counts.append(objects())
                    sizes.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
            assert counts[-1] <= counts[0]
            # What sessions leave, each batch leaves. Caches of a fixed size come and go between any two.
            assert min(after - before for before, after in pairwise(sizes)) / 20 < 512
            assert len(own.hub.store.page(None, None, 1000)) == 101

    run(main())


@pytest.mark.requirement("6.memory")
def test_a_deleted_session_takes_no_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db", tail_bytes=0) as own:
            before = objects()
            for number in range(10):
                await visit(own, f"session-{number}")
                own.hub.delete_session(own.hub.session(f"session-{number}"))
            await rest(own)
            assert objects() <= before
            assert own.hub.find_session("session-7") is None
            assert not own.log._undeleted
            own.log.keep_trims(())
            assert own.log.trims == {}

    run(main())


@pytest.mark.requirement("6.memory")
@pytest.mark.parametrize("name", PLACES, ids=["memory", "disk"])
def test_a_session_comes_back_as_it_was_and_still_at_its_process(tmp_path: Path, name: str | None) -> None:
    async def main() -> None:
        async with world(place(tmp_path, name)) as own:
            await visit(own, "resting")
            live = own.hub.session("resting")
            count, made = live.event_count, own.listing.view(live)
            del live
            await rest(own)
            assert "resting" not in own.hub.store._objects
            own.says(method="session/update", params={"sessionId": "resting", "update": {"sessionUpdate": "plan"}})
            again = own.hub.session("resting")
            assert again.process is own.running
            assert again.event_count == count + 1
            seen = own.listing.view(again)
            assert (seen.created_at, seen.mode, seen.ended) == (made.created_at, "ask", False)
            assert again in own.hub.store.find_all_held(own.running)

    run(main())


@pytest.mark.requirement("6.memory")
def test_what_an_agent_offers_is_known_before_the_database_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db") as own:
            client = own.hub.connections.open("a")
            for name in ("first", "second"):
                params = {"cwd": "/", "mcpServers": []}
                made = await call(own, client, "session/new", params, {"sessionId": name, "modes": MODES})
                # The journal has it; the database gets it later.
                newest = own.hub.store.find_newest("a")
                assert newest is not None
                assert newest.id == made["sessionId"]

    run(main())


def test_there_is_one_object_of_a_session_however_often_it_is_looked_up() -> None:
    async def main() -> None:
        async with world() as own:
            await visit(own, "one")
            held = own.hub.session("one")
            await rest(own)
            assert "one" not in own.hub.store._kept
            assert own.hub.session("one") is held
            held.facts.title = "changed by code that held it"
            own.hub.save(held)
            del held
            await rest(own)
            assert own.hub.session("one").facts.title == "changed by code that held it"

    run(main())


@pytest.mark.requirement("6.memory")
def test_busy_session_does_not_rest() -> None:
    async def main() -> None:
        async with world() as own:
            asked = own.asks(5)
            own.hub.detach(own.client, own.session)
            await rest(own)
            assert own.hub.store._kept.keys() == {"s"}, "it waits for an answer"
            own.hub.attach(own.client, own.session)
            await own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            turn = own.request("session/prompt", {"sessionId": "s", "prompt": []})
            await own.process.has_been_sent(2)
            own.hub.detach(own.client, own.session)
            await rest(own)
            assert own.hub.store._kept.keys() == {"s"}, "a turn runs"
            own.says(id=own.sent("session/prompt")["id"], result={"stopReason": "end_turn"})
            await turn
            own.hub.detach(own.client, own.session)
            await rest(own)
            assert own.hub.store._kept.keys() == set()

    run(main())


@pytest.mark.requirement("6.memory")
@pytest.mark.parametrize("name", PLACES, ids=["memory", "disk"])
def test_lists_are_in_order_whether_sessions_rest_or_not(tmp_path: Path, name: str | None) -> None:
    async def main() -> None:
        async with world(place(tmp_path, name)) as own:
            for number in range(12):
                await visit(own, f"n{number:02}")
                if number == 7:
                    await rest(own)
                    own.hub.attach(own.client, own.hub.session("n03"))
                    own.hub.delete_session(own.hub.session("n05"))
            await own.log.flushed()
            expected = [*(f"n{number:02}" for number in reversed(range(12)) if number != 5), "s"]
            listed: list[str] = []
            before = None
            while page := own.hub.store.page(before, "/", 5):
                listed += [one.id for one in page]
                before = page[-1].facts.created_at, page[-1].id
            assert listed == expected
            assert own.hub.store.page(None, "/elsewhere", 5) == []

    run(main())


@pytest.mark.requirement("6.memory")
def test_an_alias_is_taken_and_found_while_its_session_rests() -> None:
    async def main() -> None:
        async with world() as own:
            await visit(own, "named")
            session = own.hub.session("named")
            own.hub.store.set_alias(session, "nick")
            own.hub.save(session)
            del session
            await rest(own)
            assert not own.hub.store.reserve_alias("nick")
            assert own.hub.session("nick").id == "named"
            assert own.hub.store.reserve_alias("other")
            assert not own.hub.store.reserve_alias("other")
            own.hub.store.free_alias("other")
            assert own.hub.store.reserve_alias("other")

    run(main())


@pytest.mark.requirement("6.memory")
def test_a_process_that_dies_ends_the_sessions_that_rested_at_it() -> None:
    async def main() -> None:
        async with world() as own:
            for number in range(3):
                await visit(own, f"n{number}")
            await rest(own)
            for session in own.hub.store.find_all_held(own.running):
                own.hub.move(session, Event.EXITED, termination={"reason": "error"})
            own.hub.store.forget_process(own.running)
            await rest(own)
            assert all(own.hub.session(f"n{number}").facts.ended for number in range(3))
            assert own.hub.store.find_all_held(own.running) == []
            assert own.hub.store.find_held(own.running, "n1") is None

    run(main())


def count_reads(own: World) -> list[str]:
    """What the event loop asks the disk about sessions from now on."""
    asked: list[str] = []
    own.log._database._reading.set_trace_callback(
        lambda query: asked.append(query) if query.startswith("select") else None
    )
    return asked


def test_invented_session_costs_one_disk_read_and_its_repetition_none() -> None:
    async def main() -> None:
        async with world() as own:
            await own.log.flushed()
            asked = count_reads(own)
            for _ in range(5):
                for number in range(20):
                    own.agent.updates("hello", session=f"made up {number}")
            own.log._database._reading.set_trace_callback(None)
            assert len([query for query in asked if "sessions" in query or "cards" in query]) == 20

    run(main())


def test_what_is_remembered_of_names_that_nobody_has_is_bounded() -> None:
    async def main() -> None:
        async with world() as own:
            for number in range(2 * MAX_UNKNOWN):
                assert own.hub.store.find_late(own.running, f"n{number}") is None
            assert len(own.hub.store._unknown) <= MAX_UNKNOWN
            assert own.hub.store.find_late(own.running, "x" * (MAX_UNKNOWN_NAME + 1)) is None
            assert all(len(name) <= MAX_UNKNOWN_NAME for name in own.hub.store._unknown)

    run(main())


@pytest.mark.parametrize("rests", [False, True])
def test_a_name_that_nobody_had_is_found_once_a_session_has_it(rests: bool) -> None:
    async def main() -> None:
        async with world() as own:
            for name in ("new", "alias"):
                assert own.hub.store.find_late(own.running, name) is None
                assert own.hub.find_session(name) is None
            session = own.add_session("new")
            # It is looked up by an agent while the disk has not got it yet.
            assert own.hub.store._is_unknown("a", "new")
            own.hub.store.set_alias(session, "alias")
            own.hub.store.save(session)
            await own.log.flushed()
            if rests:
                del session
                await rest(own)
            for name in ("new", "alias"):
                found = own.hub.find_session(name)
                assert found is not None
                assert found.id == "new"
                del found
            held = own.hub.store.find_held(own.running, "new")
            assert held is not None
            assert held.id == "new"

    run(main())


@pytest.mark.requirement("6.memory")
def test_records_without_cards_get_them_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db") as own:
            await visit(own, "old")
        database = Database(tmp_path / "log.db")
        database._sqlite.execute("delete from cards")
        database.write(Group())
        database.close()
        async with world(tmp_path / "log.db", session="new") as own:
            await own.log.flushed()
            assert [one.id for one in own.hub.store.page(None, None, 10)] == ["new", "old", "s"]
            assert own.hub.session("old").facts.ended

    run(main())


@pytest.mark.requirement("6.damage")
def test_a_session_whose_record_is_damaged_is_an_error_of_its_own_and_hides_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db", tail_bytes=0) as own:
            for number in range(3):
                await visit(own, f"session-{number}")
            await rest(own)
            with closing(sqlite3.connect(tmp_path / "log.db")) as disk, disk:
                disk.execute("update sessions set record = ? where session_id = 'session-1'", (b"garbage",))
                disk.execute("update sessions set record = ?, checksum = null where session_id = 'session-2'", (b"{}",))

            for session_id in ("session-1", "session-2"):
                with pytest.raises(SessionDamaged, match=session_id):
                    own.hub.session(session_id)
            assert "session-0" in [session.id for session in own.hub.store.page(None, None, 1000)]
            assert own.log.damage.reason is not None

    run(main())


def test_a_page_of_a_list_takes_few_steps_for_each_session_that_rests(tmp_path: Path) -> None:
    def calls_for(sessions: int) -> int:
        path, group, calls = tmp_path / f"{sessions}.db", Group(), 0
        for number in range(sessions):
            name = f"session-{number}"
            at = number + 0.5
            facts = SessionFacts(
                session_id=name, agent_session_id=name, agent="a", cwd="/", created_at=at, updated_at=at, ended=True
            )
            group.sessions[name], group.index[name] = msgspec.json.encode(facts), index_entry(facts)
        database = Database(path)
        database.write(group)
        database.close()

        def count(frame: FrameType, event: str, arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        async def main() -> None:
            async with world(path, tail_bytes=0) as own:
                listing = SessionListing(own.hub)
                sys.setprofile(count)
                page, _ = listing.page(None, None)
                entries = [listing.entry(session) for session in page]
                sys.setprofile(None)
                # The world has a session of its own.
                assert len(entries) == sessions + 1

        run(main())
        return calls

    # 41 with Python 3.11, those written in C included.
    assert (calls_for(150) - calls_for(50)) / 100 < 48


@pytest.mark.requirement("12.depth-kept")
def test_too_deep_metadata_of_an_earlier_release_is_listed_as_left_out(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]

    def below(frames: int, work: Callable[[], Any]) -> Any:
        """As far from the bottom of the stack as a request's work is."""
        return work() if frames == 0 else below(frames - 1, work)

    async def main() -> None:
        async with world(tmp_path / "log.db") as own:
            session, other = own.session, "other"
            await visit(own, other)
            session.facts.metadata, session.facts.title = {"deep": deep}, "kept"
            own.hub.tell(session, notification("x/deep", deep))
            own.hub.save(session)
        async with world(tmp_path / "log.db", session="new") as own:
            views = below(60, lambda: SessionListing(own.hub).list_sessions(None, None, None))
            listed = {one["sessionId"]: one for one in json.loads(msgspec.json.encode(views))["sessions"]}
            spoilt = listed[session.id]
            assert (spoilt["metadata"], spoilt["leftOut"], spoilt["title"]) == ({}, ["metadata"], "kept")
            assert "leftOut" not in listed[other]
            entry: Any = SessionListing(own.hub).entry(own.hub.session(session.id))
            assert entry["_meta"]["sandboxagent.dev"]["leftOut"] == ["metadata"]
            asked = envelope(id=1, method="_sandboxagent/session/events", params={"sessionId": session.id})
            page = json.loads((await own.requests.submit(own.client, asked)).line)["result"]["events"]
            [shown] = [each["envelope"] for each in page if each["envelope"]["method"] == UNPARSED]
            assert "nested deeper than 128 levels" in shown["params"]["reason"]

    run(main())
