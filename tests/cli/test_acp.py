"""`sandbox-agent acp`: a server for a program that speaks ACP on stdio, also when the network is cut."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.cli.commands.acp import MessageLedger
from sandboxagent.client.errors import ConnectionLost, ServerProblem
from sandboxagent.client.incoming import Arrival
from sandboxagent.protocol.envelope import META, Envelope, parse
from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import OUTCOME_UNKNOWN, Client, Json, run
from tests.support.cutting import Proxy
from tests.support.cutting import proxy as proxied
from tests.support.fork_server import fork_server
from tests.support.pretending import EVENTS, SESSION, asks, pretender, problem, update
from tests.support.running import BOUND, TOKEN, Server, scripted


def line(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def asked(**fields: Any) -> Envelope:
    """A line of the editor's."""
    return parse(line(**fields))


def came(position: int, generation: int = 1, **fields: Any) -> Arrival:
    """An envelope of the server's."""
    data = line(**fields)
    return Arrival(json.loads(data), position, data, generation)


def test_a_request_is_answered_once_under_the_id_that_it_has() -> None:
    ledger = MessageLedger()
    sent = ledger.ask(asked(id=1.0, method="session/prompt", params={}))
    assert sent.line == line(id=1.0, method="session/prompt", params={})
    assert ledger.incoming(came(7, id=1.0, result={})) == line(id=1.0, result={})
    assert (ledger.incoming(came(8, id=1.0, result={})), ledger.last) == (None, 8)
    assert ledger.fail(b"1.0", ConnectionLost("gone")) is None


def test_ledger_drops_shutting_down_errors_and_errors_without_id() -> None:
    """The request stays open, for the next server to answer."""
    ledger = MessageLedger()
    ledger.ask(asked(id=1, method="session/prompt", params={}))
    stops = {"code": -32603, "message": "stops", "data": {"type": "shutting-down"}}
    assert ledger.incoming(came(1, id=1, error=stops)) is None
    assert ledger.incoming(came(2, id=None, error={"code": -32600, "message": "nobody asked"})) is None
    assert ledger.incoming(came(3, id=1, result={})) is not None


def test_failed_request_has_its_reason_or_an_unknown_outcome() -> None:
    """The outcome is unknown if the request may have been carried out."""
    ledger = MessageLedger()
    failures: list[Json] = []
    lost = ConnectionLost("gone", outcome_unknown=True)
    refused = ServerProblem("too-many", "Too Many", 429, "wait", {"limit": 1})
    for id, error in enumerate((lost, refused)):
        ledger.ask(asked(id=id, method="session/new", params={}))
        failures.append(json.loads(ledger.fail(b"%d" % id, error) or b"")["error"]["data"])
    assert failures == [{"type": "outcome-unknown"}, {"type": "too-many", "limit": 1}]


def test_a_new_connection_withdraws_what_was_asked_and_names_what_it_asks_itself() -> None:
    ledger = MessageLedger()
    ledger.incoming(came(7, id=0, method=PERMISSION, params={"sessionId": "s"}))
    [told] = [json.loads(one) for one in ledger.renew()]
    assert (told["method"], told["params"], ledger.last) == ("$/cancel_request", {"requestId": 0}, 0)
    assert not ledger.questions, "the next request under this id is another one"
    shown = ledger.incoming(came(2, 2, id=0, method=PERMISSION, params={"sessionId": "s"}))
    assert shown is not None
    name = json.loads(shown)["id"]
    assert name != 0
    assert ledger.questions[json.dumps(name).encode()].id == (2, "0")
    withdrawn = ledger.incoming(came(3, 2, method="$/cancel_request", params={"requestId": 0}))
    assert withdrawn is not None
    assert json.loads(withdrawn)["params"]["requestId"] == name
    assert not ledger.questions


def test_an_answer_is_repeated_no_more_when_its_request_is_withdrawn() -> None:
    async def main() -> None:
        ledger = MessageLedger()
        ledger.incoming(came(1, id="n.run.0.1", method=PERMISSION, params={"sessionId": "s"}))
        [question] = ledger.questions.values()
        answering = question.answering = asyncio.create_task(asyncio.Event().wait())
        ledger.incoming(came(2, method="$/cancel_request", params={"requestId": "n.run.0.1"}))
        await asyncio.wait([answering])
        assert answering.cancelled()

    run(main())


def test_a_request_whose_answer_did_not_fit_can_be_answered_again() -> None:
    ledger = MessageLedger()
    ledger.incoming(came(1, id=5, method=PERMISSION, params={"sessionId": "s"}))
    question = ledger.questions[b"5"]
    ledger.settle(b"5", question, is_answered=False)
    assert ledger.questions == {b"5": question}
    ledger.settle(b"5", question, is_answered=True)
    assert not ledger.questions


