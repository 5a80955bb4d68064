"""`sandbox-agent api v1 rpc`: envelopes in, envelopes out, in their true order (contract, sections 2 to 4)."""

import asyncio
import json
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from sandboxagent.cli.commands.rpc import PendingOutput
from sandboxagent.client.errors import ClientError, ConnectionLost
from tests.cli.cli_call import CliCall, ended, interrupted, nobody_reads, reading
from tests.cli.place import Place
from tests.support.client import META, Client, Json, run
from tests.support.fork_server import fork_server
from tests.support.pretending import Post, pretender, update
from tests.support.running import BOUND, TOKEN, Server, eventually

RPC = ("api", "v1", "rpc")
SCRIPTED = (*RPC, "--agent", "scripted")
ASK = ["ask", "session/request_permission", {"toolCall": {"toolCallId": "t"}, "options": []}]
CANCELLED = {"outcome": {"outcome": "cancelled"}}


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def calling(place: Place, server: Server) -> CliCall:
    return CliCall(place, server)


def envelope(method: str, params: Json | None = None, id: object = None) -> Json:
    named = {} if id is None else {"id": id}
    return {"jsonrpc": "2.0", **named, "method": method, "params": params or {}}


def initialize(agent: str = "scripted", id: object = "begin") -> Json:
    return envelope("initialize", {"protocolVersion": 1, "_meta": {META: {"agent": agent}}}, id)


def prompt(session: str, program: object, id: object) -> Json:
    return envelope("session/prompt", Client.prompt_params(session, program), id)


def lines(*envelopes: Json | str) -> bytes:
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in envelopes).encode()


def new(server: Server) -> str:
    async def make() -> str:
        async with Client(server) as client:
            return await client.new_session()

    return run(make())


def texts(came: list[Any]) -> list[str]:
    return [each["params"]["update"]["content"]["text"] for each in came if each.get("method") == "session/update"]


def answers(came: list[Any]) -> dict[object, Any]:
    """Responses by id."""
    return {each["id"]: each.get("result", each.get("error")) for each in came if "method" not in each}


