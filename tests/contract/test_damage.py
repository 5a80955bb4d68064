"""Contract, section 6: a log that was damaged on disk, and what a server does with it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from httpx import Response

from tests.support.client import Client, Json, run
from tests.support.history import events_of
from tests.support.running import Server


async def health(client: Client) -> Json:
    return (await client.http.get("/v1/health")).json()


@pytest.mark.requirement("6.journal-harm")
@pytest.mark.parametrize("harm", ["truncated", "deleted"])
@pytest.mark.parametrize("name", ["log.db.journal", "log.db.witness"])
def test_a_journal_that_is_truncated_or_deleted_under_a_running_server_loses_nothing(
    tmp_path: Path, name: str, harm: str
) -> None:
    with Server(directory=tmp_path) as server:

        async def before() -> tuple[str, list[Json]]:
            async with Client(server) as client:
                session = await client.new_session()
                await client.prompt(session, [["say", "before"]])
                if harm == "truncated":
                    os.truncate(tmp_path / "data" / name, 0)
                else:
                    (tmp_path / "data" / name).unlink()
                for number in range(20):
                    await client.prompt(session, [["say", f"after {number}"]])
                # What is listed is read from the database, which has everything by then.
                return session, await events_of(client, session)

        async def after(session: str, events: list[Json]) -> None:
            async with Client(server) as client:
                assert (await events_of(client, session))[: len(events)] == events

        session, events = run(before())
        server.kill()
        server.start()
        run(after(session, events))


@pytest.mark.requirement("6.log-gone")
def test_a_log_that_is_deleted_under_a_running_server_takes_no_more_and_is_reported(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            session = await client.new_session()
            (tmp_path / "data" / "log.db").unlink()
            # The journal takes some, until the database is to have it.
            refused = Response(200)
            while refused.status_code == 200:
                body = {"jsonrpc": "2.0", "method": "session/prompt", "params": client.prompt_params(session, [])}
                refused = await client.post({**body, "id": f"p{next(client._ids)}"})
            assert refused.status_code == 507
            assert refused.json()["type"].endswith("log-unavailable")
            assert "put it back, or restart the server" in refused.json()["detail"]
            assert "free space" not in refused.json()["detail"]
            told = await health(client)
            assert told["status"] == "degraded"
            assert "deleted or replaced" in told["detail"]

    with Server(directory=tmp_path) as server:
        run(main(server))
        server.kill()
        server.start()
        run(reported(server))


async def reported(server: Server) -> None:
    async with Client(server) as client:
        told = await health(client)
        assert told["status"] == "degraded"
        assert "log.db is gone" in told["detail"]


@pytest.mark.requirement("6.damage")
def test_an_emptied_log_is_kept_aside_and_reported(tmp_path: Path) -> None:
    async def before(server: Server) -> list[Json]:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, [["flood", 20, 300]])
            return await events_of(client, session)

    async def after(server: Server, events: list[Json]) -> None:
        async with Client(server) as client:
            told = await health(client)
            assert told["status"] == "degraded"
            assert "log.db is empty" in told["detail"]
            (case,) = (tmp_path / "data").glob("log.db.damaged-*")
            assert (case / "reason.txt").read_text().startswith("log.db is empty")
            new = await client.new_session()
            assert min(event["id"] for event in await events_of(client, new)) > max(each["id"] for each in events)

    with Server(directory=tmp_path) as server:
        events = run(before(server))
        server.kill()
        os.truncate(tmp_path / "data" / "log.db", 0)
        server.start()
        run(after(server, events))


@pytest.mark.requirement("6.damage")
def test_damaged_write_ahead_log_is_reported_until_acknowledged(tmp_path: Path) -> None:
    """Sessions stay listed, and new positions are higher than all earlier ones."""
    with Server(directory=tmp_path) as server:

        async def before() -> tuple[list[str], list[Json]]:
            async with Client(server) as client:
                sessions = [await client.new_session() for _ in range(3)]
                for session in sessions:
                    await client.prompt(session, [["flood", 20, 300]])
                assert (await health(client))["status"] == "ok"
                return sessions, await events_of(client, sessions[0])

        async def after(sessions: list[str], events: list[Json]) -> None:
            async with Client(server) as client:
                told = await health(client)
                assert told["status"] == "degraded"
                assert "damaged" in told["detail"]
                (case,) = (tmp_path / "data").glob("log.db.damaged-*")
                assert str(case) in told["detail"]
                assert {"log.db", "log.db-wal", "reason.txt"} <= {each.name for each in case.iterdir()}
                listed = [entry["sessionId"] for entry in (await client.result("session/list"))["sessions"]]
                assert set(listed) == set(sessions)
                found = await events_of(client, sessions[0])
                # Every envelope is JSON, whatever became of the rest.
                assert json.dumps(found)
                new = await client.new_session()
                assert min(event["id"] for event in await events_of(client, new)) > max(each["id"] for each in events)

                shutil.rmtree(case)
                assert (await health(client))["status"] == "ok"

        sessions, events = run(before())
        server.kill()
        wal = tmp_path / "data" / "log.db-wal"
        content = bytearray(wal.read_bytes())
        content[32 + 24 + 4096] ^= 1
        wal.write_bytes(content)
        server.start()
        run(after(sessions, events))