def test_a_new_session_becomes_the_one_that_was_named() -> None:
    ledger = MessageLedger("s-1")
    sent = ledger.ask(asked(id=1, method="session/new", params={"cwd": "/here", "mcpServers": []}))
    assert (sent.method, sent.session_id) == ("session/resume", "s-1")
    shown = ledger.incoming(came(2, id=1, result={"modes": None}))
    assert shown is not None
    assert json.loads(shown)["result"]["sessionId"] == "s-1"
    assert ledger.sessions == {"s-1": 0}


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server("--default-agent", "scripted") as running:
        yield running


class Editor:
    """A program that has started the bridge as its agent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen: list[Json] = []

    async def send(self, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line(**fields) + b"\n")
        await self.process.stdin.drain()

    async def next(self) -> Json:
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            self.seen.append(json.loads(await self.process.stdout.readline()))
        return self.seen[-1]

    async def call(self, id: int, method: str, params: Json) -> Json:
        await self.send(id=id, method=method, params=params)
        while not ((found := await self.next()).get("id") == id and "method" not in found):
            pass
        return found


@asynccontextmanager
async def editor(*flags: str, token: str = TOKEN) -> AsyncGenerator[Editor]:
    process = await asyncio.create_subprocess_exec(
        *(*fork_server().stand_in, "acp", *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SANDBOX_AGENT_TOKEN": token, "NO_PROXY": "*"},
        limit=1 << 24,
    )
    assert process.stdin is not None
    try:
        yield Editor(process)
        process.stdin.close()
        async with asyncio.timeout(BOUND):
            assert await process.wait() == 0, (await process.stderr.read()).decode() if process.stderr else ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class WithoutSockets(Proxy):
    """A proxy that lets no WebSocket through."""

    def passes(self, data: bytes) -> bool:
        return b"upgrade: websocket" not in data.lower()


@pytest.mark.parametrize("kind", [Proxy, WithoutSockets])
def test_an_editor_on_stdio_drives_a_session_across_cuts(server: Server, kind: type[Proxy]) -> None:
    async def main() -> None:
        async with proxied(server.url, kind) as proxy, editor("--connect", f"{proxy.url}/acp/scripted") as own:
            assert "result" in await own.call(0, "initialize", {"protocolVersion": 1})
            session = (await own.call(1, "session/new", {"cwd": server.work, "mcpServers": []}))["result"]["sessionId"]
            program = [["flood", 100, 10], permission(), ["wait_answer"], ["flood", 100, 10]]
            await own.send(id=2, method="session/prompt", params=Client.prompt_params(session, program))
            for _ in range(20):
                await own.next()
            proxy.cut()
            while (asked := await own.next()).get("method") != PERMISSION:
                pass
            await own.send(id=asked["id"], result=ALLOW)
            proxy.cut()
            while (answer := await own.next()).get("id") != 2:
                pass
            assert answer["result"]["stopReason"] == "end_turn"
            texts = [
                one["params"]["update"]["content"]["text"] for one in own.seen if "update" in one.get("params", {})
            ]
            assert [int(text.split()[0]) for text in texts] == [*range(100), *range(100)]
            assert len([one for one in own.seen if one.get("method") == PERMISSION]) == 1

    run(main())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_editor_goes_on_when_the_server_was_started_anew(tmp_path: Path, how: signal.Signals) -> None:
    async def main(own_server: Server) -> None:
        async with proxied(own_server.url) as proxy, editor("--connect", f"{proxy.url}/acp/keeping") as own:
            await own.call(0, "initialize", {"protocolVersion": 1})
            where = {"cwd": own_server.work, "mcpServers": []}
            session = (await own.call(1, "session/new", where))["result"]["sessionId"]
            await own.send(
                id=2,
                method="session/prompt",
                params=Client.prompt_params(session, [["flood", 50, 10], permission(), ["wait_answer"]]),
            )
            while (asked := await own.next()).get("method") != PERMISSION:
                pass
            await asyncio.to_thread(own_server.stop, how)
            await asyncio.to_thread(own_server.start)
            proxy.target = own_server.url
            while (answer := await own.next()).get("id") != 2:
                pass
            assert answer["error"]["data"]["type"] in OUTCOME_UNKNOWN
            while not any(one.get("method") == "$/cancel_request" for one in own.seen):
                # A gateway withdraws it when the new run is there, and may give up the turn before.
                await own.next()
            withdrawn = [one["params"] for one in own.seen if one.get("method") == "$/cancel_request"]
            assert [one["requestId"] for one in withdrawn][:1] == [asked["id"]], withdrawn
            turn = await own.call(3, "session/prompt", Client.prompt_params(session, [["flood", 50, 10]]))
            assert turn["result"]["stopReason"] == "end_turn"
            texts = [
                one["params"]["update"]["content"]["text"] for one in own.seen if "update" in one.get("params", {})
            ]
            assert [int(text.split()[0]) for text in texts] == [*range(50), *range(50)]

    keeping = scripted("--state", str(tmp_path / "state"))
    with Server(directory=tmp_path, agents={"keeping": keeping}) as own_server:
        run(main(own_server))


def test_an_editor_answers_once_while_the_bridge_repeats_it_until_the_node_is_back() -> None:
    async def main() -> None:
        async with pretender() as pretending, editor("--connect", pretending.url) as own:
            refusals = [problem("node-unreachable", 503), problem("log-unavailable", 507)]
            pretending.results["None"] = lambda post: refusals.pop(0) if refusals else {}
            await own.call(0, "initialize", {"protocolVersion": 1})
            await pretending.told(1, asks("n.run.0.1", "any"))
            question = await own.next()
            await own.send(id=question["id"], result=ALLOW)
            await pretending.until(lambda: len(pretending.answers()) == 3)
            await pretending.told(2, {"jsonrpc": "2.0", "method": "x/taken", "params": {}})
            assert (await own.next())["method"] == "x/taken"
        assert [post.envelope["result"] for post in pretending.answers()] == [ALLOW] * 3

    run(main())


def logged(position: int) -> dict[str, object]:
    return {"id": position, "at": "now", "direction": "fromAgent", "envelope": update(str(position))}


def test_restarts_repeat_nothing_and_what_the_log_no_longer_has_is_told() -> None:
    async def main() -> None:
        async with pretender() as pretending, editor("--connect", pretending.url, "--session", "s-1") as own:
            await own.call(0, "initialize", {"protocolVersion": 1})
            await own.call(1, "session/new", {"cwd": "/", "mcpServers": []})
            await pretending.told(3, update("three"))
            assert (await own.next())["params"] == update("three")["params"]
            for after, position in ((3, 9), (9, 12)):
                pretending.results["_sandboxagent/session/attach"] = {"session": SESSION, "position": position}
                gap = {"after": after, "resumesAt": position}
                page = {"events": [logged(position)], "next": None, "gap": gap}
                pretending.results[EVENTS] = page
                pretending.restart()
                assert [(await own.next())["params"] for _ in range(2)] == [gap, update(str(position))["params"]]
            await pretending.told(13, update("thirteen"))
            assert (await own.next())["params"] == update("thirteen")["params"]
        pages = [post.envelope["params"] for post in pretending.requests(EVENTS)]
        assert [(page["after"], page["before"]) for page in pages] == [(3, 10), (9, 13)], "what was shown is not again"

    run(main())


def test_the_agent_of_the_command_line_is_named_unless_the_editor_names_one() -> None:
    async def main() -> None:
        async with pretender() as pretending:
            for meta in ({}, {META: {"user": "u"}}, {META: {"agent": "own"}}):
                async with editor("--connect", f"{pretending.url}/acp/given") as own:
                    await own.call(0, "initialize", {"protocolVersion": 1, "_meta": meta})
        metas = [post.envelope["params"]["_meta"][META] for post in pretending.requests("initialize")]
        assert metas == [{"agent": "given"}, {"user": "u", "agent": "given"}, {"agent": "own"}]

    run(main())


def test_an_initialize_that_fails_is_answered_and_may_be_tried_again(server: Server) -> None:
    async def main() -> None:
        async with editor("--connect", server.url) as own:
            wrong = await own.call(0, "initialize", {"protocolVersion": 1, "_meta": {META: {"agent": "nobody"}}})
            assert wrong["error"]["data"]["type"] == "unknown-agent"
            assert "result" in await own.call(1, "initialize", {"protocolVersion": 1})
            assert "result" in await own.call(2, "session/new", {"cwd": server.work, "mcpServers": []})

    run(main())


def test_what_an_editor_says_last_arrives(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with editor("--connect", server.url, "--session", session) as own:
                await own.call(0, "initialize", {"protocolVersion": 1})
                await own.call(1, "session/new", {"cwd": server.work, "mcpServers": []})
                await own.send(id=2, method="session/prompt", params=Client.prompt_params(session, "the last word"))
            async with client.stream() as stream:
                await stream.until(lambda event: "the last word" in str(event))

    run(main())


def test_an_editor_gets_the_session_that_was_named(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with editor("--connect", server.url, "--agent", "scripted", "--session", session) as own:
                await own.call(0, "initialize", {"protocolVersion": 1})
                opened = await own.call(1, "session/new", {"cwd": "/on/this/machine", "mcpServers": []})
                assert opened["result"]["sessionId"] == session
                turn = await own.call(2, "session/prompt", Client.prompt_params(session, "hello"))
                assert turn["result"]["stopReason"] == "end_turn"

    run(main())


def test_a_wrong_token_ends_the_program_with_a_reason(server: Server) -> None:
    async def main() -> None:
        with pytest.raises(AssertionError, match="--token"):
            async with editor("--connect", server.url, token="another"):
                pass

    run(main())
