"""What once did harm, or nearly, besides requests, archives and rules: JSON, frames, texts for OpenCode, and aliases.

Each file of `corpus/json`, `corpus/websocket`, `corpus/opencode` and `corpus/aliases` is played at a server in memory.
Nobody else may notice. `LARGE` makes what is too large for a file.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from websockets.frames import Opcode

from sandboxagent.adapters.opencode.session_ids import id_of
from sandboxagent.protocol.envelope import parse
from sandboxagent.protocol.errors import NotAnEnvelope
from sandboxagent.server.log.event import session_channel
from tests.opencode.bridging import bridged
from tests.server.http.test_large_bodies import call, give, server, until
from tests.support.world import World, run, world

ROOM = Path(__file__).parent / "corpus"
JSON, FRAMES, OPENCODE = (sorted((ROOM / name).iterdir()) for name in ("json", "websocket", "opencode"))
NAMES = json.loads((ROOM / "aliases" / "names.json").read_text())
MOST = 5.0
"""The processor's seconds that one may take. Those of the attack took 10 and 37."""


def envelope_of(value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"x/y","params":{"sessionId":"s","a":%b}}' % value


LARGE: dict[str, Callable[[], bytes]] = {
    "one escape": lambda: envelope_of(b'"\\n%b"' % (b"x" * (8 << 20))),
    "a long name": lambda: envelope_of(b'{"%b":1}' % (b"x" * (8 << 20))),
    "half a pair and backslashes": lambda: envelope_of(b'"\\ud800%b"' % (b"\\\\" * (4 << 20))),
    "deep": lambda: envelope_of(b"[" * (1 << 20)),
    "many values": lambda: envelope_of(b"[%b1]" % (b"1," * (1 << 20))),
}


def fails_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def still_works(own: World) -> None:
    """Another line of the agent arrives, and a request is answered."""
    own.agent.updates("still here")
    asked = own.request("x/echo", {"sessionId": "s"})
    request = await own.process.request("x/echo")
    own.says(id=request["id"], result={"well": True})
    assert json.loads((await asked).line)["result"] == {"well": True}
    assert "still here" in json.dumps(await own.events())


def play_line(line: bytes) -> None:
    async def main() -> None:
        async with world() as own:
            own.hears(line + b"\n")
            own.hears(b"\n")
            await still_works(own)
            # Every client can read what has come through.
            for event in await own.heard(own.client):
                assert event["jsonrpc"] == "2.0"
            chunks = await own.log.page([session_channel("s")], 0, own.log.position)
            for envelope in (text for chunk in chunks for text in chunk.lines):
                assert b"\n" not in envelope
                parse(envelope)

    run(main())


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.stem)
def test_json_of_the_corpus_from_an_agent_harms_nobody(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play_line(path.read_bytes())
    fails_nowhere(caplog)


@pytest.mark.parametrize("name", LARGE)
def test_large_json_of_the_attack_from_an_agent_harms_nobody(name: str, caplog: pytest.LogCaptureFixture) -> None:
    began = time.process_time()
    play_line(LARGE[name]())
    assert time.process_time() - began < MOST
    fails_nowhere(caplog)


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.stem)
def test_json_of_the_corpus_from_a_client_harms_nobody(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = path.read_bytes()

    async def main() -> None:
        async with server() as one:
            answer = await one.post("/v1/rpc", body)
            assert int(answer.split(b" ")[1]) in (200, 202, 400, 404, 409, 501)
            assert b"HTTP/1.1 200" in await one.post("/v1/rpc", call(1))

    run(main())
    fails_nowhere(caplog)


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
@pytest.mark.parametrize("size", [1 << 20, 7, 1])
def test_frames_of_the_corpus_harm_nobody(path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    data = path.read_bytes()

    async def main() -> None:
        async with server() as one:
            peer = await one.open_websocket()
            for at in range(0, len(data), size):
                if peer.socket.transport.is_closing():
                    break
                peer.socket.protocol.data_received(data[at : at + size])
                await asyncio.sleep(0)
            await one.world.settled()
            one.world.client = one.world.connect()
            other = await one.open_websocket()
            before = len(other.socket.written)
            await give(other.socket, other.frame(Opcode.TEXT, call(1)))
            await until(lambda: len(other.socket.written) > before)
            assert b'"result"' in other.socket.written[before:]

    run(main())
    fails_nowhere(caplog)


def large_for_opencode() -> dict[str, Any]:
    """What stopped the server for 37 s, and for 10.6 s."""
    crafted = [["".join(f"{number % 7}\n" for number in range(at, at + 400)) for at in (0, 3)]] * 60
    return {"6 KB of back-quotes": {"text": "`" * 6000}, "60 crafted diffs": {"diffs": crafted}}


CASES = {path.stem: json.loads(path.read_bytes()) for path in OPENCODE} | large_for_opencode()


@pytest.mark.parametrize("name", CASES)
def test_texts_and_diffs_of_the_corpus_do_not_stop_opencode(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES[name]
    path = case.get("path", "/a")
    diffs = [{"type": "diff", "path": path, "oldText": old, "newText": new} for old, new in case.get("diffs", ())]
    texts = [{"type": "content", "content": {"type": "text", "text": case["text"]}}] if "text" in case else []

    async def main() -> None:
        async with bridged(memory=1 << 26) as (own, bridge):
            bridge.listen()
            turn = own.prompt()
            await own.settled()
            for number, content in enumerate(diffs or texts):
                update = {"sessionUpdate": "tool_call", "toolCallId": f"c{number}", "content": [content]}
                own.says(method="session/update", params={"sessionId": "s", "update": update | {"status": "completed"}})
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            _, assistant = await bridge.messages(id_of(own.session))
            called = [part["callID"] for part in assistant["parts"] if part["type"] == "tool"]
            assert called == [f"c{number}" for number in range(len(diffs or texts))]

    began = time.process_time()
    run(main())
    assert time.process_time() - began < MOST
    fails_nowhere(caplog)


def test_names_of_the_corpus_are_aliases_or_refused_and_lists_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as own:
            taken: list[str] = []
            for number, name in enumerate(NAMES):
                meta = {"sandboxagent.dev": {"requestedSessionId": name}}
                asked = own.request("session/new", {"cwd": "/", "mcpServers": [], "_meta": meta})
                await until(lambda: asked.done() or own.process.sent)  # noqa: B023 - it is awaited here
                if not asked.done():
                    request = await own.process.request("session/new")
                    own.says(id=request["id"], result={"sessionId": f"t{number}"})
                    own.process.sent.clear()
                answer = json.loads((await asked).line)
                if "result" in answer and name is not None:
                    taken.append(name)
                    assert own.hub.find_session(name) is own.hub.find_session(f"t{number}")
            assert taken
            assert not [name for name in taken if {"/", "?", "#", "%"} & set(name) or "Cc" in map(category, name)]
            listed = json.loads((await own.request("session/list", {})).line)["result"]["sessions"]
            assert len(listed) > len(taken)
            await still_works(own)

    run(main())
    fails_nowhere(caplog)


def test_the_corpus_is_found() -> None:
    assert min(map(len, (JSON, FRAMES, OPENCODE, NAMES))) > 10
    with pytest.raises(NotAnEnvelope):
        parse((ROOM / "json" / "nested-970-deep.json").read_bytes())
