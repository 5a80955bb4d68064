"""The example that keeps sessions in PostgreSQL: every event, once, whatever is killed meanwhile."""

import asyncio
import re
import subprocess
from collections.abc import Generator
from urllib.parse import urlsplit

import pytest

from sandboxagent import LogEvent, Session
from tests.examples.database import postgres
from tests.examples.staging import TIMEOUT, Stage, python
from tests.support.client import run
from tests.support.running import TOKEN, Server, eventually
from tests.support.sdk import connected, log_of, new_session, play

pytestmark = pytest.mark.xdist_group("postgres")
Row = tuple[int, str, object]


@pytest.fixture(scope="module")
def database() -> Generator[str]:
    with postgres() as url:
        yield url


class Keeper:
    """`postgres.py keep SESSION` as a process."""

    def __init__(self, stage: Stage, database: str, server: Server, session: Session) -> None:
        where = {"DATABASE_URL": database, "SANDBOX_AGENT_URL": server.url, "SANDBOX_AGENT_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            [*python("postgres.py"), "keep", session.id],
            cwd=stage.project,
            env=stage.environment | where,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.session = session

    def __enter__(self) -> "Keeper":
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(f"keeping {self.session.id} after event "), line
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ends(self) -> None:
        """By itself, and well."""
        _, stderr = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 0, stderr


def kept(database: str, session: str) -> list[Row]:
    # What collects all tests does not import it.
    import psycopg

    with psycopg.connect(database) as connection:
        [(there,)] = connection.execute("select to_regclass('events') is not null").fetchall()
        query = "select id, direction, envelope from events where session_id = %s order by id"
        return connection.execute(query, [session]).fetchall() if there else []


async def keeping(database: str, session: Session, *, more_than: int) -> None:
    """Wait until so many events are kept."""
    await asyncio.to_thread(eventually, lambda: len(kept(database, session.id)) > more_than, "events in the database")


async def logged(session: Session) -> list[Row]:
    log = [event for event in await log_of(session) if isinstance(event, LogEvent)]
    return [(event.id, event.direction, event.envelope) for event in log]


def test_a_turn_is_kept_while_it_happens_and_told_from_the_database(stage: Stage, database: str) -> None:
    where = {"DATABASE_URL": database}
    shown = stage.shows(python("postgres.py"), "run", "mock", "Good morning", environment=where)
    [session] = re.findall(r"^keeping (\S+) after event 0$", shown, re.MULTILINE)

    assert "\n> Good morning\nYou said: Good morning\n" in shown
    methods = [envelope.get("method") for _, _, envelope in kept(database, session) if isinstance(envelope, dict)]
    assert (methods[0], methods[-1]) == ("session/new", "_sandboxagent/session/ended")
    assert "Good morning" in stage.shows(python("postgres.py"), "tell", session, environment=where)


def test_who_is_killed_and_started_again_keeps_every_event_once(stage: Stage, database: str) -> None:
    async def scenario() -> None:
        with Server() as server:
            async with connected(server) as client:
                session = await new_session(client, server)
                await play(session, [["say", "before anybody is there"]])
                with Keeper(stage, database, server, session) as first:
                    turn = play(session, [["flood", 2000, 100], ["wait_cancel"]])
                    await keeping(database, session, more_than=100)
                    first.process.kill()
                    first.process.wait()
                await session.cancel()
                await turn
                await play(session, [["flood", 1000, 10], ["say", "a \x00 that jsonb would refuse"]])
                with (
                    Keeper(stage, database, server, session) as second,
                    Keeper(stage, database, server, session) as third,
                ):
                    await play(session, [["flood", 300, 100]])
                    await session.terminate()
                    second.ends()
                    third.ends()
                rows = await logged(session)
                assert len(rows) > 3300
                assert kept(database, session.id) == rows

    run(scenario())


def test_a_restart_of_the_server_is_survived(stage: Stage, database: str) -> None:
    async def scenario() -> None:
        with Server() as server:
            async with connected(server) as client:
                session = await new_session(client, server)
                await play(session, [["say", "before"]])
                with Keeper(stage, database, server, session) as keeper:
                    await keeping(database, session, more_than=0)
                    server.kill()
                    server.flags = [f"--port={urlsplit(server.url).port}"]
                    server.start()
                    await play(session, [["say", "after"]])
                    await session.terminate()
                    keeper.ends()
                assert kept(database, session.id) == await logged(session)

    run(scenario())


def test_what_it_does_not_know_is_answered_with_its_usage(stage: Stage) -> None:
    done = stage.run([*python("postgres.py"), "forget"])

    assert done.returncode == 1
    assert "postgres.py keep SESSION" in done.stderr
