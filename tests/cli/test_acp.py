"""`sandbox-agent acp`: a server for a program that speaks ACP on stdio, also when the network is cut."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandbox_agent.cli.commands.acp import KEPT_BYTES, Ledger
from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import Client, Json, run
from tests.support.cutting import proxy as proxied
from tests.support.running import BOUND, TOKEN, Server


def frame(number: int, **fields: Any) -> bytes:
    return f"{number}\n{json.dumps({'jsonrpc': '2.0', **fields})}".encode()


def line(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def test_a_request_is_sent_again_under_its_key_until_it_is_answered_and_answered_once() -> None:
    ledger = Ledger()
    sent = ledger.outgoing(line(id=1, method="session/prompt", params={}), "k1")
    assert sent.startswith(b"k1\n{")
    assert ledger.again() == [sent]
    assert ledger.incoming(frame(7, id=1, result={})) is not None
    assert (ledger.incoming(frame(8, id=1, result={})), ledger.again(), ledger.last) == (None, [], 8)


def test_answers_are_sent_again_and_bounded_and_notifications_are_not() -> None:
    ledger = Ledger()
    ledger.outgoing(line(method="session/cancel", params={"sessionId": "s"}), "k")
    answer = ledger.outgoing(line(id=5, result=ALLOW), "k")
    assert ledger.again() == [answer]
    for number in range(20):
        ledger.outgoing(line(id=number, result={"text": "x" * (KEPT_BYTES // 10)}), "k")
    assert sum(map(len, ledger.again())) <= KEPT_BYTES


def test_initialize_has_no_key_and_complaints_about_repeats_are_not_shown() -> None:
    ledger = Ledger()
    assert ledger.outgoing(line(id=0, method="initialize", params={}), "k").startswith(b"{")
    assert ledger.incoming(frame(3, id=None, error={"code": -32600, "message": "nobody asked"})) is None
    assert ledger.outgoing(b"nonsense", "k") == b"nonsense"


def test_a_new_session_becomes_the_one_that_was_named() -> None:
    ledger = Ledger("s-1")
    sent = ledger.outgoing(line(id=1, method="session/new", params={"cwd": "/here", "mcpServers": []}), "k")
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
        *(sys.executable, "-m", "sandbox_agent", "acp", *flags),
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
