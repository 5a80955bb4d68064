"""Answers to gateways: they come before the fleet's stream has what they speak of, and end when it has."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from sandboxagent.server.http.posts import GatewayPost, PostHead, read_head
from sandboxagent.server.log import log as log_module
from sandboxagent.server.log.event import session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.sessions.connection import Connection
from tests.support.client import run
from tests.support.message_path import MessagePath
from tests.support.running import BOUND
from tests.support.world import World, world

PROMPT = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}'
NEW = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}'
TAG = "g0123456789abcdef"


@dataclass
class Publisher:
    """Takes everything, and has none of it in the stream until a test says so."""

    published, full, is_idle = 0, False, True
    failure_reason: str | None = "the stream has no leader"
    is_there: asyncio.Event = field(default_factory=asyncio.Event)

    def committed(self, group: Group) -> None: ...

    async def drained(self, position: int) -> None:
        await self.is_there.wait()


class Asking:
    """One POST of a gateway, for a remote connection, and the flow it came by."""

    def __init__(self, path: MessagePath, remote_tag: Connection, body: bytes = PROMPT) -> None:
        self.sent: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        """Heads, and what follows them."""
        self.left = False
        self.ended = asyncio.Event()
        headers = {b"content-type": b"application/json", b"x-acp-connection-id": remote_tag.connection_id.encode()}
        head = PostHead(path.rpc.read_post({"method": "POST", "headers_by_name": headers}), 1 << 20)
        post = GatewayPost(self, head, flow=self)
        post.take_body(body)
        post.end_body()

    def is_gone(self) -> bool:
        return self.left

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> bool:
        raise AssertionError(head)

    def begin(self, head: bytes, body: bytes) -> None:
        self.sent.put_nowait((head, body))

    def end(self, rest: bytes) -> None:
        self.sent.put_nowait((b"", rest))
        self.ended.set()

    async def next(self) -> tuple[bytes, bytes]:
        async with asyncio.timeout(BOUND):
            return await self.sent.get()

    async def has_ended(self) -> None:
        async with asyncio.timeout(BOUND):
            await self.ended.wait()


@asynccontextmanager
async def prompted(folder: Path) -> AsyncGenerator[tuple[World, Publisher, Connection, Asking]]:
    async with world(folder / "log.db") as one:
        path = MessagePath(one, 0)
        one.log.publisher = publisher = Publisher()
        remote_tag = one.hub.connections.open("mock", remote_tag=TAG)
        one.hub.attach(remote_tag, one.add_session("s"))
        yield one, publisher, remote_tag, Asking(path, remote_tag)
        await path.close()


def test_a_gateway_gets_the_answer_at_once_and_its_end_when_the_stream_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with prompted(tmp_path) as (one, publisher, remote_tag, asking):
            head, body = await asking.next()
            status, pairs = read_head(head)
            headers = dict(pairs)
            assert int(headers[b"x-sandbox-agent-safe-at"]) == one.log.position == remote_tag.last_event
            assert headers[b"x-acp-last-event-id"] == headers[b"x-sandbox-agent-safe-at"]
            assert (status, int(headers[b"content-length"])) == (200, len(body))
            assert msgspec.json.decode(body)["result"] == {"stopReason": "end_turn"}
            await one.log.flushed()
            assert not asking.ended.is_set()
            publisher.is_there.set()
            assert await asking.next() == (b"", b"")

    run(main())


def test_a_gateway_learns_that_what_was_answered_does_not_get_into_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "PUBLISH_TIMEOUT", 0.01)

    async def main() -> None:
        async with prompted(tmp_path) as (_, _, _, asking):
            await asking.next()
            problem = msgspec.json.decode((await asking.next())[1])
            assert (problem["type"], problem["status"]) == ("urn:sandbox-agent:error:log-unavailable", 507)
            assert "the stream has no leader" in problem["detail"]

    run(main())


def test_stream_brings_the_answer_when_gateway_is_gone_and_publishing_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "PUBLISH_TIMEOUT", 0.01)

    async def main() -> None:
        async with prompted(tmp_path) as (one, _, remote_tag, asking):
            asking.left = True
            await asking.has_ended()
            _, line = await asking.next()
            chunks, _ = one.log.in_memory([remote_tag.channel], 0, 1 << 20) or ([], False)
            assert [each.lines for each in chunks] == [[line]]

    run(main())


def test_updates_of_a_new_session_follow_the_response_that_the_stream_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db") as one:
            path = MessagePath(one, 0)

            def open_session(line: bytes) -> None:
                one.says(id=msgspec.json.decode(line)["id"], result={"sessionId": "fresh"})
                one.agent.updates("first", "fresh")

            monkeypatch.setattr(one.process, "send", open_session)
            remote_tag = one.hub.connections.open("mock", remote_tag=TAG)
            asking = Asking(path, remote_tag, NEW)
            asking.left = True
            await asking.has_ended()
            chunks, _ = one.log.in_memory([remote_tag.channel, session_channel("fresh")], 0, 1 << 20) or ([], False)
            told = [msgspec.json.decode(line) for each in chunks for line in each.lines]
            assert [each.get("method", "response") for each in told][-2:] == ["response", "session/update"]
            await path.close()

    run(main())


def test_the_stream_brings_the_answer_to_a_client_that_leaves_before_it_is_safe(tmp_path: Path) -> None:
    async def main() -> None:
        async with prompted(tmp_path) as (one, publisher, remote_tag, asking):
            _, line = await asking.next()
            before = one.log.position
            asking.left = True
            publisher.is_there.set()
            await asking.has_ended()
            chunks, _ = one.log.in_memory([remote_tag.channel], before, 1 << 20) or ([], False)
            assert [each.lines for each in chunks] == [[line]]

    run(main())
