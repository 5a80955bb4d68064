"""Long answers of nodes: a thread of the gateway parses them, and everything else goes on."""

import asyncio
import json
import threading

import pytest

from sandboxagent.fleet.gateway.requests import MAX_READ_BYTES
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.protocol.envelope import LARGE_BYTES, parse
from sandboxagent.protocol.errors import NodeUnreachable
from tests.fleet.gateway.scripted_nodes import KNOWN, PATH, open_gateway
from tests.support.client import run
from tests.support.running import BOUND


def answering(size: int, method: str = "x/y") -> NodeAnswer:
    result = {"sessionId": "made", "pending": [{"sessionId": "s"}], "method": method, "text": "x" * size}
    return NodeAnswer(200, [], json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode(), "")


async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
    """Answers with as many letters as the request says."""
    if asked.target == PATH.encode():
        return KNOWN
    return answering(json.loads(body)["params"]["size"])


def request(method: str, size: int, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"size": size, **params}}).encode()


def test_a_long_answer_of_a_node_is_parsed_in_a_thread_and_holds_up_no_short_one() -> None:
    async def main() -> None:
        gateway = await open_gateway(n1=reply)
        client, go = await gateway.client("n1", home="n1"), threading.Event()
        lines = gateway.calls._lines
        lines.start(go.wait, BOUND)
        long = gateway.calls.submit(client, parse(request("x/y", LARGE_BYTES)))
        listed = gateway.calls.submit(client, parse(request("_sandboxagent/session/pending", LARGE_BYTES)))
        short = await gateway.calls.submit(client, parse(request("x/y", 1)))
        assert len(json.loads(short.line)["result"]["text"]) == 1
        for _ in range(20):
            await asyncio.sleep(0)
        assert (long.result, listed.result) == (None, None)
        go.set()
        assert len(json.loads((await long).line)["result"]["text"]) == LARGE_BYTES
        assert json.loads((await listed).line)["result"]["pending"] == [{"sessionId": "s"}]

    run(main())


def test_an_answer_that_the_gateway_has_to_read_is_refused_when_it_is_too_long() -> None:
    async def main() -> None:
        gateway = await open_gateway(n1=reply)
        client = await gateway.client("n1", home="n1")
        with pytest.raises(NodeUnreachable, match="too long an answer"):
            await gateway.calls.submit(client, parse(request("session/load", MAX_READ_BYTES, sessionId="s")))
        # One that it only passes on may be as long as any.
        passed = await gateway.calls.submit(client, parse(request("x/y", MAX_READ_BYTES, sessionId="s")))
        assert len(passed.line) > MAX_READ_BYTES

    run(main())
