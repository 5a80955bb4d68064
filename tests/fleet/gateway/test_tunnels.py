"""HTTP through a flow: from a gateway into a node's app, on a bus in memory and on NATS."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager

import pytest

from sandboxagent.fleet.bus.interface import Bus, MessageHandler, Unsubscribe
from sandboxagent.fleet.bus.memory import MemoryBus
from sandboxagent.fleet.bus.nats import connect
from sandboxagent.fleet.bus.tunnel import MAX_PIECE_BYTES, SILENCE_TIMEOUT, WINDOW
from sandboxagent.fleet.gateway.tunnels import MAX_INLINE_BYTES, GatewayTunnels, NodeRequest
from sandboxagent.fleet.messages import Lease
from sandboxagent.protocol.errors import NodeUnreachable, TooMany
from sandboxagent.server.http.asgi import Receive, Scope, Send, is_gone, respond, transport
from sandboxagent.server.http.body import ClientDisconnected, read_body
from tests.support.client import run
from tests.support.flows import Client, Fleet, Handle, Open, echo, in_memory
from tests.support.nats import PROGRAM, nats_server
from tests.support.running import BOUND


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with nats_server(tmp_path_factory.mktemp("nats") / "one") as server:
        yield server.url


@pytest.fixture(params=["memory", "nats"])
def fleets(request: pytest.FixtureRequest) -> Open:
    if request.param == "memory":
        return in_memory
    url: str = request.getfixturevalue("nats_url")

    @asynccontextmanager
    async def on_nats() -> AsyncGenerator[Fleet]:
        bus = await connect([url], "gw.g.in", "g")
        leases: dict[str, Lease] = {}

        async def another() -> Bus:
            return await connect([url], "dn.n.in", "n")

        fleet = Fleet(GatewayTunnels("g", bus, leases, 100), bus, leases, another)
        yield fleet
        for each in (*fleet.buses, bus):
            await each.close()

    return on_nats


@pytest.mark.parametrize("size", [0, 5, MAX_INLINE_BYTES + 1, 20 * MAX_PIECE_BYTES + 7])
def test_a_request_and_its_answer_pass_whole(fleets: Open, size: int) -> None:
    async def main() -> None:
        async with fleets() as fleet:
            await fleet.join("n1", echo)
            sent = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            client = Client("PUT", body=[sent[at : at + 60_000] for at in range(0, size, 60_000)])
            await client.ask(fleet.gateway)
            assert (client.status, b"".join(client.got) == sent, client.whole) == (201, True, True)
            answer = await fleet.gateway.call("n1", NodeRequest("PUT", b"/"), sent, most=size)
            assert (answer.status, answer.body == sent) == (201, True)

    run(main())


def test_the_node_sees_what_it_needs_and_no_secret() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            seen: list[Scope] = []

            async def look(scope: Scope, receive: Receive, send: Send) -> None:
                seen.append(scope)
                await respond(send, 204, [])

            await fleet.join("n1", look)
            secrets = [b"authorization", b"cookie", b"x-acp-connection-id", b"origin", b"host", b"x-forwarded-user"]
            client = Client(
                "GET", "/v1/fs/a%2Fb", headers=[*((name, b"s") for name in secrets), (b"range", b"bytes=1-")]
            )
            await client.ask(fleet.gateway)
            [scope] = seen
            assert (scope["method"], scope["path"], scope["raw_path"]) == ("GET", "/v1/fs/a/b", b"/v1/fs/a%2Fb")
            assert scope["query_string"] == b"path=/x"
            assert scope["headers"] == [(b"range", b"bytes=1-")]
            assert client.status == 204

    run(main())


def test_an_answer_comes_after_hours() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            ready = asyncio.Event()

            async def think(scope: Scope, receive: Receive, send: Send) -> None:
                await ready.wait()
                await respond(send, 200, [], b"at last")

            await fleet.join("n1", think)
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100))
            await fleet.pass_time(2 * 3600, of_node="n1")
            ready.set()
            assert (await asking).body == b"at last"

    run(main())


def test_a_client_that_leaves_is_gone_for_the_app_too(fleets: Open) -> None:
    async def main() -> None:
        async with fleets() as fleet:
            begun, noticed = asyncio.Event(), asyncio.Event()

            async def stream(scope: Scope, receive: Receive, send: Send) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b": here\n\n", "more_body": True})
                assert (await receive())["type"] == "http.request"
                begun.set()
                assert (await receive())["type"] == "http.disconnect"
                assert transport(scope).is_closing()
                noticed.set()

            await fleet.join("n1", stream)
            client = Client()
            asking = asyncio.create_task(client.ask(fleet.gateway))
            async with asyncio.timeout(BOUND):
                await begun.wait()
                client.left.set()
                await noticed.wait()
                await asking
            assert not client.whole

    run(main())


def test_a_cancelled_call_is_gone_for_the_app_too() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            begun, noticed = asyncio.Event(), asyncio.Event()

            async def wait(scope: Scope, receive: Receive, send: Send) -> None:
                await receive()
                begun.set()
                assert (await receive())["type"] == "http.disconnect"
                noticed.set()

            await fleet.join("n1", wait)
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100))
            async with asyncio.timeout(BOUND):
                await begun.wait()
                asking.cancel()
                await noticed.wait()

    run(main())


def test_an_upload_that_is_cut_off_does_not_come_to_its_end_at_the_node() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            ended: asyncio.Queue[str] = asyncio.Queue()

            async def upload(scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    await read_body(scope, receive, 1 << 30)
                    await ended.put("whole")
                except ClientDisconnected:
                    await ended.put("cut")

            await fleet.join("n1", upload)
            client = Client("PUT", body=[b"x" * MAX_PIECE_BYTES], endless=True)
            asking = asyncio.create_task(client.ask(fleet.gateway))
            await client.sent.wait()
            client.left.set()
            await asking
            async with asyncio.timeout(BOUND):
                assert await ended.get() == "cut"
            # And a gateway that is gone without a word.
            client = Client("PUT", body=[b"x"], endless=True)
            asking = asyncio.create_task(client.ask(fleet.gateway))
            await client.sent.wait()
            await asyncio.sleep(0)
            assert isinstance(fleet.gateway_bus, MemoryBus)
            fleet.gateway_bus.cut = True
            for _ in range(round(SILENCE_TIMEOUT) + 2):
                fleet.nodes["n1"].table.tick(1)
            async with asyncio.timeout(BOUND):
                assert await ended.get() == "cut"
            asking.cancel()
            await asyncio.wait({asking})

    run(main())


def test_a_slow_reader_costs_a_window_and_holds_nobody_else_up() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            made = 0

            async def download(scope: Scope, receive: Receive, send: Send) -> None:
                nonlocal made
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for _ in range(50):
                    await send({"type": "http.response.body", "body": b"x" * MAX_PIECE_BYTES, "more_body": True})
                    made += 1
                await send({"type": "http.response.body", "body": b""})

            await fleet.join("n1", download)
            slow, quick = Client(), Client()
            slow.reading.clear()
            waiting = asyncio.create_task(slow.ask(fleet.gateway))
            await quick.ask(fleet.gateway)
            assert (quick.whole, sum(map(len, quick.got))) == (True, 50 * MAX_PIECE_BYTES)
            assert made <= 50 + WINDOW + 1
            slow.reading.set()
            await waiting
            assert (slow.whole, sum(map(len, slow.got))) == (True, 50 * MAX_PIECE_BYTES)

    run(main())


def test_half_an_answer_does_not_look_like_a_whole_one() -> None:
    async def main() -> None:
        async with in_memory() as fleet:

            async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
                if scope["path"] == "/raise":
                    raise OSError("the disk is gone")
                if scope["path"] == "/abort":
                    transport(scope).abort()

            await fleet.join("n1", break_off)
            for path in ("/raise", "/abort", "/return"):
                client = Client(path=path)
                await client.ask(fleet.gateway)
                assert (client.got, client.whole, client.transport.closed) == ([b"half"], False, True)

    run(main())


def test_a_node_that_is_not_there_is_named(fleets: Open) -> None:
    async def main() -> None:
        async with fleets() as fleet:
            with pytest.raises(NodeUnreachable, match="n1 is not there"):
                await Client().ask(fleet.gateway)
            fleet.leases["n1"] = Lease("n1", "", "", {}, [], 0)
            with pytest.raises(NodeUnreachable, match="n1 is not connected"):
                await Client().ask(fleet.gateway)

    run(main())


def test_a_node_that_falls_silent_is_given_up() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            bus = await fleet.join("n1", echo)
            assert isinstance(bus, MemoryBus)
            bus.cut = True
            asking = asyncio.create_task(Client().ask(fleet.gateway))
            await asyncio.sleep(0)
            await fleet.pass_time(SILENCE_TIMEOUT + 1)
            with pytest.raises(NodeUnreachable, match="does not answer"):
                await asking

    run(main())


@pytest.mark.parametrize("lost", ["dn.n1.", "up.n1."])
def test_a_request_or_an_answer_that_was_lost_on_its_way_is_noticed_in_seconds(lost: str) -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            bus, ways = await fleet.join("n1", echo), [lost]
            assert isinstance(bus, MemoryBus)

            def lose_first(subject: str, body: bytes) -> Iterable[bytes]:
                if ways and subject.startswith(ways[0]):
                    ways.clear()
                    return ()
                return (body,)

            bus.cluster.disturb = lose_first
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("PUT", b"/"), b"{}", most=100))
            async with asyncio.timeout(BOUND):
                while ways:  # noqa: ASYNC110 - what is tested has no events
                    await asyncio.sleep(0)
            await fleet.pass_time(2, of_node="n1")
            with pytest.raises(NodeUnreachable, match="every part of this request"):
                await asking
            assert (await fleet.gateway.call("n1", NodeRequest("PUT", b"/"), b"{}", most=100)).status == 201

    run(main())


def test_a_clone_of_a_node_does_not_end_what_its_node_works_on() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            ready = asyncio.Event()

            async def think(scope: Scope, receive: Receive, send: Send) -> None:
                await ready.wait()
                await respond(send, 200, [], b"at last")

            await fleet.join("n1", echo, nonce="of its clone")
            await fleet.join("n1", think)
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100))
            await fleet.pass_time(SILENCE_TIMEOUT + 1, of_node="n1")
            ready.set()
            assert (await asking).body == b"at last"

    run(main())


def test_a_clone_of_a_node_does_not_answer() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            asked: list[str] = []

            async def clone(scope: Scope, receive: Receive, send: Send) -> None:
                asked.append(scope["path"])

            await fleet.join("n1", clone, nonce="of its clone")
            await fleet.join("n1", echo)
            client = Client()
            await client.ask(fleet.gateway)
            assert (client.status, asked) == (201, [])

    run(main())


def test_flows_are_counted_and_one_node_cannot_take_all_places() -> None:
    async def main() -> None:
        async with in_memory(most=8) as fleet:
            release = asyncio.Event()

            async def wait(scope: Scope, receive: Receive, send: Send) -> None:
                await release.wait()
                await respond(send, 200, [])

            await fleet.join("n1", wait)
            await fleet.join("n2", echo)
            await fleet.join("n3", wait, most=1)
            asking = [asyncio.create_task(Client().ask(fleet.gateway)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(TooMany):
                await Client().ask(fleet.gateway)
            await Client().ask(fleet.gateway, "n2")
            asking.append(asyncio.create_task(Client().ask(fleet.gateway, "n3")))
            await asyncio.sleep(0)
            with pytest.raises(NodeUnreachable, match="as many requests"):
                await Client().ask(fleet.gateway, "n3")
            release.set()
            await asyncio.gather(*asking)
            await Client().ask(fleet.gateway)

    run(main())


def early(position: int, ends: asyncio.Event, rest: bytes = b"") -> Handle:
    """An app that answers before what it speaks of is in the fleet's stream."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"5"), (b"x-sandbox-agent-safe-at", b"%d" % position)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"early", "more_body": True})
        await ends.wait()
        await send({"type": "http.response.body", "body": rest})

    return answer


