"""`sandbox-agent attach`: the past of a session, what happens there, answers and prompts from here."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.cli_call import ended, interrupted
from tests.cli.place import LONGEST, PROGRAM, Place
from tests.cli.talking import PERMISSION, Talking, asks, program, reading
from tests.support.on_terminal import OnTerminal
from tests.support.running import Server, scripted


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server(agents={"frail": scripted("--no-load", "--no-resume")}) as running:
        yield running


@pytest.fixture
def call(place: Place, server: Server) -> Talking:
    return Talking(place, server)


def session(call: Talking, *prompts: str, agent: str = "scripted") -> str:
    """A session in which this was said; its id."""
    id = ""
    for prompt in prompts:
        more = ("--session", id) if id else ()
        id = call.well("run", agent, prompt, "--json", *more).objects[-1]["result"]["sessionId"]
    return id


def said(*texts: str) -> str:
    return program(*(["say", text] for text in texts))


class Busy:
    """A session in which a turn runs that ends when it is cancelled."""

    def __init__(self, call: Talking) -> None:
        self.call = call
        before = {each["sessionId"] for each in call.sessions()}
        self.process = call.start(
            "run", "scripted", program(["say", "at work\n"], ["wait_cancel"]), stdin=subprocess.DEVNULL
        )
        assert reading(self.process.stdout) == b"at work\n"
        # The first of the list may be another, whose last turn has only now been told.
        (self.id,) = {each["sessionId"] for each in call.sessions()} - before

    def cancel(self) -> None:
        assert interrupted(self.process, signal.SIGINT).code == 130

    def __enter__(self) -> "Busy":
        return self

    def __exit__(self, *_: object) -> None:
        ended(self.process)


# --- the past ---------------------------------------------------------------------------------------------------------


def test_the_last_turn_is_shown_or_as_many_as_are_asked_for(call: Talking) -> None:
    id = session(call, said("one"), said("two"), said("three"))

    def shown(*flags: str) -> str:
        with call.on_terminal("attach", id, *flags, "--read-only") as terminal:
            terminal.expect("\n\nthree")
            terminal.type("\x03")
            assert terminal.expect_end() == 130
            return str(terminal.screen)

    last, two, everything = shown(), shown("--history", "2"), shown("--all")
    assert '❯ [["say", "three"]]\n\nthree' in last
    assert "two" not in last
    assert "two" in two
    assert "one" not in two
    assert "one" in everything


def test_a_session_is_found_by_its_beginning_and_an_unknown_one_is_an_error(call: Talking) -> None:
    id = session(call, "hello", agent="mock")

    with call.on_terminal("attach", id[:12], "--history", "0") as terminal:
        terminal.expect("❯")
        assert "hello" not in str(terminal.screen)
        terminal.type("\x04")
        assert terminal.expect_end() == 0
    assert call.refused("attach", "nope") == "there is no session 'nope'; try: sandbox-agent sessions list"
    assert call.refused("attach", id, "--all", "--history", "1", code=2) == "--all and --history exclude each other"


def test_a_session_that_has_ended_is_shown_and_left(call: Talking) -> None:
    id = session(call, said("last words"))
    call.well("sessions", "terminate", id)

    ran = call.well("attach", id)

    assert ran.out == "last words\n"


def test_a_session_whose_agent_has_stopped_is_idle_and_a_prompt_resumes_it(call: Talking) -> None:
    call("run", "mock", "crash")
    id = call.sessions()[0]["sessionId"]

    with call.on_terminal("attach", id) as terminal:
        terminal.expect("the session is idle; a prompt resumes it")
        terminal.type("hello\r")
        terminal.expect("You said: hello")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


# --- what happens -----------------------------------------------------------------------------------------------------


def test_what_others_do_is_seen_as_it_happens(call: Talking) -> None:
    with Busy(call) as busy, call.on_terminal("attach", busy.id) as terminal:
        terminal.expect("at work")
        busy.cancel()
        terminal.expect("cancelled\n❯")
        call.well("run", "mock", "elsewhere")
        call.well("run", "scripted", said("the answer"), "--session", busy.id)
        terminal.expect('❯ [["say", "the answer"]]\n\nthe answer')
        terminal.type("\x03")

        assert terminal.expect_end() == 130
        assert terminal.is_as_it_was
        assert "elsewhere" not in str(terminal.screen)


def test_a_line_that_is_typed_is_sent_as_a_prompt(call: Talking) -> None:
    id = session(call, "first")

    with call.on_terminal("attach", id) as terminal:
        terminal.expect("❯")
        terminal.type("second\r")
        terminal.expect("❯ second\n\nsecond\n")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_the_first_answer_counts_and_the_others_learn_of_it(call: Talking) -> None:
    with call.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as first:
        first.expect("a/A/r?")
        with call.on_terminal("attach", call.sessions()[0]["sessionId"], columns=400) as second:
            second.expect("a/A/r?")
            lines = second.screen.lines
            assert lines[2].startswith('❯ [["ask"'), "what led to it is shown before it is asked"
            second.type("a\r")
            second.expect('"optionId":"yes"')
            first.expect("an answer is no longer needed")
            first.expect("allowed by ")

            assert first.expect_end() == 0
            second.type("\x03")
            assert second.expect_end() == 130


def test_who_only_looks_is_asked_nothing_and_answers_nothing(call: Talking) -> None:
    with call.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as first:
        first.expect("a/A/r?")
        id = call.sessions()[0]["sessionId"]
        piped = call.start("attach", id, stdin=subprocess.DEVNULL)
        with call.on_terminal("attach", id, "--read-only") as second:
            second.expect('❯ [["ask"')
            first.type("r\r")
            assert first.expect_end() == 0
            second.expect("rejected by ")
            assert "a/A/r?" not in str(second.screen)
        assert b'"optionId":"no"' in reading(piped.stdout, lambda line: b"jsonrpc" in line)
        ran = interrupted(piped, signal.SIGINT)
        assert ran.code == 130
        assert "no handler" not in ran.err


def test_it_ends_with_the_session(call: Talking) -> None:
    id = session(call, "hello")
    with call.on_terminal("attach", id) as terminal:
        terminal.expect("❯")
        call.well("sessions", "terminate", id)

        terminal.expect("the session was terminated")
        assert terminal.expect_end() == 0


@pytest.mark.parametrize("flags", [(), ("--read-only",)])
def test_it_stays_when_the_agent_crashes_and_goes_on_when_a_prompt_resumes_it(
    call: Talking, flags: tuple[str, ...]
) -> None:
    id = session(call, "hello", agent="mock")
    with call.on_terminal("attach", id, *flags) as terminal:
        terminal.expect("You said: hello")
        call("run", "mock", "crash", "--session", id)
        terminal.expect("the agent has stopped: ")
        terminal.expect("the next prompt resumes the session")
        call.well("run", "mock", "and now?", "--session", id)
        terminal.expect("You said: and now?")
        terminal.type("\x03")

        assert terminal.expect_end() == 130


def test_in_a_pipe_it_ends_with_the_agent(call: Talking) -> None:
    id = session(call, "hello", agent="mock")
    process = call.start("attach", id, stdin=subprocess.DEVNULL)
    try:
        reading(process.stdout, lambda line: b"You said" in line)
        call("run", "mock", "crash", "--session", id)
        assert process.wait(timeout=LONGEST) == 1
    finally:
        ended(process)


def test_it_ends_with_the_agent(call: Talking) -> None:
    id = session(call, "hello", agent="frail")
    with call.on_terminal("attach", id) as terminal:
        terminal.expect("❯")
        call("run", "frail", program(["exit", 3]), "--session", id)

        terminal.expect("the agent has stopped: agent frail exited with code 3")
        assert terminal.expect_end() == 1


def test_it_goes_on_when_the_server_was_restarted(place: Place, tmp_path: Path) -> None:
    with Server(directory=tmp_path / "server") as server:
        call = Talking(place, server)
        id = session(call, "hello")
        with call.on_terminal("attach", id) as terminal:
            terminal.expect("❯")
            port = server.url.rpartition(":")[2]
            assert server.stop() == 0
            terminal.expect("the connection to the server broke")
            server.flags = ("--port", port)
            server.start()

            terminal.expect("the next prompt resumes the session")
            terminal.type("back again\r")
            terminal.expect("back again", 2)
            terminal.type("\x04")
            assert terminal.expect_end() == 0


def test_it_finds_a_server_again_that_came_back_on_another_port(place: Place) -> None:
    start = ("daemon", "start", "--port", "0", "--json")
    first = place.json(*start)
    try:
        place.run("run", "mock", "hello", "--cwd", str(place.directory))
        [known] = place.json("sessions", "list", "--json")["sessions"]
        environ = {**place.environment, "TERM": "xterm-256color"}
        with OnTerminal([*PROGRAM, "attach", known["sessionId"]], environ) as terminal:
            terminal.expect("You said: hello")
            os.kill(first["pid"], signal.SIGKILL)
            terminal.becomes(
                lambda screen: re.search(r"broke; reconnecting … [1-9]\d* s$", screen, re.M) is not None, "a time"
            )
            assert str(terminal.screen).count("the connection to the server broke") == 1
            with socket.create_server(("127.0.0.1", int(first["url"].rpartition(":")[2]))):
                second = place.json(*start)
            assert second["url"] != first["url"]
            terminal.expect("reconnected to the server after ")
            terminal.type("still there?\r")
            terminal.expect("You said: still there?")
            terminal.type("\x04")

            assert terminal.expect_end() == 0
            assert "the connection to the server broke" not in str(terminal.screen)
            assert str(terminal.screen).count("reconnected to the server after ") == 1
    finally:
        place.run("daemon", "stop", "--yes")


# --- pipes and JSON ---------------------------------------------------------------------------------------------------


def test_in_a_pipe_there_are_words(call: Talking) -> None:
    with Busy(call) as busy:
        process = call.start("attach", busy.id, stdin=subprocess.DEVNULL)
        try:
            assert reading(process.stdout) == b"at work\n"
            busy.cancel()
            reading(process.stderr, lambda line: line == b"cancelled\n")
            call.well("sessions", "terminate", busy.id)
            assert process.wait(timeout=LONGEST) == 0
        finally:
            ended(process)


def test_json_lines_are_every_envelope_of_the_log(call: Talking) -> None:
    with Busy(call) as busy:
        process = call.start("attach", busy.id, "--all", "--json", stdin=subprocess.DEVNULL)
        try:
            first = json.loads(reading(process.stdout))
            prompt = json.loads(reading(process.stdout, lambda line: b"session/prompt" in line))
            busy.cancel()
            turn = json.loads(reading(process.stdout, lambda line: b'"ended"' in line))
            call.well("sessions", "terminate", busy.id)
            *_, last = [json.loads(line) for line in process.stdout or ()]
            assert process.wait(timeout=LONGEST) == 0
        finally:
            ended(process)
    assert first["method"] == "session/new"
    assert prompt["params"]["prompt"][0]["type"] == "text"
    assert turn["params"]["stopReason"] == "cancelled"
    assert last["method"] == "_sandboxagent/session/ended"


def test_who_stops_reading_ends_it(call: Talking) -> None:
    id = session(call, program(["say", "0 1 "], ["flood", 300, 1000]))
    process = call.start("attach", id, "--all", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.read(4) == b"0 1 "
    process.stdout.close()
    try:
        assert process.wait(timeout=LONGEST) == 141
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    finally:
        ended(process)
