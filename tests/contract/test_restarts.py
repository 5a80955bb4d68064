"""After a restart: one server that was stopped, and one that was killed, with sessions in all states."""

import asyncio
import json
import signal
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from tests.support.client import META, Client, Json, run
from tests.support.history import events_of, text_of, view_of
from tests.support.running import Server, alive, scripted


@dataclass
class Restarted:
    """A server after its restart, and what was known before."""

    server: Server
    connection: str = ""
    sessions: dict[str, str] = field(default_factory=dict[str, str])
    views: dict[str, Json] = field(default_factory=dict[str, Json])
    logs: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    pids: list[int] = field(default_factory=list[int])
    seen_by_guest: list[int] = field(default_factory=list[int])
    """Positions that a guest of `missed` had on its stream before it went away."""
    highest: int = 0
    """The last position that a client was shown."""


@pytest.fixture(scope="module", params=[signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def restarted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Restarted]:
    number: signal.Signals = request.param
    directory = tmp_path_factory.mktemp("restarted")
    agents = {
        "remembers": scripted("--state", str(directory / "state")),
        "cannot": scripted("--no-load", "--no-resume"),
        "isolated": scripted(isolation="session"),
    }
    with Server(agents=agents, directory=directory) as server:
        found = Restarted(server)
        run(_before(found, number))
        server.start()
        yield found


async def _before(found: Restarted, number: signal.Signals) -> None:
    server, sessions = found.server, found.sessions
    async with Client(server) as client, Client(server) as guest:
        assert client.id is not None
        found.connection = client.id
        wishes = {"title": "Kept", "requestedSessionId": "kept too", "model": "large", "mode": "plan", "own": [1]}
        sessions["kept"] = await client.new_session(**wishes)
        await client.prompt(sessions["kept"], [["say", "one"], ["say", "two"]])
        sessions["remembered"] = await client.new_session(agent="remembers")
        sessions["lost"] = await client.new_session(agent="cannot")
        sessions["isolated"] = await client.new_session(agent="isolated")
        await _miss_something(found, client, guest)
        for name in ("kept", "isolated"):
            await client.prompt(sessions[name], [["pid"]])
        for name, session in sessions.items():
            found.views[name] = await view_of(client, session)
            found.logs[name] = await events_of(client, session)
        for name in ("kept", "isolated"):
            found.pids.append(int([text for event in found.logs[name] if (text := text_of(event["envelope"]))][-1]))
        assert all(map(alive, found.pids))
        await _stop_in_a_turn(found, client, number)


async def _miss_something(found: Restarted, owner: Client, guest: Client) -> None:
    session = found.sessions["missed"] = await owner.new_session()
    await guest.result("_sandboxagent/session/attach", {"sessionId": session})
    async with guest.stream() as stream:
        await owner.prompt(session, [["flood", 20, 10]])
        seen = await stream.until(lambda event: event.text.startswith("12 "))
    found.seen_by_guest = [event.id for event in seen]
    await owner.prompt(session, "said while the guest was away")


async def _stop_in_a_turn(found: Restarted, client: Client, number: signal.Signals) -> None:
    session = found.sessions["interrupted"] = await client.new_session()
    async with client.stream() as stream:
        # The turn's beginning is older than what a kill may cost.
        program = [["say", "on"], ["sleep", 0.06], ["flood", 50, 10], ["wait_cancel"]]
        params = client.prompt_params(session, program) | {"_meta": {META: {"promptId": "interrupted"}}}
        turn = asyncio.create_task(client.call("session/prompt", params))
        events = await stream.until(lambda event: event.text.startswith("49 "))
        found.highest = events[-1].id
        assert found.server.stop(number) == (0 if number == signal.SIGTERM else -number)
        # Another test looks at what a running prompt gets from a server that stops.
        await asyncio.wait([turn])
        _ = turn.exception()


@pytest.mark.requirement("6.activity")
@pytest.mark.requirement("6.restart-sessions")
def test_sessions_are_there_with_all_that_was_known_of_them(restarted: Restarted) -> None:
    facts = ("sessionId", "agent", "cwd", "title", "createdAt", "model", "mode", "metadata", "alias")

    async def main() -> None:
        async with Client(restarted.server) as client:
            before, now = restarted.views["kept"], await view_of(client, "kept too")
            assert {name: now[name] for name in facts} == {name: before[name] for name in facts}
            assert (now["model"], now["mode"], now["title"]) == ("large", "plan", "Kept")
            assert now["activity"] == before["activity"]
            assert now["activity"]["said"]
            assert (now["ended"], now["resumable"], now["running"], now["pending"]) == (True, True, False, 0)
            assert now["terminationInfo"]["terminatedBy"] == "daemon"
            listed = [entry["sessionId"] for entry in (await client.result("session/list"))["sessions"]]
            made = [restarted.sessions[name] for name in restarted.views]
            assert [session for session in listed if session in made] == made[::-1]

    run(main())


@pytest.mark.requirement("6.restart-log")
def test_logs_are_there_event_for_event(restarted: Restarted) -> None:
    async def main() -> None:
        async with Client(restarted.server) as client:
            for name, before in restarted.logs.items():
                now = await events_of(client, restarted.sessions[name])
                assert now[: len(before)] == before
                assert (await view_of(client, restarted.sessions[name]))["eventCount"] == len(now)

    run(main())


@pytest.mark.requirement("6.restart-connection")
def test_a_connection_of_before_is_unknown(restarted: Restarted) -> None:
    async def main() -> None:
        async with Client(restarted.server) as client:
            old = {"X-ACP-Connection-Id": restarted.connection}
            body = {"jsonrpc": "2.0", "id": 1, "method": "session/list"}
            assert (await client.http.post("/v1/rpc", json=body, headers=old)).status_code == 404
            streamed = await client.http.get("/v1/rpc", headers=old | {"Accept": "text/event-stream"})
            assert streamed.status_code == 404

    run(main())


@pytest.mark.requirement("6.restart-resume")
def test_a_prompt_resumes_the_session_first(restarted: Restarted) -> None:
    async def main() -> None:
        session = restarted.sessions["remembered"]
        async with Client(restarted.server) as client, client.stream() as stream:
            assert (await client.prompt(session, "still there?"))["result"]["stopReason"] == "end_turn"
            await stream.until(lambda event: event.text == "still there?")
            received = (await client.result("x/received", {"sessionId": session}))["lines"]
            methods = [json.loads(line).get("method") for line in received]
            assert methods[:3] == ["initialize", "session/resume", "session/prompt"]
            assert (await view_of(client, session))["ended"] is False

    run(main())


@pytest.mark.requirement("6.restart-resume")
def test_a_session_that_cannot_be_resumed_says_so(restarted: Restarted) -> None:
    async def main() -> None:
        session = restarted.sessions["lost"]
        async with Client(restarted.server) as client:
            error = (await client.prompt(session, "and you?"))["error"]
            assert session in error["message"]
            view = await view_of(client, session)
            assert (view["ended"], view["resumable"]) == (True, False)

    run(main())


@pytest.mark.requirement("6.restart-catch-up")
def test_attach_and_events_give_exactly_what_a_client_missed(restarted: Restarted) -> None:
    async def main() -> None:
        session, last = restarted.sessions["missed"], restarted.seen_by_guest[-1]
        async with Client(restarted.server) as guest:
            attached = await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            missed = await events_of(guest, session, after=last)
            expected = [event for event in restarted.logs["missed"] if event["id"] > last]
            assert missed[: len(expected)] == expected
            # All that comes on top is the end that the server itself brought about.
            more = [event["envelope"]["method"] for event in missed[len(expected) :]]
            assert more == ["_sandboxagent/session/ended"]
            assert not {event["id"] for event in missed} & set(restarted.seen_by_guest)
            texts = [text.split()[0] for event in missed if (text := text_of(event["envelope"]))]
            assert texts == [*map(str, range(13, 20)), "said"]
            assert attached["position"] >= missed[-1]["id"]
            async with guest.stream() as stream:
                await guest.prompt(session, "live again")
                await stream.until(lambda event: event.text == "live again")
                assert all(event.id > attached["position"] for event in stream.seen)

    run(main())


@pytest.mark.requirement("6.restart-positions")
def test_positions_are_never_given_out_again(restarted: Restarted) -> None:
    async def main() -> None:
        async with Client(restarted.server) as client, client.stream() as stream:
            session = await client.new_session()
            await client.prompt(session, "hello")
            await stream.turn_ended()
            assert restarted.highest > 0
            assert min(event["id"] for event in await events_of(client, session)) > restarted.highest
            assert min(event.id for event in stream.seen) > restarted.highest

    run(main())


@pytest.mark.requirement("6.restart-ended", "6.prompt-id")
def test_the_log_says_how_a_turn_ended_that_the_server_was_stopped_in(restarted: Restarted) -> None:
    async def main() -> None:
        session = restarted.sessions["interrupted"]
        async with Client(restarted.server) as client:
            events = [event["envelope"] for event in await events_of(client, session)]
            turns = [one["params"] for one in events if one.get("method") == "_sandboxagent/session/turn"]
            assert [turn["state"] for turn in turns] == ["started", "ended"]
            assert turns[0]["turnId"] == turns[1]["turnId"]
            assert [turn["promptId"] for turn in turns] == ["interrupted", "interrupted"]
            assert isinstance(turns[1]["error"]["code"], int)
            assert turns[1]["error"]["message"]
            ended = [one["params"] for one in events if one.get("method") == "_sandboxagent/session/ended"]
            assert [(one["reason"], one["terminatedBy"]) for one in ended] == [("error", "daemon")]
            info = (await view_of(client, session))["terminationInfo"]
            assert info == {name: value for name, value in ended[0].items() if name != "sessionId"}
            await client.prompt(session, "on we go")
            assert (await view_of(client, session))["running"] is False

    run(main())


@pytest.mark.requirement("6.kill-processes")
def test_agents_do_not_outlive_the_server(restarted: Restarted) -> None:
    assert len(set(restarted.pids)) == 2
    assert not any(map(alive, restarted.pids))