@contextmanager
def connection(server: Server) -> Generator[tuple[httpx.Client, str]]:
    """Another program's connection, and who has it."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, verify=False, timeout=BOUND) as http:
        id = http.post("/v1/rpc", json=initialize()).headers["X-ACP-Connection-Id"]
        http.headers["X-ACP-Connection-Id"] = id
        yield http, id


# --- in and out -------------------------------------------------------------------------------------------------------


def test_the_first_line_may_open_the_connection_and_is_answered_like_any_other(calling: CliCall) -> None:
    sent = lines(initialize(), "", envelope("x/echo", {"deep": [1.0, "é\u2028"]}, id=1.0))

    ran = calling.well(*RPC, input=sent)

    first, second = ran.objects
    assert (first["id"], first["result"]["agentInfo"]["name"]) == ("begin", "scripted")
    assert second["result"]["params"] == {"deep": [1.0, "é\u2028"]}
    assert b'"id":1.0' in ran.raw.replace(b" ", b""), "an id keeps its spelling"
    assert ran.err == ""


def test_envelopes_may_be_arguments_and_stdin_is_then_left_alone(calling: CliCall) -> None:
    first = json.dumps(envelope("x/echo", {"n": 1}, 1))
    ran = calling.well(*SCRIPTED, "-d", first, "--data", first.replace("1", "2"), input=b"nonsense")

    assert {id: each["params"] for id, each in answers(ran.objects).items()} == {1: {"n": 1}, 2: {"n": 2}}


def test_on_a_terminal_json_moves_nothing(calling: CliCall) -> None:
    sent = json.dumps(envelope("x/echo", {"text": "a\x9b2J\u202eb\U000e0001é"}, 1), ensure_ascii=False)

    code, text = calling.on_a_terminal(*SCRIPTED, "-d", sent)

    assert code == 0
    assert json.loads(text)["result"]["params"]["text"] == "a\x9b2J\u202eb\U000e0001é"
    assert all(letter.isprintable() or letter in "\r\n" for letter in text)


def test_an_answer_comes_after_all_that_came_before_it(calling: CliCall) -> None:
    session = new(calling.server)

    came = calling.well(*SCRIPTED, input=lines(prompt(session, [["flood", 3000, 200]], "p"))).objects

    methods = [each.get("method") for each in came]
    assert methods[0] == "_sandboxagent/session/turn"
    assert len(texts(came)) == 3000
    assert [each.get("id") for each in came].index("p") > max(
        index for index, method in enumerate(methods) if method == "session/update"
    )


def test_what_is_sent_arrives_in_its_order(calling: CliCall) -> None:
    session = new(calling.server)
    words = [f"word {number}" for number in range(12)]

    came = calling.well(*SCRIPTED, input=lines(*(prompt(session, word, word) for word in words))).objects

    assert texts(came) == words
    # Each answer comes on a socket of its own.
    assert sorted(answers(came)) == sorted(words)


def test_requests_run_at_the_same_time_and_the_end_waits_for_all(calling: CliCall) -> None:
    sent = lines(
        envelope("x/hang", id=1), envelope("x/hang", id=1), envelope("x/echo", id=2), envelope("x/release", id=3)
    )

    came = calling.well(*SCRIPTED, input=sent).objects

    assert sorted(each["id"] for each in came) == [1, 1, 2, 3]
    assert came[0]["id"] == 2


def test_an_agent_that_asks_is_answered_by_the_next_line(calling: CliCall) -> None:
    session = new(calling.server)
    process = calling.start(*SCRIPTED)
    assert process.stdin is not None
    process.stdin.write(lines(prompt(session, [ASK, ["echo_answer"]], 5)))
    process.stdin.flush()

    asked = json.loads(reading(process.stdout, lambda line: b"request_permission" in line))
    stdout, stderr = process.communicate(
        lines({"jsonrpc": "2.0", "id": asked["id"], "result": CANCELLED}), timeout=BOUND
    )

    came = [json.loads(line) for line in stdout.splitlines()]
    assert (process.returncode, stderr) == (0, b"")
    assert json.loads(texts(came)[0])["result"] == CANCELLED
    assert answers(came) == {5: {"stopReason": "end_turn"}}


def test_a_response_that_is_an_error_is_a_response(calling: CliCall) -> None:
    ran = calling.well(*SCRIPTED, input=lines(envelope("x/error", {"code": 7, "message": "no"}, 1)))

    assert answers(ran.objects)[1]["message"] == "no"


def test_following_ends_when_interrupted(calling: CliCall) -> None:
    process = calling.start(*SCRIPTED, "--follow", "-d", json.dumps(envelope("x/echo", id=1)))
    reading(process.stdout, lambda line: True)

    ran = interrupted(process, signal.SIGINT)

    assert (ran.code, ran.raw, ran.err) == (130, b"", "")


def test_a_reader_that_goes_away_is_no_failure(calling: CliCall) -> None:
    session = new(calling.server)
    process = calling.start(*SCRIPTED, "-d", json.dumps(prompt(session, [["flood", 5000, 500]], 1)))
    reading(process.stdout, lambda line: True)

    assert nobody_reads(process) == (141, b"")


def test_a_reader_that_is_slow_is_cut_off_and_misses_nothing(place: Place) -> None:
    with Server("--stream-buffer", "64KiB", "--stall-timeout", "100ms") as server:
        session = new(server)
        process = CliCall(place, server).start(*SCRIPTED, "-d", json.dumps(prompt(session, [["flood", 2000, 9000]], 1)))
        try:
            # The whole turn goes by while no program reads.
            eventually(lambda: turn_is_over(server, session), "the end of the turn")
            stdout, stderr = process.communicate(timeout=120)
        finally:
            ended(process)

    came = [json.loads(line) for line in stdout.splitlines()]
    numbers = [int(text.split()[0]) for text in texts(came)]
    assert (process.returncode, stderr) == (0, b"")
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 2000
    assert came[-1]["id"] == 1


def turn_is_over(server: Server, session: str) -> bool:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    view = httpx.get(
        f"{server.url}/v1/sessions/{session}", headers=headers, trust_env=False, verify=False, timeout=BOUND
    ).json()
    return view["eventCount"] > 2000 and not view["running"]


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_connection_can_be_kept_and_used_again(calling: CliCall) -> None:
    ran = calling.well(*SCRIPTED, "--keep", "-d", json.dumps(envelope("x/echo", id=1)))
    told, _, id = ran.err.strip().rpartition("=")

    again = calling.well(*RPC, f"--connection={id}", input=lines(envelope("x/echo", id=2)))
    once_more = calling.well(*RPC, f"--connection={id}", "--after", "0", input=lines(envelope("x/echo", id=3)))

    assert told == "sandbox-agent: the connection stays open; use it with --connection"
    assert [each["id"] for each in again.objects] == [2], "from now on"
    assert [each["id"] for each in once_more.objects] == [1, 2, 3], "from the beginning"


def test_a_connection_is_closed_at_the_end_unless_it_is_another_programs(calling: CliCall) -> None:
    with connection(calling.server) as (http, id):
        calling.well(*RPC, f"--connection={id}", input=lines(envelope("x/echo", id=2)))

        assert http.post("/v1/rpc", json=envelope("x/echo", id=3)).status_code == 200
        assert http.delete("/v1/rpc").status_code == 204
        gone = calling.refused(*RPC, f"--connection={id}", input=lines(envelope("x/echo", id=4)))
        assert gone.startswith("Unknown Connection: ")


def test_without_the_stream_another_program_keeps_it(calling: CliCall) -> None:
    session = new(calling.server)
    with connection(calling.server) as (http, id), http.stream("GET", "/v1/rpc") as stream:
        received = stream.iter_lines()
        ran = calling.well(*RPC, f"--connection={id}", "--no-stream", input=lines(prompt(session, "to you", 1)))

        assert ran.objects == [{"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "end_turn"}}]
        assert any("to you" in line for line in received)


def test_a_stream_that_another_program_takes_over_is_reported(calling: CliCall) -> None:
    with connection(calling.server) as (http, id):
        process = calling.start(*RPC, f"--connection={id}", "--follow", "-d", json.dumps(envelope("x/echo", id=1)))
        reading(process.stdout, lambda line: True)
        with http.stream("GET", "/v1/rpc"):
            _, stderr = process.communicate(timeout=BOUND)

    assert process.returncode == 1
    assert stderr.startswith(b"sandbox-agent: the server has ended the stream: another client listens")
    assert stderr.count(b"\n") == 1


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_the_server_refuses_is_a_line_and_the_rest_goes_on(calling: CliCall) -> None:
    bad = ["no json", '{"jsonrpc": "1.0"}', {"jsonrpc": "2.0", "id": 9, "result": {}}]

    ran = calling(*SCRIPTED, input=lines(envelope("x/echo", id=1), *bad, "", envelope("x/echo", id=2)))

    assert ran.code == 1
    assert sorted(answers(ran.objects)) == [1, 2]
    assert [line.split(": ")[1:3] for line in sorted(ran.err.splitlines())] == [
        ["line 2", "Not a JSON-RPC Envelope"],
        ["line 3", "Not a JSON-RPC Envelope"],
        ["line 4", "Nobody Asked"],
    ]


@pytest.mark.parametrize(
    ("flags", "sent", "complaint"),
    [
        ([], b"\n", "there is nothing to send, and no connection is open: open one with --agent, or"),
        ([], lines(envelope("x/echo", id=1)), "no connection is open: open one with --agent, or"),
        ([], lines(initialize("nobody")), "Unknown Agent: no agent is called 'nobody'"),
        (["--agent", "nobody"], b"", "Unknown Agent: no agent is called 'nobody'"),
        (["--connection", "nobody"], b"", "Unknown Connection: "),
        (
            ["--agent", "scripted", "--timeout", "0"],
            lines(envelope("x/hang", id="h")),
            'nothing came for 0 s; not answered: "h"',
        ),
    ],
)
def test_a_failure_is_one_line(calling: CliCall, flags: list[str], sent: bytes, complaint: str) -> None:
    assert calling.refused(*RPC, *flags, input=sent).startswith(complaint)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--agent", "a", "--connection", "b"], "--agent and --connection contradict each other; give one of them"),
        (["--connection", "é"], "--connection: expected a connection's id"),
        (["--timeout", "-1"], "argument --timeout: expected a number from 0 on, got '-1'"),
        (["--after", "x"], "argument --after: expected a number from 0 on, got 'x'; try: sandbox-agent api v1 rpc"),
    ],
)
def test_a_mistake_is_one_line(calling: CliCall, flags: list[str], complaint: str) -> None:
    assert calling.refused(*RPC, *flags, code=2).startswith(complaint)


def test_a_server_that_stops_is_reported(place: Place) -> None:
    with Server() as server:
        process = CliCall(place, server).start(*SCRIPTED, "--follow", "-d", json.dumps(envelope("x/echo", id=1)))
        reading(process.stdout, lambda line: True)
        server.stop()
        _, stderr = process.communicate(timeout=BOUND)

    assert process.returncode == 1
    assert stderr.startswith(b"sandbox-agent: the server has ended the stream: ")
    assert stderr.count(b"\n") == 1


# --- the order, and what is still to come -----------------------------------------------------------------------------


def test_an_answer_beside_the_stream_is_held_back_until_the_stream_has_come_so_far() -> None:
    """By X-ACP-Last-Event-Id, for servers that do not answer on the stream though they are asked to."""

    async def main() -> None:
        async with pretender() as pretending:

            def late(post: Post) -> Json:
                pretending.last_event = 7
                return {}

            pretending.results["x/late"] = late
            process = await asyncio.create_subprocess_exec(
                *(*fork_server().stand_in, *SCRIPTED, "--endpoint", pretending.url),
                *("-d", json.dumps(envelope("x/late", id=1))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "NO_PROXY": "*"},
            )
            assert process.stdout is not None
            await pretending.until(lambda: pretending.requests("x/late"))
            for number in (6, 7):
                await pretending.told(number, update(str(number)))
            came = [json.loads(line) async for line in process.stdout]
            assert await process.wait() == 0
        assert texts(came) == ["6", "7"]
        assert came[-1]["id"] == 1

    run(main())


def response(id: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {}}).encode()


def test_the_same_id_twice_is_answered_twice_and_ids_are_their_text() -> None:
    written: list[bytes] = []
    output = PendingOutput(written.append)
    for _ in range(2):
        output.send(b"1")
    output.end()
    answers = [response(1), response("1"), response(1.0)]
    for each in answers:
        output.receive(each)
    assert (output.is_done, output.waiting) == (False, "1")
    output.receive(response(1))
    assert output.is_done
    assert written == [*answers, response(1)]


def test_what_was_refused_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    output = PendingOutput(lambda line: None)
    output.send(b"1")
    output.refuse(3, ClientError("no"), b"1")
    output.end()

    assert (output.is_done, output.failed, output.failure) == (True, True, None)
    assert capsys.readouterr().err == "sandbox-agent: line 3: no\n"


def test_stream_that_keeps_breaking_without_progress_ends_the_exchange() -> None:
    output, cut = PendingOutput(lambda line: None), ConnectionLost("cut", outcome_unknown=True)
    for _ in range(5):
        output.interrupt(cut)
    output.receive(response(1))
    for _ in range(5):
        output.interrupt(cut)
    assert output.failure is None
    output.interrupt(cut)
    assert output.failure is cut


def test_a_server_that_is_gone_ends_the_exchange_at_once() -> None:
    output, gone = PendingOutput(lambda line: None), ConnectionLost("no server answers")
    output.interrupt(gone)
    assert output.failure is gone
