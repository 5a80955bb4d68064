"""The inventory of sessions: session/list and GET /v1/sessions."""

import asyncio
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.client import META, Client, run
from tests.support.history import view_of
from tests.support.inventory import PERMISSION, all_events, entry_of
from tests.support.running import Server, scripted


def folder(server: Server, name: str) -> str:
    """A directory of this name in the server's work directory."""
    path = Path(server.work) / name
    path.mkdir(exist_ok=True)
    return str(path)


def raw(server: Server, path: str) -> httpx.URL:
    """An address with a path that is sent as it is."""
    return httpx.URL(server.url).copy_with(raw_path=path.encode())


async def new_in(client: Client, cwd: str, **meta: object) -> str:
    params = {"cwd": cwd, "mcpServers": [], "_meta": {META: meta}}
    return (await client.result("session/new", params))["sessionId"]


# session/list


@pytest.mark.requirement("6.list-all")
@pytest.mark.requirement("6.list-newest-first")
@pytest.mark.requirement("6.list-cwd")
def test_session_list_shows_the_sessions_of_all_agents_and_connections_newest_first(server: Server) -> None:
    async def main() -> None:
        cwd = folder(server, "list-all")
        async with Client(server) as one, Client(server, "other") as two, Client(server, "bare") as asker:
            made = [
                await new_in(one, cwd),
                await new_in(two, cwd),
                await new_in(one, cwd, agent="isolated"),
                await new_in(two, cwd),
            ]
            await one.new_session()
            listed = await asker.result("session/list", {"cwd": cwd})
            assert [entry["sessionId"] for entry in listed["sessions"]] == made[::-1]
            agents = [entry["_meta"][META]["agent"] for entry in listed["sessions"]]
            assert agents == ["other", "isolated", "other", "scripted"]
            assert "nextCursor" not in listed

    run(main())


