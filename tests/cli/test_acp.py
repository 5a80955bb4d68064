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
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from sandbox_agent.cli.commands.stdio import Ledger, pause_before_repeat
from sandbox_agent.wire.headers import WITH_IDS
from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import OUTCOME_UNKNOWN, Client, Json, run
from tests.support.cutting import proxy as proxied
from tests.support.forkery import forkery
from tests.support.running import BOUND, TOKEN, Server, scripted


def frame(number: int, **fields: Any) -> bytes:
    return f"{number}\n{json.dumps({'jsonrpc': '2.0', **fields})}".encode()


def line(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def test_a_request_is_sent_again_under_its_key_until_it_is_answered_and_answered_once() -> None:
    ledger = Ledger()
    sent = ledger.outgoing(line(id=1, method="session/prompt", params={}), "k1")
    assert sent is not None
    assert sent.startswith(b"k1\n{")
    assert ledger.again() == [sent]
    assert ledger.incoming(frame(7, id=1, result={})) is not None
    assert (ledger.incoming(frame(8, id=1, result={})), ledger.again(), ledger.last) == (None, [], 8)


def test_answers_and_notifications_are_sent_again_until_the_server_acknowledges_them() -> None:
    ledger = Ledger()
    cancel = ledger.outgoing(line(method="session/cancel", params={"sessionId": "s"}), "k1")
    answer = ledger.outgoing(line(id=5, result=ALLOW), "k2")
    assert ledger.again() == [cancel, answer]
    assert ledger.incoming(frame(3, id="k1", result={})) is None
    assert ledger.again() == [answer]
    assert ledger.incoming(frame(4, id="k2", error={"code": -32600, "message": "nobody asked"})) is None
    assert ledger.again() == []


def test_an_answer_that_a_lost_node_cannot_take_is_kept_and_sent_again() -> None:
    ledger = Ledger()
    answer = ledger.outgoing(line(id=5, result=ALLOW), "k1")
    ledger.outgoing(line(method="session/cancel", params={"sessionId": "s"}), "k2")
    away = {"code": -32603, "message": "is not there", "data": {"type": "node-unreachable"}}
    for number, key in enumerate(("k1", "k2")):
        assert ledger.incoming(frame(number, id=key, error=away)) is None
    assert (ledger.take_refused(), ledger.take_refused()) == ({b'"k1"': 1}, {}), "a late cancel could end another turn"
    assert ledger.again() == [ledger.find_unacknowledged(b'"k1"')] == [answer]
    ledger.incoming(frame(3, id="k1", result={}))
    assert ledger.find_unacknowledged(b'"k1"') is None


def test_an_answer_that_is_refused_again_and_again_is_repeated_less_often_and_not_when_it_is_withdrawn() -> None:
    ledger = Ledger()
    ledger.incoming(frame(1, id="n.run.0.1", method=PERMISSION, params={"sessionId": "s"}))
    ledger.outgoing(line(id="n.run.0.1", result=ALLOW), "k1")
    away = {"code": -32603, "message": "is not there", "data": {"type": "node-unreachable"}}
    pauses: list[float] = []
    for number in range(2, 2000):
        ledger.incoming(frame(number, id="k1", error=away))
        [(key, refusals)] = ledger.take_refused().items()
        assert key == b'"k1"'
        pauses.append(pause_before_repeat(refusals))
    assert pauses[:6] == [3, 6, 12, 24, 30, 30]
    assert set(pauses[6:]) == {30}
    ledger.incoming(frame(2000, id="k1", error=away))
    ledger.incoming(frame(2001, method="$/cancel_request", params={"requestId": "n.run.0.1"}))
    assert ledger.take_refused() == {}
    assert (ledger.find_unacknowledged(b'"k1"'), ledger.again()) == (None, [])


def test_a_new_connection_withdraws_what_was_asked_and_fails_what_may_have_happened() -> None:
    ledger = Ledger()
    ledger.incoming(frame(7, id=0, method=PERMISSION, params={"sessionId": "s"}))
    ledger.outgoing(line(id=1, method="session/new", params={}), "k1")
    prompt = ledger.outgoing(line(id=2, method="session/prompt", params={"sessionId": "s", "prompt": []}), "k2")
    told = [json.loads(one) for one in ledger.renew()]
    assert told[0]["params"] == {"requestId": 0}
    assert (told[1]["id"], told[1]["error"]["data"]["type"]) == (1, "outcome-unknown")
    assert ledger.again() == [prompt], "its session knows what became of it"
    assert ledger.outgoing(line(id=0, result=ALLOW), "k3") is None, "the next request under this id is another one"
    shown = ledger.incoming(frame(2, id=0, method=PERMISSION, params={"sessionId": "s"}))
    assert shown is not None
    name = json.loads(shown)["id"]
    assert name != 0
    sent = ledger.outgoing(line(id=name, result=ALLOW), "k4")
    assert sent is not None
    assert json.loads(sent.partition(b"\n")[2])["id"] == 0
    withdrawn = ledger.incoming(frame(3, method="$/cancel_request", params={"requestId": 0}))
    assert withdrawn is not None
    assert json.loads(withdrawn)["params"]["requestId"] == name


def test_initialize_has_no_key_and_complaints_about_repeats_are_not_shown() -> None:
    ledger = Ledger()
    assert (ledger.outgoing(line(id=0, method="initialize", params={}), "k") or b"").startswith(b"{")
    assert ledger.incoming(frame(3, id=None, error={"code": -32600, "message": "nobody asked"})) is None
    assert ledger.outgoing(b"nonsense", "k") == b"nonsense"


def test_a_new_session_becomes_the_one_that_was_named() -> None:
    ledger = Ledger("s-1")
    sent = ledger.outgoing(line(id=1, method="session/new", params={"cwd": "/here", "mcpServers": []}), "k")
    assert sent is not None
    assert json.loads(sent.partition(b"\n")[2])["method"] == "session/resume"
    shown = ledger.incoming(frame(2, id=1, result={"modes": None}))
    assert shown is not None
    assert json.loads(shown)["result"]["sessionId"] == "s-1"


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
        *(*forkery().stand_in, "acp", *flags),
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


def test_an_editor_on_stdio_drives_a_session_across_cuts(server: Server) -> None:
    async def main() -> None:
        async with proxied(server.url) as proxy, editor("--connect", f"{proxy.url}/acp/scripted") as own:
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
        frames: list[str | bytes] = []

        async def pretend(socket: ServerConnection) -> None:
            await socket.send(frame(1, id="n.run.0.1", method=PERMISSION, params={"sessionId": "s"}).decode())
            away = {"code": -32603, "message": "is not there", "data": {"type": "node-unreachable"}}
            outcomes: list[Json] = [{"error": away}, {"result": {}}]
            for outcome in outcomes:
                frames.append(await socket.recv())
                key = str(frames[-1]).partition("\n")[0]
                await socket.send(frame(2, id=key, **outcome).decode())
            await socket.send(frame(3, method="x/taken", params={}).decode())
            await socket.wait_closed()

        async with serve(pretend, "127.0.0.1", 0, subprotocols=[Subprotocol(WITH_IDS)]) as serving:
            port = serving.sockets[0].getsockname()[1]
            async with editor("--connect", f"http://127.0.0.1:{port}") as own:
                asked = await own.next()
                await own.send(id=asked["id"], result=ALLOW)
                assert (await own.next())["method"] == "x/taken"
        assert frames[0] == frames[1]

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
        with pytest.raises(AssertionError, match="wants its token"):
            async with editor("--connect", server.url, token="another"):
                pass

    run(main())
