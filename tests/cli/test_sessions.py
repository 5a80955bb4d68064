"""`sandbox-agent sessions …`: finding, seeing, naming and ending the sessions of a running server."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandboxagent import LogEvent
from sandboxagent.cli.commands.session_log import line, summary
from sandboxagent.cli.commands.sessions import age
from tests.cli.cli_call import CliCall, ended, interrupted, nobody_reads, reading
from tests.cli.place import PROGRAM, Place
from tests.support.client import Client, Json, run
from tests.support.on_terminal import OnTerminal
from tests.support.running import SCRIPTED, Server, scripted

ASK = ["ask", "session/request_permission", {"toolCall": {"toolCallId": "t", "title": "Push"}, "options": []}]


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server(agents={"other": scripted()}) as running:
        yield running


@pytest.fixture
def calling(place: Place, server: Server) -> CliCall:
    return CliCall(place, server)


def new(server: Server, count: int = 1, cwd: Path | None = None, **meta: object) -> list[str]:
    """New sessions; the keywords are our metadata."""

    async def make() -> list[str]:
        async with Client(server) as client:
            params: Json = {"cwd": str(cwd or server.work), "mcpServers": [], "_meta": {"sandboxagent.dev": meta}}
            made = await asyncio.gather(*(client.result("session/new", params) for _ in range(count)))
            return [each["sessionId"] for each in made]

    return run(make())


def prompt(server: Server, session: str, *texts: object) -> None:
    async def say() -> None:
        async with Client(server) as client:
            for text in texts:
                await client.prompt(session, text)

    run(say())


# --- list and show ----------------------------------------------------------------------------------------------------


@pytest.mark.server_alone("its list follows a moment behind what was done; docs/fleet.md says so")
def test_the_list_tells_what_each_session_is_about_and_does(calling: CliCall, tmp_path: Path) -> None:
    async def states() -> list[str]:
        async with Client(calling.server) as client, client.stream() as stream:
            ids = []
            for _ in range(4):
                params: Json = {"cwd": str(tmp_path), "mcpServers": []}
                ids.append((await client.result("session/new", params))["sessionId"])
            _idle, running, waiting, over = ids
            turns = [asyncio.create_task(client.prompt(running, [["say", "go"], ["wait_cancel"]]))]
            # So that it was used before the next one.
            await stream.until(lambda event: event.text == "go")
            turns.append(asyncio.create_task(client.prompt(waiting, [ASK, ["wait_answer"]])))
            await stream.method("session/request_permission")
            await client.result("_sandboxagent/session/terminate", {"sessionId": over})
            told = await asyncio.to_thread(calling.well, "sessions", "list", "--cwd", str(tmp_path))
            for session in (running, waiting):
                await client.notify("session/cancel", {"sessionId": session})
            await asyncio.gather(*turns)
            assert [row.split()[0] for row in told.lines[1:]] == ids[::-1], "last used first"
            return told.lines

    titles, *rows = run(states())
    assert titles.split() == ["id", "agent", "state", "title", "directory", "used"]
    assert [row.split()[2] for row in rows] == ["ended", "waiting", "running", "idle"]
    assert all(re.fullmatch(r"\S+  scripted  \w+ +-  +\S+ +\d+s", row) for row in rows), rows


def test_json_is_what_the_server_says(calling: CliCall, tmp_path: Path) -> None:
    (session,) = new(calling.server, cwd=tmp_path, ticket="A-1")

    listed = calling.well("sessions", "list", "--json", "--cwd", str(tmp_path)).json
    one = calling.well("sessions", "show", session, "--json").json

    assert listed == {"sessions": [one]}
    assert (one["sessionId"], one["metadata"]) == (session, {"ticket": "A-1"})


@pytest.mark.server_alone("its list follows a moment behind what was done; docs/fleet.md says so")
def test_the_session_that_was_used_last_comes_first(calling: CliCall, tmp_path: Path) -> None:
    [first], [second] = new(calling.server, cwd=tmp_path), new(calling.server, cwd=tmp_path)
    prompt(calling.server, first, "hello")

    listed = calling.well("sessions", "list", "--cwd", str(tmp_path), "--json").json["sessions"]
    assert [each["sessionId"] for each in listed] == [first, second]


def test_all_pages_are_listed_and_a_limit_takes_the_newest(calling: CliCall, tmp_path: Path) -> None:
    made = new(calling.server, 203, cwd=tmp_path)

    listed = calling.well("sessions", "list", "--cwd", ".", "--json", cwd=tmp_path).json["sessions"]
    some = calling.well("sessions", "list", "--cwd", str(tmp_path), "--limit", "2", "--json").json["sessions"]
    none = calling.well("sessions", "list", "--cwd", str(tmp_path), "--agent", "other", "--json").json["sessions"]

    assert {each["sessionId"] for each in listed} == set(made)
    assert some == listed[:2]
    assert none == []


def test_a_session_is_shown_with_its_facts_and_nothing_that_moves_a_terminal(calling: CliCall) -> None:
    (session,) = new(calling.server, title="Two\nlines \x1b[31mred", requestedSessionId="nice-name", list=[1, 2])

    told = calling.well("sessions", "show", "nice-name").out

    facts = dict(re.findall(r"^(\w+) +(.+)$", told, re.MULTILINE))
    assert facts["session"] == session
    assert facts["title"] == "Two lines ?[31mred"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \(\d+s ago\)", facts["created"]), told
    assert (facts["alias"], facts["agent"], facts["state"], facts["pending"]) == ("nice-name", "scripted", "idle", "0")
    assert "list = [1,2]" in told
    assert "\x1b" not in told


def test_a_session_whose_agent_has_stopped_is_idle_and_how_it_stopped_is_shown(calling: CliCall) -> None:
    (session,) = new(calling.server)
    prompt(calling.server, session, [["stderr", "out of luck"], ["exit", 3]])

    told = calling.well("sessions", "show", session).out
    listed = calling.well("sessions", "list").lines

    assert [row.split()[2] for row in listed if row.startswith(session)] == ["idle"]
    assert calling.well("sessions", "show", session, "--json").json["ended"] is True
    assert re.search(r"^state +idle; a prompt resumes it$", told, re.MULTILINE)
    assert re.search(r"^stopped +error, by the agent, agent scripted exited with code 3", told, re.MULTILINE)
    assert re.search(r"^stderr +out of luck$", told, re.MULTILINE)


# --- names ------------------------------------------------------------------------------------------------------------


def test_the_beginning_of_an_id_will_do_when_there_is_only_one(calling: CliCall) -> None:
    one, two = (
        new(calling.server, requestedSessionId="unique-a")[0],
        new(calling.server, requestedSessionId="unique-b")[0],
    )

    def shown(name: str) -> str:
        return calling.well("sessions", "show", name, "--json").json["sessionId"]

    assert shown("unique-a") == shown(one) == one
    assert shown(two) == two
    several = calling.refused("sessions", "show", "unique-")
    assert several == f"2 sessions begin with 'unique-': {two}, {one}"
    assert calling.refused("sessions", "show", "") == "there is no session ''; try: sandbox-agent sessions list"
    assert calling.refused("sessions", "show", "nobody/knows?it") == (
        "there is no session 'nobody/knows?it'; try: sandbox-agent sessions list"
    )


def test_of_many_candidates_some_are_listed(calling: CliCall, tmp_path: Path) -> None:
    first = new(calling.server, 12, cwd=tmp_path)[0]

    told = calling.refused("sessions", "show", first.partition("-")[0])

    found = re.fullmatch(r"(\d+) sessions begin with '(\w+)': (.+) and (\d+) more", told)
    assert found is not None, told
    assert int(found[1]) == len(found[3].split(", ")) + int(found[4]) >= 12


def test_a_session_may_be_called_anything(place: Place) -> None:
    with Server(agents={"odd": scripted("--session-id", "a/b ?c%2F..")}) as server:

        async def make() -> None:
            async with Client(server, "odd") as client:
                await client.new_session()

        run(make())
        calling = CliCall(place, server)

        assert calling.well("sessions", "show", "a/b ?c%2F..", "--json").json["agent"] == "odd"
        assert calling.well("sessions", "terminate", "a/").lines == ["a/b ?c%2F.. is terminated"]


# --- events -----------------------------------------------------------------------------------------------------------


def test_the_log_is_a_line_for_each_event(calling: CliCall) -> None:
    (session,) = new(calling.server)
    prompt(calling.server, session, [["say", "Hello\n\x1b[2Jthere"], ["respond_error", -32000, "no more"]])

    lines = calling.well("sessions", "events", session).lines
    told = [
        re.fullmatch(r" *(\d+)  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (client|agent |server)  (.+)", each) for each in lines
    ]

    assert all(told), lines
    said = [(each[2].strip(), each[3]) for each in told if each]
    assert said[0][1].startswith("session/new #")
    assert ("agent", "agent_message: Hello ?[2Jthere") in said
    assert ("server", "turn started") in said
    assert ("server", "turn ended: no more") in said
    assert any(who == "agent" and re.fullmatch(r"error to #\d+: no more \(-32000\)", what) for who, what in said)
    ids = [int(each[1]) for each in told if each]
    assert ids == sorted(set(ids))


def test_json_lines_are_the_log_itself_and_go_on_after_an_event(calling: CliCall) -> None:
    (session,) = new(calling.server)
    # More than a page.
    prompt(calling.server, session, [["flood", 1500, 10]])

    events = calling.well("sessions", "events", session, "--json").objects
    rest = calling.well("sessions", "events", session, "--json", "--after", str(events[700]["id"])).objects

    assert all(list(each) == ["id", "at", "direction", "envelope"] for each in events)
    assert sum(each["envelope"].get("method") == "session/update" for each in events) == 1500
    assert [each["direction"] for each in events[:2]] == ["fromClient", "fromAgent"]
    assert rest == events[701:]


def test_following_goes_on_with_what_comes_until_interrupted(calling: CliCall) -> None:
    (session,) = new(calling.server)
    process = calling.start("sessions", "events", session, "--follow")
    reading(process.stdout, lambda line: b"answer to #" in line)

    prompt(calling.server, session, "first", "second")
    reading(process.stdout, lambda line: b"agent_message: first" in line)
    reading(process.stdout, lambda line: b"prompt: second" in line)
    reading(process.stdout, lambda line: b"turn ended: end_turn" in line)
    ran = interrupted(process, signal.SIGINT)

    assert (ran.code, ran.err) == (130, "")


def test_a_reader_that_goes_away_is_no_failure(calling: CliCall) -> None:
    (session,) = new(calling.server)
    prompt(calling.server, session, [["flood", 2000, 100]])

    process = calling.start("sessions", "events", session)
    reading(process.stdout, lambda line: True)

    assert nobody_reads(process) == (141, b"")


def test_a_log_can_be_read_when_its_agent_does_not_start_any_more(place: Place, tmp_path: Path) -> None:
    program = tmp_path / "fragile.py"
    program.symlink_to(SCRIPTED)
    with Server(agents={"fragile": f"command = {json.dumps([sys.executable, '-I', '-S', str(program)])}"}) as server:

        async def make() -> str:
            async with Client(server, "fragile") as client:
                session = await client.new_session()
                await client.prompt(session, [["say", "last words"], ["kill"]])
                return session

        session = run(make())
        program.unlink()
        calling = CliCall(place, server)

        assert any(each.endswith("last words") for each in calling.well("sessions", "events", session).lines)
        assert calling.well("sessions", "rename", session, "Gone").code == 0


@pytest.mark.parametrize(
    ("envelope", "expected"),
    [
        (
            {
                "method": "session/update",
                "params": {"update": {"sessionUpdate": "plan", "entries": [{"content": "a"}]}},
            },
            "plan: a",
        ),
        (
            {
                "method": "session/update",
                "params": {"update": {"sessionUpdate": "tool_call", "title": "Run", "status": "pending"}},
            },
            "tool_call: pending, Run",
        ),
        ({"method": "session/update", "params": {"update": {"sessionUpdate": "new", "x": 1}}}, 'new {"x":1}'),
        ({"method": "session/update", "params": []}, "update {}"),
        ({"method": "session/prompt", "params": {"prompt": [{"type": "image"}, {"text": "t"}]}}, "prompt: [image] t"),
        ({"method": "session/prompt", "params": {"content": "old"}}, "prompt: old"),
        ({"id": "a", "method": "x/y", "params": {"sessionId": "s", "n": 1}}, 'x/y #a {"n":1}'),
        ({"id": 1.0, "result": None}, "answer to #1.0: null"),
        ({"id": 1, "error": {"code": 5, "message": "no"}}, "error to #1: no (5)"),
        ({}, "answer to #null: null"),
    ],
)
def test_an_envelope_in_short(envelope: Json, expected: str) -> None:
    assert summary(envelope) == expected


def test_a_line_is_as_wide_as_it_may_be() -> None:
    event = LogEvent(7, "2026-01-31T12:00:00.000Z", "fromAgent", {"method": "x", "params": {"text": "y" * 500}})

    assert len(line(event, 80)) == 80
    assert line(event, 80).endswith("y…")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-5, "0s"), (59.9, "59s"), (61, "1m"), (7200, "2h"), (86400 * 40, "40d")]
)
def test_an_age_is_printed_in_its_largest_unit(seconds: float, expected: str) -> None:
    assert age(datetime.now(UTC) - timedelta(seconds=seconds)) == expected


# --- changes ----------------------------------------------------------------------------------------------------------


def test_facts_are_noted_and_taken_away(calling: CliCall) -> None:
    (session,) = new(calling.server, ticket="A-1", owner="Ada")

    told = calling.well("sessions", "set", session, "owner=Grace H.", "size:=3", "ticket:=null", "empty=", "a=b=c").out
    renamed = calling.well("sessions", "rename", session, "Fix the build", "--json").json
    now = calling.well("sessions", "show", session, "--json").json

    assert re.search(r"^metadata  owner = Grace H\.$", told, re.MULTILINE)
    assert now["metadata"] == {"owner": "Grace H.", "size": 3, "empty": "", "a": "b=c", "title": "Fix the build"}
    assert renamed == {"metadata": now["metadata"]}
    assert now["title"] == "Fix the build"


@pytest.mark.parametrize(
    ("fact", "complaint"),
    [
        ("ticket", "expected KEY=TEXT or KEY:=JSON, got 'ticket'"),
        ("=x", "expected KEY=TEXT or KEY:=JSON, got '=x'"),
        ("n:=x", "n:= expects JSON: "),
    ],
)
def test_what_is_no_fact_is_a_mistake(calling: CliCall, fact: str, complaint: str) -> None:
    assert calling.refused("sessions", "set", "any", fact, code=2).startswith(complaint)


def test_sessions_are_terminated_each_for_itself(calling: CliCall) -> None:
    one, two = new(calling.server, 2)

    ran = calling("sessions", "terminate", one, "no-such", two, one)
    again = calling.well("sessions", "terminate", one, "--json").json

    assert (ran.code, ran.lines) == (1, [f"{one} is terminated", f"{two} is terminated"])
    assert ran.err == "sandbox-agent: there is no session 'no-such'; try: sandbox-agent sessions list\n"
    assert again["sessions"][0]["sessionId"] == one
    assert again["sessions"][0]["alreadyEnded"] is True
    assert calling.well("sessions", "terminate", two).lines == [f"{two} had ended already"]


def test_sessions_are_ended_and_deleted_also_of_agents_that_cannot_delete(place: Place) -> None:
    with Server(agents={"keeps": scripted("--no-delete")}) as server:
        calling = CliCall(place, server)

        async def make() -> tuple[str, str]:
            async with Client(server) as one, Client(server, "keeps") as other:
                return await one.new_session(), await other.new_session()

        gone, kept = run(make())
        ran = calling.well("sessions", "delete", kept, gone)

        assert ran.lines[0].startswith(f"{kept} is deleted; agent keeps ")
        assert ran.lines[0].endswith("its own copy stays")
        assert ran.lines[1:] == [f"{gone} is deleted"]
        assert calling.well("sessions", "list", "--json").json["sessions"] == []


@pytest.fixture
def busy(calling: CliCall) -> Generator[str]:
    """A session in which a turn runs until it is cancelled."""
    (session,) = new(calling.server)
    process = calling.start("run", "scripted", '[["say", "at work"], ["wait_cancel"]]', "--session", session, "--json")
    try:
        assert process.stdin is not None
        process.stdin.close()
        reading(process.stdout, lambda line: b"at work" in line)
        yield session
    finally:
        ended(process)


def test_a_session_with_a_running_turn_is_deleted_after_the_terminal_has_asked(calling: CliCall, busy: str) -> None:
    environ = {**calling.place.environment, **calling.environ}
    for answer, code, outcome in (("n", 1, "the session is kept"), ("y", 0, f"{busy} is deleted")):
        with OnTerminal([*PROGRAM, "sessions", "delete", busy], environ, 200) as terminal:
            terminal.expect(f"{busy}: a turn is running, and is cut off\ngo on? y/n:")
            terminal.type(f"{answer}\n")
            terminal.expect(outcome)
            assert terminal.expect_end() == code
    assert calling.refused("sessions", "show", busy).startswith("there is no session ")


@pytest.mark.parametrize("flags", [(), ("--yes",)])
def test_a_session_with_a_running_turn_is_deleted_in_a_pipe(
    calling: CliCall, busy: str, flags: tuple[str, ...]
) -> None:
    ran = calling.well("sessions", "delete", busy, *flags)

    assert ran.lines == [f"{busy} is deleted"]
    assert ran.err == ("" if flags else f"sandbox-agent: {busy}: a turn is running, and is cut off\n")


# --- everything -------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_colours_and_with_no_color_none(calling: CliCall, tmp_path: Path) -> None:
    (session,) = new(calling.server, cwd=tmp_path, title="A title that is so long that it has to be broken into lines")
    calling.well("sessions", "terminate", session)

    code, drawn = calling.on_a_terminal("sessions", "list", "--cwd", str(tmp_path))
    _, plain = calling.on_a_terminal("sessions", "list", "--cwd", str(tmp_path), NO_COLOR="1")
    _, log = calling.on_a_terminal("sessions", "events", session)

    assert code == 0
    assert "\x1b[2mended" in drawn
    assert session in drawn, "an id is never broken"
    assert "\x1b" not in plain
    assert "\x1b[36mclient" in log
    assert all(len(re.sub(r"\x1b\[\d+m", "", each)) <= 100 for each in log.splitlines())


@pytest.mark.parametrize("words", ["list", "show x", "events x", "rename x y", "set x a=b", "terminate x", "delete x"])
def test_without_a_server_it_is_one_line(place: Place, words: str) -> None:
    ran = place.run("sessions", *words.split(), "--endpoint", "http://127.0.0.1:9")

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert ran.stderr.startswith("sandbox-agent: no server answers at http://127.0.0.1:9 (")
