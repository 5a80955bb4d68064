"""The Python SDK on one WebSocket, over HTTP where none gets through, and on sockets that go silent."""

import asyncio
import logging
from collections.abc import Generator

import pytest

from sandboxagent import ServerProblem, text_of
from tests.support.client import run
from tests.support.cutting import Proxy, proxy
from tests.support.running import Server
from tests.support.sdk import answered, asking, connected, new_session, permission, play, texts


@pytest.fixture(scope="module")
def small() -> Generator[Server]:
    """A server that takes only small messages, and gives signs of life often."""
    with Server("--max-body", "200KiB", "--heartbeat", "100ms") as running:
        yield running


class Listening(Proxy):
    """A proxy that notes what requests go through it, and may refuse to upgrade any."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.heads: list[bytes] = []
        self.refuses_upgrades = False

    def passes(self, data: bytes) -> bool:
        if data.startswith((b"GET ", b"POST ", b"DELETE ")):
            self.heads.append(data)
        return not (self.refuses_upgrades and b"upgrade: websocket" in data.lower())

    def count(self, line: bytes) -> int:
        return sum(head.startswith(line) for head in self.heads)


def test_everything_goes_over_one_socket(small: Server) -> None:
    async def main() -> None:
        async with proxy(small.url, Listening) as between:
            async with connected(
                small, between.url, transport="websocket", on_permission=lambda request: request.allow()
            ) as client:
                session = await new_session(client, small)
                turn = play(session, asking("session/request_permission", permission()))
                assert (await answered(turn))["outcome"]["optionId"] == "yes"
                turn = play(session, [["say", "begun"], ["wait_cancel"]])
                assert text_of(await anext(turn)) == "begun"
                await session.cancel()
                assert (await turn).stop_reason == "cancelled"
            assert between.count(b"POST /v1/rpc ") == 1, "initialize, and nothing else"
            assert between.count(b"GET /v1/rpc ") == 1
            assert between.count(b"DELETE ") == 0

    run(main())


def test_concurrent_prompts_run_in_send_order_when_the_socket_is_cut(small: Server) -> None:
    async def main() -> None:
        async with (
            proxy(small.url) as between,
            connected(small, between.url, transport="websocket") as client,
        ):
            session = await new_session(client, small)
            order: list[str] = []

            async def prompt(number: int) -> None:
                order.append(await play(session, [["say", str(number)]]).text())

            tasks = [asyncio.create_task(prompt(number)) for number in range(6)]
            await asyncio.sleep(0)
            between.cut()
            tasks.append(asyncio.create_task(prompt(6)))
            await asyncio.gather(*tasks)
            assert order == [str(number) for number in range(7)]

    run(main())


def test_what_is_too_large_for_the_server_is_refused_alone(small: Server) -> None:
    async def main() -> None:
        async with connected(small, transport="websocket") as client:
            session = await new_session(client, small)
            turn = play(session, [["say", "begun"], ["wait_cancel"], ["say", "on"]])
            assert text_of(await anext(turn)) == "begun"
            with pytest.raises(ServerProblem) as refused:
                await session.prompt("x" * (400 << 10))
            assert refused.value.slug == "body-too-large"
            await session.cancel()
            assert await texts(turn) == ["on"]

    run(main())


def test_where_a_proxy_refuses_the_upgrade_http_does_the_work(small: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with proxy(small.url, Listening) as between:
            between.refuses_upgrades = True
            async with connected(small, between.url, transport="websocket") as client:
                session = await new_session(client, small)
                assert await play(session, [["say", "one"]]).text() == "one"
                between.cut()
                assert await play(session, [["say", "two"]]).text() == "two"
            assert sum(b"websocket" in head.lower() for head in between.heads) == 1
            assert between.count(b"POST /v1/rpc ") >= 4

    with caplog.at_level(logging.WARNING):
        run(main())
    assert sum("going on over HTTP" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("way", ["http", "websocket"])
def test_a_network_that_goes_silent_is_given_up(small: Server, way: str) -> None:
    async def main() -> None:
        async with (
            proxy(small.url) as between,
            connected(small, between.url, transport=way, silence_timeout=0.5) as client,
        ):
            session = await new_session(client, small)
            turn = play(session, [["say", "begun"], ["wait_cancel"], ["say", "ended"]])
            assert text_of(await anext(turn)) == "begun"
            between.silence()
            await session.cancel()
            assert await texts(turn) == ["ended"]
            assert (await turn).stop_reason == "cancelled"

    run(main())
