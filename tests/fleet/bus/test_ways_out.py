"""How a member reaches NATS: by TLS, by WebSocket, through an HTTP proxy; and what it says when it cannot stay."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxagent.cli.fleet.keys import FleetDirectory
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Append, BusError, BusRefused, StreamMessage, Unreachable
from sandboxagent.fleet.bus.nats import connect
from tests.support.client import run
from tests.support.nats import PROGRAM, Issuer, NatsServer, nats_server

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


@dataclass
class Secure:
    """A server that speaks TLS alone, also by WebSocket, and the authority that vouches for it."""

    server: NatsServer
    authority: Path

    @property
    def tls(self) -> str:
        return f"tls://localhost:{self.server.port}"

    @property
    def wss(self) -> str:
        return f"wss://localhost:{self.server.ports['websocket']}"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Generator[Secure]:
    directory = tmp_path_factory.mktemp("tls")
    key, certificate = directory / "key.pem", directory / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    websocket = {"host": "127.0.0.1", "port": -1, "tls": tls}
    with nats_server(directory / "nats", tls=tls, websocket=websocket) as server:
        yield Secure(server, certificate)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    """A server that asks for no credentials, and takes any."""
    with nats_server(tmp_path_factory.mktemp("plain") / "nats") as server:
        yield server


@dataclass
class Proxy:
    """An HTTP proxy that knows CONNECT, and where it was asked to go."""

    port: int = 0
    asked: list[str] = field(default_factory=list[str])
    refuses: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ")[1].decode()
        self.asked.append(target)
        with suppress(OSError, asyncio.CancelledError):
            if self.refuses:
                writer.write(b"HTTP/1.1 403 Not from here\r\n\r\n")
                await writer.drain()
            else:
                far, there = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
                writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
                await asyncio.gather(_copy(reader, there), _copy(far, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def http_proxy() -> AsyncGenerator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy


async def ask_around(url: str, proxy: str | None = None) -> bytes:
    """Say something to oneself, through the server."""
    bus = await connect([url], "gw.a.in", "a", proxy=proxy)

    async def answer(subject: str, body: bytes) -> bytes:
        return body * 2

    await bus.serve("up.a.echo.a", answer)
    try:
        return await bus.request("up.a.echo.a", b"x" * 50_000, 60)
    finally:
        await bus.close()


@pytest.mark.parametrize("way", ["tls", "wss"])
@pytest.mark.parametrize("proxied", [False, True], ids=["directly", "by proxy"])
def test_a_member_reaches_servers_by_tls_and_websocket_also_through_a_proxy(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, way: str, proxied: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))
    url = secure.tls if way == "tls" else secure.wss

    async def main() -> None:
        if not proxied:
            assert await ask_around(url) == b"x" * 100_000
            return
        async with http_proxy() as proxy:
            assert await ask_around(url, proxy.url) == b"x" * 100_000
            assert proxy.asked == [url.partition("//")[2]]

    run(main())


@pytest.mark.parametrize("way", ["tls", "wss"])
def test_a_server_that_no_known_authority_vouches_for_is_not_joined(secure: Secure, way: str) -> None:
    url = secure.tls if way == "tls" else secure.wss

    async def main() -> None:
        with pytest.raises(Unreachable, match=r"(?i)certificate"):
            await connect([url], "gw.a.in", "a")

    run(main())


def test_tls_is_never_given_up_for_a_server_that_has_none(plain: NatsServer) -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="does not offer TLS"):
            await connect([plain.url.replace("nats://", "tls://")], "gw.a.in", "a")

    run(main())


def test_a_proxy_that_refuses_is_named(secure: Secure) -> None:
    async def main() -> None:
        async with http_proxy() as proxy:
            proxy.refuses = True
            with pytest.raises(Unreachable, match=rf"the proxy 127.0.0.1:{proxy.port} does not connect to .*403"):
                await connect([secure.tls], "gw.a.in", "a", proxy=proxy.url)

    run(main())


def test_credentials_that_are_taken_away_end_the_connection_with_the_reason(tmp_path: Path) -> None:
    keys = FleetDirectory(tmp_path / "fleet")
    keys.init()
    keys.invite("n1")

    async def main() -> None:
        with nats_server(tmp_path / "nats", authorization=keys.authorization()) as server:
            key = keys.node_key("n1").rename(tmp_path / "n1.nk")
            node = await connect([server.url], subjects.inbox_of_node("n1"), "n1", key)
            server.configure(authorization=keys.authorization())
            server.process.send_signal(signal.SIGHUP)
            reason = await node.lost()
            assert "n1.nk" in reason
            assert "taken away" in reason
            assert "fleet invite" in reason
            await node.close()
            with pytest.raises(BusRefused, match=r"do not accept the credentials in .*n1\.nk"):
                await connect([server.url], subjects.inbox_of_node("n1"), "n1", key)

    run(main())


def test_credentials_that_expire_end_the_connection_and_are_named_before_and_after(tmp_path: Path) -> None:
    async def main() -> None:
        issuer = Issuer()
        with nats_server(tmp_path / "nats", **issuer.settings) as server:
            good = issuer.write_credentials(tmp_path / "good.creds", time.time() + 3600)
            other = await connect([server.url], subjects.inbox_of_node("n2"), "n2", good)
            old = issuer.write_credentials(tmp_path / "old.creds", time.time() - 60)
            with pytest.raises(
                BusRefused, match=r"do not accept the credentials in .*old\.creds.*have expired.*invite"
            ):
                await connect([server.url], subjects.inbox_of_node("n1"), "n1", old)
            # Time enough to connect on a busy machine, unless it is not; then it is refused, and another one is made.
            while True:
                brief = issuer.write_credentials(tmp_path / "brief.creds", time.time() + 3)
                with suppress(BusRefused):
                    node = await connect([server.url], subjects.inbox_of_node("n1"), "n1", brief)
                    break
            reason = await node.lost()
            assert re.search(r"brief\.creds.*have expired.*sandbox-agent fleet invite", reason)
            await node.close()
            # New ones in the same file do.
            issuer.write_credentials(brief, time.time() + 3600)
            again = await connect([server.url], subjects.inbox_of_node("n1"), "n1", brief)
            assert again.connected
            assert other.connected
            for bus in (again, other):
                await bus.close()

    run(main())


def test_credentials_of_another_member_are_named_with_what_to_give_instead(tmp_path: Path) -> None:
    keys = FleetDirectory(tmp_path / "fleet")
    keys.init()
    for node in ("n1", "n2"):
        keys.invite(node)

    async def main() -> None:
        with nats_server(tmp_path / "nats", authorization=keys.authorization()) as server:
            with pytest.raises(BusRefused, match=r"n1\.nk are not those of the node n2; .*fleet invite .*--node"):
                await connect([server.url], subjects.inbox_of_node("n2"), "n2", keys.node_key("n1"))
            with pytest.raises(BusRefused, match=r"n1\.nk are not those of a gateway; give gateway\.nk"):
                await connect([server.url], subjects.inbox_of_gateway("g"), "g", keys.node_key("n1"))
            node = await connect([server.url], subjects.inbox_of_node("n1"), "n1", keys.node_key("n1"))
            with pytest.raises(BusRefused, match="do not allow it"):
                await node.request("up.n2.beat.g", b"", 1)
            await node.close()

    run(main())


def test_an_address_where_nothing_listens_is_named_with_the_next_step() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"nats://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Unreachable, match=rf"{url}: no NATS server listens there; start it, .*--join"):
            await connect([url], "gw.a.in", "a")

    run(main())


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe", b"SUAAAA", b"-----BEGIN NATS USER JWT-----\nx\n"])
def test_a_file_that_holds_no_credentials_is_named(tmp_path: Path, plain: NatsServer, content: bytes) -> None:
    async def main() -> None:
        path = tmp_path / "broken.nk"
        path.write_bytes(content)
        with pytest.raises(BusRefused, match=r"broken\.nk"):
            await connect([plain.url], "gw.a.in", "a", path)
        path.unlink()
        with pytest.raises(BusRefused, match=r"cannot be read: .*broken\.nk: No such file"):
            await connect([plain.url], "gw.a.in", "a", path)

    run(main())


def test_servers_that_take_only_small_messages_are_not_joined(tmp_path: Path) -> None:
    async def main() -> None:
        small = nats_server(tmp_path / "small", max_payload=65536)
        with small as server, pytest.raises(BusRefused, match=r"messages of 65536 bytes at most; set max_payload"):
            await connect([server.url], "gw.a.in", "a")

    run(main())


@pytest.mark.parametrize("anew", [False, True])
def test_lowered_max_payload_ends_the_connection_and_is_named(tmp_path: Path, anew: bool) -> None:
    async def main() -> None:
        with nats_server(tmp_path / "shrinking") as server:
            bus = await connect([server.url], "gw.a.in", "a")
            server.configure(max_payload=65536)
            if anew:
                server.kill()
                server.restart()
            else:
                server.process.send_signal(signal.SIGHUP)
            losing = asyncio.create_task(bus.lost())
            while not losing.done():
                with suppress(BusError):
                    await bus.publish("up.a.log.a", bytes(100_000))
                await asyncio.sleep(0.01)
            assert re.search("maximum payload|set max_payload to 1MB or more", losing.result())
            await bus.close()
            with pytest.raises(BusRefused, match="messages of 65536 bytes at most; set max_payload to 1MB or more"):
                await connect([server.url], "gw.a.in", "a")

    run(main())


def test_servers_without_room_for_the_log_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        storage = {"store_dir": str(tmp_path / "streams"), "max_file_store": 1 << 20}
        with nats_server(tmp_path / "full", jetstream=storage) as server:
            bus = await connect([server.url], "gw.a.in", "a")
            with pytest.raises(BusRefused, match=r"no room for the stream EV.*--log-max-bytes"):
                await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=60)
            await bus.close()

    run(main())


def test_servers_that_fill_up_say_so_and_take_more_when_there_is_room(tmp_path: Path) -> None:
    async def main() -> None:
        storage = {"store_dir": str(tmp_path / "streams"), "max_file_store": 4 << 20}
        with nats_server(tmp_path / "filling", jetstream=storage) as server:
            bus = await connect([server.url], "gw.a.in", "a")
            stream = await bus.stream("EV", [subjects.EVENTS], max_bytes=2 << 20, max_age=60)
            table = await bus.table("sess")
            no_room = r"JetStream has no room for .*max_file_store.*--log-max-bytes"
            with pytest.raises(BusRefused, match=no_room):
                await asyncio.gather(*(table.put(f"k{number}", b"x" * (400 << 10)) for number in range(30)))
            said = Append([StreamMessage("ev.s.a", b"x")], {"ev.s.a": 0})
            with pytest.raises(BusRefused, match=no_room):
                await stream.append(said)
            server.kill()
            server.configure(jetstream={**storage, "max_file_store": 64 << 20})
            server.restart()
            while True:
                with suppress(Unreachable):
                    assert await stream.append(said) == 1
                    break
            await bus.close()

    run(main())


def test_a_server_that_is_too_old_is_named() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.11.9", "proto": 1, "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        with suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            bus = await connect([f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"], "gw.a.in", "a")
            with pytest.raises(BusError, match=r"the NATS server is 2\.11; version 2\.12 or newer is needed"):
                await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
            await bus.close()

    run(main())