@pytest.mark.requirement("6.list-entry")
def test_an_entry_of_session_list_has_all_the_facts(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session(title="A title", skills=["reading"])
            await client.prompt(session, "hello")
            entry = await entry_of(client, session)
            assert entry["cwd"] == server.work
            assert entry["title"] == "A title"
            updated = datetime.fromisoformat(entry["updatedAt"])
            facts = entry["_meta"][META]
            created = datetime.fromisoformat(facts["createdAt"])
            assert created.tzinfo is not None
            assert created <= updated
            assert facts["agent"] == "scripted"
            assert facts["ended"] is False
            assert facts["resumable"] is True
            assert facts["pending"] == 0
            assert facts["skills"] == ["reading"]
            assert facts["eventCount"] == len(await all_events(client, session)) > 0

    run(main())


@pytest.mark.requirement("6.list-entry")
def test_updated_at_moves_with_every_turn_and_created_at_does_not(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            before = await entry_of(client, session)
            await client.prompt(session, [["sleep", 0.002], ["say", "more"]])
            after = await entry_of(client, session)
            assert datetime.fromisoformat(after["updatedAt"]) > datetime.fromisoformat(before["updatedAt"])
            assert after["_meta"][META]["createdAt"] == before["_meta"][META]["createdAt"]
            assert after["_meta"][META]["eventCount"] > before["_meta"][META]["eventCount"]

    run(main())


@pytest.mark.requirement("6.activity")
def test_a_view_says_what_its_agent_did_last_and_what_it_has_used(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            assert (await view_of(client, session))["activity"] == {
                "kind": None,
                "said": "",
                "turnStartedAt": None,
                "tokens": None,
                "context": None,
                "cost": None,
            }
            usage = {
                "sessionUpdate": "usage_update",
                "used": 7,
                "size": 100,
                "cost": {"amount": 0.5, "currency": "USD"},
            }
            program = [
                ["say", "first line\nsecond "],
                ["say", "line"],
                ["update", usage],
                ["ask", "session/request_permission", PERMISSION],
                ["wait_answer"],
                ["respond", {"stopReason": "end_turn", "usage": {"totalTokens": 30}}],
            ]
            turn = asyncio.create_task(client.prompt(session, program))
            asked = await stream.method("session/request_permission")
            during = (await view_of(client, session))["activity"]
            assert (during["kind"], during["said"]) == ("message", "second line")
            assert datetime.fromisoformat(during["turnStartedAt"]).tzinfo is not None
            assert during["context"] == {"used": 7, "size": 100}
            assert during["cost"] == {"amount": 0.5, "currency": "USD"}
            await client.answer(asked.data["id"], {"outcome": {"outcome": "cancelled"}})
            await turn
            after = (await view_of(client, session))["activity"]
            assert after["turnStartedAt"] is None
            assert (after["said"], after["tokens"]) == ("second line", 30)

    run(main())


@pytest.mark.requirement("6.list-entry")
def test_an_entry_counts_what_waits_for_an_answer(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            program = [["ask", "session/request_permission", PERMISSION], ["wait_answer"]]
            turn = asyncio.create_task(client.prompt(session, program))
            asked = await stream.method("session/request_permission")
            assert (await entry_of(client, session))["_meta"][META]["pending"] == 1
            await client.answer(asked.data["id"], {"outcome": {"outcome": "selected", "optionId": "yes"}})
            await turn
            assert (await entry_of(client, session))["_meta"][META]["pending"] == 0

    run(main())


@pytest.mark.requirement("6.list-pages")
def test_session_list_comes_in_pages_of_200_that_new_sessions_do_not_shift(server: Server) -> None:
    async def main() -> None:
        cwd = folder(server, "list-pages")
        async with Client(server) as client:
            made = [await new_in(client, cwd) for _ in range(201)]
            first = await client.result("session/list", {"cwd": cwd})
            assert len(first["sessions"]) == 200
            newest = await new_in(client, cwd)
            second = await client.result("session/list", {"cwd": cwd, "cursor": first["nextCursor"]})
            ids = [entry["sessionId"] for entry in [*first["sessions"], *second["sessions"]]]
            assert ids == made[::-1]
            assert "nextCursor" not in second

            over_http = (await client.http.get("/v1/sessions", params={"cwd": cwd})).json()
            assert len(over_http["sessions"]) == 200
            assert over_http["sessions"][0]["sessionId"] == newest
            rest = await client.http.get("/v1/sessions", params={"cwd": cwd, "cursor": over_http["nextCursor"]})
            ids = [view["sessionId"] for view in [*over_http["sessions"], *rest.json()["sessions"]]]
            assert ids == [newest, *made[::-1]]
            assert "nextCursor" not in rest.json()

    run(main())


@pytest.mark.requirement("6.list-bad-cursor")
@pytest.mark.parametrize("cursor", ["nonsense", "", "bm9uc2Vuc2U=", "WzEsMl0=", "é", 7])
def test_a_cursor_that_was_never_given_out_is_refused(server: Server, cursor: object) -> None:
    async def main() -> None:
        async with Client(server) as client:
            assert (await client.error("session/list", {"cursor": cursor}))["code"] == -32602
            response = await client.http.get("/v1/sessions", params={"cursor": str(cursor)})
            assert response.status_code == 400
            assert response.headers["Content-Type"] == "application/problem+json"

    run(main())


@pytest.mark.requirement("6.list-cwd")
def test_the_cwd_filter_leaves_out_other_directories(server: Server) -> None:
    async def main() -> None:
        one, two = folder(server, "filter-one"), folder(server, "filter-two")
        async with Client(server) as client:
            session = await new_in(client, one)
            await new_in(client, two)
            listed = await client.result("session/list", {"cwd": one})
            assert [entry["sessionId"] for entry in listed["sessions"]] == [session]
            over_http = await client.http.get("/v1/sessions", params={"cwd": one})
            assert [view["sessionId"] for view in over_http.json()["sessions"]] == [session]
            assert (await client.result("session/list", {"cwd": "/nowhere"}))["sessions"] == []

    run(main())


# GET /v1/sessions


@pytest.mark.requirement("6.http-view")
def test_the_http_view_has_the_facts_of_session_list_plus_model_mode_and_termination(server: Server) -> None:
    async def main() -> None:
        cwd = folder(server, "http-view")
        async with Client(server) as client:
            session = await new_in(client, cwd, title="Shown", skills=["x"])
            await client.prompt(session, "hello")
            [entry] = (await client.result("session/list", {"cwd": cwd}))["sessions"]
            [view] = (await client.http.get("/v1/sessions", params={"cwd": cwd})).json()["sessions"]
            for name in ("sessionId", "cwd", "title", "updatedAt"):
                assert view[name] == entry[name]
            for name in ("agent", "createdAt", "ended", "resumable", "eventCount", "pending"):
                assert view[name] == entry["_meta"][META][name]
            assert view["metadata"]["skills"] == ["x"]
            assert view["model"] == "small"
            assert view["mode"] == "default"
            assert view["terminationInfo"] is None
            assert (await client.http.get(f"/v1/sessions/{session}")).json() == view

            await client.result("_sandboxagent/session/terminate", {"sessionId": session})
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert view["ended"] is True
            assert view["terminationInfo"]["reason"] == "terminated"
            assert view["terminationInfo"]["terminatedBy"] == "daemon"

    run(main())


@pytest.mark.requirement("6.http-not-found")
def test_an_unknown_session_over_http_is_a_404_problem(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.http.get("/v1/sessions/no-such-session")
            assert response.status_code == 404
            assert response.headers["Content-Type"] == "application/problem+json"
            assert response.json()["type"] == "urn:sandbox-agent:error:session-not-found"
            assert response.json()["sessionId"] == "no-such-session"

    run(main())


@pytest.mark.requirement("6.http-any-id")
@pytest.mark.parametrize("id", ["2026/11/15", "/", "a?b#c", "50%2F", "spaces and ümlauts"])
def test_a_session_is_found_over_http_whatever_signs_its_agent_put_into_its_id(id: str) -> None:
    async def main(server: Server) -> None:
        async with Client(server, "writer") as client:
            assert await client.new_session() == id
            for escaped in (quote(id, safe=""), "".join(f"%{byte:02x}" for byte in id.encode())):
                found = await client.http.get(raw(server, f"/v1/sessions/{escaped}"))
                assert (found.status_code, found.json().get("sessionId")) == (200, id)
                gone = await client.http.get(raw(server, f"/v1/sessions/{escaped}/events"))
                assert gone.status_code == 410
                assert "_sandboxagent/session/events" in gone.json()["replacement"]

    with Server(agents={"writer": scripted("--session-id", id)}) as server:
        run(main(server))


@pytest.mark.requirement("6.http-not-found")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/sessions/a%2Fb", 404),
        ("/v1/sessions/a/b", 410),
        ("/v1/sessions%2Fa", 410),
        ("/v1/agents/a%2Fb", 404),
        ("/v1/agents/claude%2Fmodels", 404),
    ],
)
def test_an_escaped_slash_is_a_part_of_a_name_and_no_other_is(server: Server, path: str, status: int) -> None:
    async def main() -> None:
        async with Client(server) as client:
            assert (await client.http.get(raw(server, path))).status_code == status

    run(main())


@pytest.mark.requirement("6.views-over-acp")
def test_the_http_views_of_sessions_and_agents_are_the_same_over_acp(server: Server) -> None:
    async def main() -> None:
        cwd = folder(server, "over-acp")
        async with Client(server) as client:
            session = await new_in(client, cwd, title="Both ways")
            over_http = (await client.http.get("/v1/sessions", params={"cwd": cwd})).json()
            assert await client.result("_sandboxagent/session/list", {"cwd": cwd}) == over_http
            got = await client.result("_sandboxagent/session/get", {"sessionId": session})
            assert got["session"] == over_http["sessions"][0]
            assert (await client.error("_sandboxagent/session/get", {"sessionId": "none"}))["code"] == -32002

            listed = (await client.result("_sandboxagent/agent/list"))["agents"]
            shown = (await client.http.get("/v1/agents")).json()["agents"]
            assert [agent["id"] for agent in listed] == [agent["id"] for agent in shown]
            for one, other in zip(listed, shown, strict=True):
                one["serverStatus"].pop("uptimeMs", None)
                other["serverStatus"].pop("uptimeMs", None)
                assert one == other

    run(main())
