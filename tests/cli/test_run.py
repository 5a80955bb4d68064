"""`sandbox-agent run` in pipes: what goes where, exit codes, JSON lines, and which server it talks to."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.cli_call import ended, interrupted
from tests.cli.place import LONGEST, Place
from tests.cli.talking import PERMISSION, Talking, asks, form, program, questions, reading
from tests.support.running import Server, eventually, scripted


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server(agents={"frail": scripted("--no-load", "--no-resume")}) as running:
        yield running


@pytest.fixture
def run(place: Place, server: Server) -> Talking:
    return Talking(place, server)


def said(*texts: str) -> list[list[str]]:
    return [["say", text] for text in texts]


# --- what goes where --------------------------------------------------------------------------------------------------


def test_only_the_agents_words_go_to_stdout(run: Talking) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Look", "kind": "read", "status": "completed"}
    thought = {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}

    ran = run.well(
        "run", "scripted", program(*said("Hel", "lo."), ["update", call], ["update", thought], *said("Bye."))
    )

    assert ran.out == "Hello.\n\nBye.\n"
    assert ran.err == "✔ Look  read\nhm\n"


def test_quiet_is_words_alone(run: Talking) -> None:
    ran = run.well("run", "mock", "tool", "--quiet")

    assert (ran.out, ran.err) == ("The tool call is done. No file was touched.\n", "")


def test_words_in_a_pipe_are_as_the_agent_has_them(run: Talking) -> None:
    assert run.well("run", "scripted", program(*said("\x1b[31mred\r\n", "日本"))).out == "\x1b[31mred\r\n日本\n"


def test_who_stops_reading_ends_it(run: Talking) -> None:
    process = run.start("run", "mock", "slow 600", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 8)
    process.stdout.close()
    try:
        assert process.wait(timeout=LONGEST) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        ended(process)
    eventually(lambda: not any(session["running"] for session in run.sessions()), "the end of the turn")


# --- the prompt -------------------------------------------------------------------------------------------------------


def test_the_prompt_comes_through_a_pipe(run: Talking) -> None:
    assert run.well("run", "scripted", input=b"from stdin\n").out == "from stdin\n"
    assert run.well("run", "scripted", "-", input="grüße".encode()).out == "grüße\n"


def test_what_comes_through_a_pipe_follows_the_argument(run: Talking) -> None:
    assert run.well("run", "scripted", "explain:", input=b"some code\n").out == "explain:\n\nsome code\n"
    assert run.well("run", "scripted", "alone", input=b" \n").out == "alone\n"


def test_a_pipe_that_stays_open_is_not_waited_for(run: Talking) -> None:
    process = run.start("run", "scripted", "hello")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.wait(timeout=LONGEST) == 0
        assert process.stdout.read() == b"hello\n"
        assert b"nothing came from stdin in 3 s" in process.stderr.read()
    finally:
        ended(process)


def test_variables_are_passed_to_the_sessions_own_process(run: Talking) -> None:
    steps = program(["env", "DEPLOY_KEY"], ["env", "OTHER"])

    assert run.well("run", "scripted", steps, "--env", "DEPLOY_KEY=given", "--env", "OTHER=a=b").out == '"given""a=b"\n'
    assert run.well("run", "scripted", steps).out == "nullnull\n"


def test_files_go_with_the_prompt(run: Talking, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    ran = run.well("run", "mock", "look", "-f", "notes.txt", "--attach-file", ".", cwd=tmp_path)

    assert f"- notes.txt (file://{tmp_path}/notes.txt, text/plain)" in ran.out
    assert "inode/directory" in ran.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("mock",), "the prompt is empty; it is an argument, or comes from stdin"),
        (("mock", "  "), "the prompt is empty; it is an argument, or comes from stdin"),
        (("mock", "x", "--yes", "--no"), "--yes and --no exclude each other"),
        (
            ("mock", "x", "--session", "a", "--cwd", "."),
            "--cwd is for a new session, but --session names an existing one",
        ),
        (("mock", "x", "--env", "NOT_SET"), "--env: NOT_SET is not set here; set it, or give --env NOT_SET=VALUE"),
        ((), "the following arguments are required: AGENT; try: sandbox-agent run --help"),
    ],
)
def test_mistakes_are_printed_in_one_line(run: Talking, arguments: tuple[str, ...], complaint: str) -> None:
    assert run.refused("run", *arguments, code=2) == complaint


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop_reason", "code", "told"),
    [
        ("end_turn", 0, ""),
        ("max_tokens", 3, "stopped: the answer reached the model's length limit\n"),
        ("max_turn_requests", 3, "stopped: the agent reached its limit of model requests per turn\n"),
        ("refusal", 4, "the agent refuses to continue\n"),
        ("cancelled", 130, "cancelled\n"),
    ],
)
def test_the_exit_code_is_that_of_the_stop_reason(run: Talking, stop_reason: str, code: int, told: str) -> None:
    ran = run("run", "scripted", program(*said("so far"), ["respond", {"stopReason": stop_reason}]))

    assert (ran.code, ran.out, ran.err) == (code, "so far\n", told)


def test_an_agent_that_dies_is_reported_with_the_end_of_what_it_wrote(run: Talking) -> None:
    ran = run("run", "scripted", program(*said("Let me see"), ["stderr", "\x1b[1mout of luck"], ["exit", 7]))

    assert (ran.code, ran.out) == (1, "Let me see\n")
    assert ran.err == "sandbox-agent: agent scripted exited with code 7\n  | ?[1mout of luck\n"


def test_an_agents_error_is_printed(run: Talking) -> None:
    ran = run("run", "scripted", program(["respond_error", -32000, "no credit left"]))

    assert (ran.code, ran.err) == (1, "sandbox-agent: no credit left\n")


def test_an_unknown_stop_reason_is_a_failure(run: Talking) -> None:
    ran = run("run", "scripted", program(*said("so far"), ["respond", {"stopReason": "brand_new"}]))

    assert (ran.code, ran.out, ran.err) == (1, "so far\n", "stopped: brand_new\n")


def test_unknown_agent_session_directory_or_mode_is_one_line(run: Talking) -> None:
    nobody = run.refused("run", "nobody", "hello")
    nowhere = run.refused("run", "mock", "hello", "--session", "nope")
    elsewhere = run.refused("run", "mock", "hello", "--cwd", "/there/is/no/such")
    without = run.refused("run", "mock", "hello", "--permission-mode", "nope")

    assert nobody.startswith("Unknown Agent: no agent is called 'nobody'")
    assert nowhere == "there is no session 'nope'; try: sandbox-agent sessions list"
    assert "/there/is/no/such" in elsewhere
    assert without.startswith("agent mock has no permissionMode 'nope'")


def test_a_server_that_is_not_there_or_does_not_let_us_in_is_one_line(run: Talking) -> None:
    run.environ = {"SANDBOX_AGENT_ENDPOINT": "http://127.0.0.1:1"}
    assert run.refused("run", "mock", "hello") == "no server answers at http://127.0.0.1:1 (Connection refused)"

    wrong = run.refused("run", "mock", "hello", "--endpoint", run.server.url, "--token", "wrong")
    assert wrong.endswith("on the command line: --token, --token-file or SANDBOX_AGENT_TOKEN")


def test_a_model_or_a_mode_that_does_not_exist_is_an_error_and_no_turn_runs(run: Talking) -> None:
    before = {each["sessionId"] for each in run.sessions()}

    model = run.refused("run", "mock", "hello", "--model", "nope")
    mode = run.refused("run", "mock", "hello", "--mode", "nope")

    assert model == "agent mock has no model 'nope'; it has mock-small, mock-large"
    assert mode == "agent mock has no mode 'nope'; it has default, plan, yolo"
    after = {each["sessionId"] for each in run.sessions()}
    assert after == before, "nothing is left of the sessions in which nothing was said"


# --- going on ---------------------------------------------------------------------------------------------------------


def test_continue_takes_the_last_active_session_of_this_directory(run: Talking, tmp_path: Path) -> None:
    run.well("run", "mock", "first", cwd=tmp_path)
    [first] = run.well("sessions", "list", "--cwd", str(tmp_path), "--json").json["sessions"]
    run.well("run", "scripted", program(*said("second")), cwd=tmp_path)
    run.well("run", "mock", "elsewhere")

    of_mock = run.well("run", "mock", "-c", "again", "--json", cwd=tmp_path).objects[-1]["result"]
    newest = run.well("run", "-c", "once more", "--json", cwd=tmp_path).objects[-1]["result"]
    by_flag = run.well("run", "--continue", "--cwd", str(tmp_path), "and again", "--json").objects[-1]["result"]

    assert of_mock["sessionId"] == newest["sessionId"] == by_flag["sessionId"] == first["sessionId"]
    assert newest["text"].startswith("You said: once more")


def test_one_word_that_names_no_agent_is_the_prompt_of_a_continued_session(run: Talking, tmp_path: Path) -> None:
    run.well("run", "mock", "first", cwd=tmp_path)
    [session] = run.well("sessions", "list", "--cwd", str(tmp_path), "--json").json["sessions"]

    newest = run.well("run", "-c", "hello", "--json", cwd=tmp_path).objects[-1]["result"]
    named = run.well("run", "--session", session["sessionId"], "hello", "--json").objects[-1]["result"]

    assert newest["sessionId"] == named["sessionId"] == session["sessionId"]
    assert newest["text"].startswith("You said: hello")
    assert named["text"].startswith("You said: hello")


def test_one_word_that_names_an_agent_is_that_agent_and_the_prompt_is_stdin(run: Talking, tmp_path: Path) -> None:
    run.well("run", "mock", "first", cwd=tmp_path)
    [session] = run.well("sessions", "list", "--cwd", str(tmp_path), "--json").json["sessions"]

    answer = run.well("run", "-c", "mock", "--json", input=b"of stdin", cwd=tmp_path).objects[-1]["result"]

    assert answer["text"].startswith("You said: of stdin")
    assert run.refused("run", "--session", session["sessionId"], "scripted", input=b"x", code=2) == (
        f"session {session['sessionId']} belongs to mock, not to scripted"
    )


def test_one_word_for_a_server_that_does_not_answer_is_one_line(place: Place) -> None:
    ran = place.run("run", "-c", "hello", "--endpoint", "http://127.0.0.1:9")

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert ran.stderr.startswith("sandbox-agent: no server answers at http://127.0.0.1:9 (")


@pytest.mark.server_alone("its list follows a moment behind what was done; docs/fleet.md says so")
def test_continue_says_when_there_is_nothing_to_continue(run: Talking, tmp_path: Path) -> None:
    run.well("run", "mock", "hello", cwd=tmp_path)
    [session] = run.well("sessions", "list", "--cwd", str(tmp_path), "--json").json["sessions"]

    assert run.refused("run", "scripted", "x", "-c", cwd=tmp_path) == (
        f"there is no session of scripted in {tmp_path} to continue; without --continue, run starts one"
    )
    run.well("sessions", "terminate", session["sessionId"])
    assert run.refused("run", "-c", "go on", cwd=tmp_path).startswith(f"there is no session in {tmp_path} to continue")
    assert run.refused("run", "mock", "x", "-c", "--session", "y", code=2) == (
        "--session and --continue exclude each other"
    )
    assert run.refused("run", "mock", "x", "-c", "--permission-mode", "plan", code=2) == (
        "--permission-mode is for a new session, but --continue names an existing one"
    )


def test_verbose_shows_all_of_what_a_tool_did_also_in_a_pipe(run: Talking) -> None:
    output = "\n".join(f"line {number}" for number in range(30))
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Run", "status": "completed", "rawOutput": output}

    assert run.well("run", "scripted", program(["update", call])).err == "✔ Run\n"
    told = run.well("run", "scripted", program(["update", call]), "--verbose").err.splitlines()
    assert told[1:] == [f"  line {number}" for number in range(30)]


# --- interrupted ------------------------------------------------------------------------------------------------------


def test_ctrl_c_cancels_the_turn(run: Talking) -> None:
    process = run.start(
        "run", "scripted", program(*said("first\n"), ["wait_cancel"], *said("last words")), stdin=subprocess.DEVNULL
    )
    assert reading(process.stdout) == b"first\n"

    ran = interrupted(process, signal.SIGINT)

    assert (ran.code, ran.out) == (130, "last words\n")
    assert ran.err == "cancelled\n"


def test_ctrl_c_twice_does_not_wait_for_the_agent(run: Talking) -> None:
    process = run.start(
        "run",
        "scripted",
        program(*said("first\n"), ["wait_cancel"], *said("not yet\n"), ["sleep", 600]),
        stdin=subprocess.DEVNULL,
    )
    assert reading(process.stdout) == b"first\n"
    process.send_signal(signal.SIGINT)
    assert reading(process.stdout) == b"not yet\n"

    ran = interrupted(process, signal.SIGINT)

    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_an_agent_that_does_not_stop_is_not_waited_for(run: Talking) -> None:
    steps = program(*said("first\n"), ["wait_cancel"], ["sleep", 600])
    process = run.start("run", "scripted", steps, stdin=subprocess.DEVNULL)
    assert reading(process.stdout) == b"first\n"
    process.send_signal(signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=LONGEST)
    finally:
        ended(process)

    assert (process.returncode, stdout) == (130, b"")
    assert stderr == b"sandbox-agent: the agent has not ended its turn within 5 s\n"


def test_told_to_end_it_ends_the_turn(run: Talking) -> None:
    process = run.start("run", "scripted", program(*said("first\n"), ["wait_cancel"]), stdin=subprocess.DEVNULL)
    assert reading(process.stdout) == b"first\n"

    ran = interrupted(process, signal.SIGTERM)

    assert ran.code == 143


# --- what the agent asks ----------------------------------------------------------------------------------------------


def test_without_a_terminal_everything_is_rejected(run: Talking) -> None:
    permission = run.well("run", "scripted", asks("session/request_permission", PERMISSION))
    question = run.well("run", "scripted", questions({"question": "Which?", "options": [{"id": "a", "label": "A"}]}))
    elicitation = run.well("run", "scripted", form({"name": {"type": "string"}}))

    assert json.loads(permission.out)["result"] == {"outcome": {"outcome": "selected", "optionId": "no"}}
    assert permission.err == "✘ Run tests: rejected (there is no terminal to ask on)\n"
    assert json.loads(question.out)["result"] == {"status": "rejected"}
    assert question.err == "✘ Some questions: rejected (there is no terminal to ask on)\n"
    assert json.loads(elicitation.out)["result"] == {"action": "decline"}


def test_yes_allows_permissions_once_and_answers_no_questions(run: Talking) -> None:
    permission = run.well("run", "scripted", asks("session/request_permission", PERMISSION), "--yes")
    question = run.well("run", "scripted", questions({"question": "Which?", "options": []}), "-y")

    assert json.loads(permission.out)["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert permission.err.splitlines() == [
        "sandbox-agent: --yes: everything the agent asks permission for is allowed, once each time",
        "✔ Run tests: allowed (--yes)",
    ]
    assert json.loads(question.out)["result"] == {"status": "rejected"}


def test_yes_does_not_allow_for_good(run: Talking) -> None:
    only_always = {**PERMISSION, "options": [PERMISSION["options"][1], PERMISSION["options"][2]]}

    ran = run.well("run", "scripted", asks("session/request_permission", only_always), "--yes")

    assert json.loads(ran.out)["result"] == {"outcome": {"outcome": "selected", "optionId": "no"}}
    assert "rejected: the agent does not offer to allow it once" in ran.err


def test_what_belongs_to_another_clients_turn_is_left_to_it(run: Talking) -> None:
    first = run.start(
        "run",
        "scripted",
        program(*said("first\n"), ["ask", "session/request_permission", PERMISSION], ["wait_cancel"]),
        "--no",
        stdin=subprocess.DEVNULL,
    )
    assert reading(first.stdout) == b"first\n"
    reading(first.stderr, lambda line: b"rejected" in line)
    session = run.sessions()[0]["sessionId"]
    second = run.start("run", "scripted", "second", "--session", session, stdin=subprocess.DEVNULL)

    ran = interrupted(first, signal.SIGINT)
    stdout, stderr = second.communicate(timeout=LONGEST)

    assert ran.code == 130
    assert second.returncode in (0, 130), (stdout, stderr)
    assert b"rejected" not in stderr


# --- JSON lines -------------------------------------------------------------------------------------------------------


def test_json_lines_are_the_turn_as_it_is_on_the_wire(run: Talking) -> None:
    strange = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "b"}, "unheardOf": [1, None]}

    ran = run.well("run", "scripted", program(*said("a"), ["update", strange]), "--json")

    *lines, last = ran.objects
    updates = [line["params"]["update"] for line in lines if line["method"] == "session/update"]
    assert updates[-1] == strange
    assert [line["params"]["state"] for line in lines if line["method"] == "_sandboxagent/session/turn"] == [
        "started",
        "ended",
    ]
    assert lines[0]["method"] == lines[-1]["method"] == "_sandboxagent/session/turn"
    session = run.sessions()[0]
    facts = {"sessionId": session["sessionId"], "agent": "scripted", "cwd": session["cwd"]}
    assert last == {"result": {**facts, "text": "ab", "stopReason": "end_turn"}}
    assert ran.err == ""


def test_a_failure_is_the_last_line_and_told_on_stderr(run: Talking) -> None:
    crashed = run("run", "scripted", program(["exit", 7]), "--json")
    unknown = run("run", "nobody", "x", "--json")
    refused = run("run", "scripted", program(["respond", {"stopReason": "refusal"}]), "--json")

    assert (crashed.code, unknown.code, refused.code) == (1, 1, 4)
    assert crashed.objects[-1]["error"]["type"] == "agent-exited"
    assert crashed.objects[-1]["error"]["data"]["exitCode"] == 7
    assert crashed.err == "sandbox-agent: agent scripted exited with code 7\n"
    assert [list(line) for line in unknown.objects] == [["error"]]
    assert unknown.objects[0]["error"]["type"] == "unknown-agent"
    assert refused.objects[-1]["result"]["stopReason"] == "refusal"


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_is_gone_on_with_by_the_beginning_of_its_id(run: Talking) -> None:
    first = run.well("run", "mock", "hello", "--title", "My task", "--json").objects[-1]["result"]
    id = first["sessionId"]

    second = run.well("run", "mock", "and now?", "--session", id[:14], "--mode", "plan", "--json").objects[-1]["result"]
    other = run.refused("run", "scripted", "x", "--session", id, code=2)

    assert second["sessionId"] == id
    assert "and now?" in second["text"]
    session = next(each for each in run.sessions() if each["sessionId"] == id)
    assert session["mode"] == "plan"
    assert session["metadata"]["title"] == "My task"
    assert other == f"session {id} belongs to mock, not to scripted"


def test_a_session_is_in_the_directory_where_one_is(run: Talking, tmp_path: Path) -> None:
    here = run.well("run", "mock", "hello", "--json", cwd=tmp_path).objects[-1]["result"]
    there = run.well("run", "mock", "hello", "--json", "--cwd", str(run.work)).objects[-1]["result"]

    assert (here["cwd"], there["cwd"]) == (str(tmp_path), str(run.work))


def test_an_agent_is_installed_on_first_use(place: Place) -> None:
    flags = ("--acp-registry-url", str(place.registry), "--request-timeout", "1s")
    with Server(*flags, environment={"HOME": str(place.home)}) as server:
        run = Talking(place, server)

        ran = run("run", "works", "hello")
        dies = run("run", "dies", "hello")

        assert run.well("api", "v1", "agents", "get", "works").json["installed"] is True
    assert ran.err.startswith("works: ")
    assert ran.code == 1, "the made-up agent makes no sessions"
    assert dies.code == 1
    assert "  | out of it" in dies.err