class Stream:
    """Says when it has brought what a node has said."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, int, asyncio.Future[None]]] = asyncio.Queue()

    def seen(self, node: str, position: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((node, position, future))
        return future


@pytest.mark.parametrize("quicker", ["the stream", "the node"])
def test_early_answer_is_passed_on_once_stream_or_node_confirms_it(quicker: str) -> None:
    async def main() -> None:
        stream, ends = Stream(), asyncio.Event()
        async with in_memory(seen=stream.seen) as fleet:
            await fleet.join("n1", early(7, ends))
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100))
            async with asyncio.timeout(BOUND):
                node, position, seen = await stream.asked.get()
                assert (node, position, asking.done()) == ("n1", 7, False)
                if quicker == "the stream":
                    seen.set_result(None)
                else:
                    ends.set()
                answer = await asking
            assert (answer.status, answer.body) == (200, b"early")
            assert seen.done()
            # What the node says afterwards is dropped, and blocks nothing.
            ends.set()
            assert (await fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100)).body == b"early"

    run(main())


def test_a_node_whose_early_answer_was_taken_does_not_think_that_its_gateway_is_gone() -> None:
    async def main() -> None:
        stream, ends = Stream(), asyncio.Event()
        gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await early(7, ends)(scope, receive, send)
            gone.set_result(is_gone(scope))

        async with in_memory(seen=stream.seen) as fleet, asyncio.timeout(BOUND):
            await fleet.join("n1", answer)
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100))
            _, _, seen = await stream.asked.get()
            seen.set_result(None)
            assert (await asking).body == b"early"
            await fleet.pass_time(SILENCE_TIMEOUT + 1, of_node="n1")
            ends.set()
            assert not await gone

    run(main())


def test_an_early_answer_that_does_not_get_into_the_stream_is_a_problem() -> None:
    async def main() -> None:
        stream, ends = Stream(), asyncio.Event()
        ends.set()
        async with in_memory(seen=stream.seen) as fleet:
            await fleet.join("n1", early(7, ends, b'{"type":"x"}'))
            answer = await fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100)
            assert (answer.status, answer.body) == (507, b'{"type":"x"}')

    run(main())


def test_an_early_answer_of_a_node_that_falls_silent_is_not_passed_on() -> None:
    async def main() -> None:
        stream = Stream()
        async with in_memory(seen=stream.seen) as fleet:
            bus = await fleet.join("n1", early(7, asyncio.Event()))
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("POST", b"/"), b"{}", most=100))
            async with asyncio.timeout(BOUND):
                _, _, seen = await stream.asked.get()
            assert isinstance(bus, MemoryBus)
            bus.cut = True
            await fleet.pass_time(SILENCE_TIMEOUT + 1)
            with pytest.raises(NodeUnreachable, match="does not answer"):
                await asking
            assert seen.cancelled()

    run(main())


def test_a_small_answer_is_one_message_and_a_head_without_a_length_does_not_wait() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            heard: list[bytes] = []
            await fleet.gateway_bus.subscribe("up.n1.flow.g.*", lambda _, message: heard.append(message))
            await fleet.join("n1", echo)
            answer = await fleet.gateway.call("n1", NodeRequest("PUT", b"/"), b"small", most=100)
            assert (answer.body, len(heard)) == (b"small", 1)
            over = asyncio.Event()

            async def stream(scope: Scope, receive: Receive, send: Send) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await over.wait()

            await fleet.join("n2", stream)
            async with fleet.gateway.open("n2", NodeRequest("GET", b"/")) as exchange, asyncio.timeout(BOUND):
                assert (await exchange.head()).status == 200
            over.set()

    run(main())


def test_a_request_that_is_cancelled_before_its_node_is_heard_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            await fleet.join("n1", echo)
            hearing = asyncio.Event()

            async def subscribe(subject: str, take: MessageHandler) -> Unsubscribe:
                hearing.set()
                return await asyncio.get_running_loop().create_future()

            monkeypatch.setattr(fleet.gateway_bus, "subscribe", subscribe)
            asking = asyncio.create_task(fleet.gateway.call("n1", NodeRequest("GET", b"/"), most=100))
            async with asyncio.timeout(BOUND):
                await hearing.wait()
            asking.cancel()
            await asyncio.wait([asking])
            assert not fleet.gateway.table._flows  # pyright: ignore[reportPrivateUsage]
            for task in fleet.gateway._heard.values():  # pyright: ignore[reportPrivateUsage]
                task.cancel()

    run(main())


def test_nodes_that_are_lost_are_not_heard_any_more() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            for number in range(5):
                await fleet.join(f"n{number}", echo)
                assert (await fleet.gateway.call(f"n{number}", NodeRequest("PUT", b"/"), b"x", most=9)).body == b"x"
                del fleet.leases[f"n{number}"]
            await fleet.gateway.table.settle()
            assert list(fleet.gateway._heard) == ["n4"]  # pyright: ignore[reportPrivateUsage]
            await fleet.join("n0", echo)
            assert (await fleet.gateway.call("n0", NodeRequest("PUT", b"/"), b"again", most=9)).body == b"again"

    run(main())
