"""Bytes from an address: what redirects are followed, and what is said when nothing comes."""

import asyncio
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from sandboxagent.server.agents.install.download import (
    MAX_REDIRECTS,
    NotFetched,
    download,
    local_path,
    redact_url,
    refuse_redirect,
)
from tests.support.client import run
from tests.support.loopback import Asked, Loopback, Play, answer, redirect
from tests.support.running import BOUND


async def whole(url: str, silence: float = BOUND) -> bytes:
    async with download(url, silence=silence) as found:
        return b"".join([piece async for piece in found.pieces])


async def reason(url: str, silence: float = BOUND) -> str:
    with pytest.raises(NotFetched) as failed:
        await whole(url, silence)
    return str(failed.value)


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 that this process trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs openssl")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *kind, *names, *files], capture_output=True, check=True, timeout=BOUND)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.com/a.zip", "https://example.com/a.zip"),
        ("https://me:secret@example.com:8443/a", "https://example.com:8443/a"),
        ("https://example.com/a?token=secret#secret", "https://example.com/a?…"),
        ("file:///a/b", "file:///a/b"),
        ("http://[::1/secret", "an address that cannot be understood"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, text: str) -> None:
    assert redact_url(url) == text


@pytest.mark.parametrize(
    ("url", "path"),
    [("file:///a/b%20c", "/a/b c"), ("file://localhost/a", "/a"), ("FILE:///a", "/a"), ("file:///%ff", "/\udcff")],
)
def test_a_file_url_means_a_path(url: str, path: str) -> None:
    assert local_path(url) == Path(path)


@pytest.mark.parametrize("url", ["file://elsewhere/a", "ftp://example.com/a", "a/b", "", "data:,a", "http://[::1/"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(NotFetched):
        local_path(url)


@pytest.mark.parametrize(
    ("origin", "target", "followed"),
    [
        ("https", "https", True),
        ("http", "https", True),
        ("http", "http", True),
        ("https", "http", False),
        ("http", "file", False),
        ("https", "ftp", False),
        ("https", "", False),
    ],
)
def test_redirects_lead_to_http_and_never_down_to_it(origin: str, target: str, followed: bool) -> None:
    assert (refuse_redirect(origin, target) is None) is followed


# --- http -------------------------------------------------------------------------------------------------------------


def test_a_body_arrives_as_it_was_sent() -> None:
    async def main() -> None:
        body = os.urandom(1 << 20)
        async with Loopback({"/a": answer(body, Content_Encoding="gzip")}) as server:
            async with download(server.url("/a"), silence=BOUND, headers={"X-Test": "1"}) as found:
                assert (found.status, found.total) == (200, len(body))
                assert b"".join([piece async for piece in found.pieces]) == body
            assert server.asked[0].headers["accept-encoding"] == "identity"
            assert server.asked[0].headers["user-agent"].startswith("sandbox-agent/")
            assert server.asked[0].headers["x-test"] == "1"

    run(main())


def test_a_total_that_was_not_promised_is_unknown() -> None:
    async def main() -> None:
        async with (
            Loopback({"/a": b"HTTP/1.1 200 OK\r\n\r\nbody"}) as server,
            download(server.url("/a"), silence=BOUND) as found,
        ):
            assert found.total is None
            assert b"".join([piece async for piece in found.pieces]) == b"body"

    run(main())


async def chunked_and_cut(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n")


@pytest.mark.parametrize("play", [answer(b"half", Content_Length="8"), chunked_and_cut], ids=["length", "chunked"])
def test_a_connection_that_is_cut_is_no_end(play: bytes | Play) -> None:
    async def main() -> None:
        async with Loopback({"/a": play}) as server:
            assert "connection broke" in await reason(server.url("/a"))

    run(main())


def test_silence_is_given_up() -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def silent(_: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(answer(b"half", Content_Length="8"))
            await done.wait()

        async with Loopback({"/a": silent}) as server:
            assert await reason(server.url("/a"), silence=0.2) == "nothing came for 0.2 s"
            done.set()

    run(main())


def test_a_status_that_is_not_accepted_is_named_with_its_number() -> None:
    async def main() -> None:
        async with Loopback() as server:
            with pytest.raises(NotFetched, match="404 Not Found") as failed:
                await whole(server.url("/a"))
            assert failed.value.status == 404

    run(main())


def test_redirects_are_followed_but_not_for_ever() -> None:
    async def main() -> None:
        async with Loopback({f"/{number}": redirect(f"/{number + 1}") for number in range(20)}) as server:
            server.routes[f"/{MAX_REDIRECTS}"] = answer(b"there")
            assert await whole(server.url("/0")) == b"there"
            server.routes[f"/{MAX_REDIRECTS}"] = redirect("/0")
            assert "redirects in a circle" in await reason(server.url("/0"))

    run(main())


def test_credentials_do_not_follow_a_redirect_to_another_server() -> None:
    async def main() -> None:
        async with Loopback({"/a": answer(b"there")}) as other, Loopback({"/a": redirect(other.url("/a"))}) as server:
            assert await whole(server.url("/a").replace("://", "://me:secret@")) == b"there"
            assert "authorization" in server.asked[0].headers
            assert "authorization" not in other.asked[0].headers

    run(main())


def test_a_loopback_address_is_not_asked_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Loopback({"/a": answer(b"there")}) as server:
            assert await whole(server.url("/a")) == b"there"

    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    run(main())


@pytest.mark.parametrize(("name", "value"), [("http_proxy", "carrier://pigeon"), ("SSL_CERT_FILE", "missing.pem")])
def test_an_environment_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    assert "proxies or certificates" in run(reason("http://127.0.0.1:9/"))


def test_https_is_followed_to_https_and_not_down_to_http(trusted: ssl.SSLContext) -> None:
    async def main() -> None:
        async with Loopback({"/a": answer(b"open")}) as http, Loopback(tls=trusted) as https:
            https.routes |= {"/a": answer(b"safe"), "/up": redirect("/a"), "/down": redirect(http.url("/a"))}
            http.routes["/up"] = redirect(https.url("/up"))
            http.routes["/down"] = redirect(https.url("/down"))
            assert await whole(http.url("/up")) == b"safe"
            for url in (https.url("/down"), http.url("/down")):
                assert "from https down to http" in await reason(url)
            assert [asked.path for asked in http.asked] == ["/up", "/down"]

    run(main())


def test_a_certificate_that_nobody_vouches_for_is_refused(
    trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")

    async def main() -> None:
        async with Loopback({"/a": answer(b"safe")}, tls=trusted) as https:
            assert "CERTIFICATE_VERIFY_FAILED" in await reason(https.url("/a"))

    run(main())


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_its_size(tmp_path: Path) -> None:
    body = os.urandom(600_000)
    (tmp_path / "a b").write_bytes(body)

    async def main() -> None:
        async with download((tmp_path / "a b").as_uri(), silence=BOUND) as found:
            assert (found.status, found.total) == (200, len(body))
            assert b"".join([piece async for piece in found.pieces]) == body

    run(main())


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    assert run(reason((tmp_path / "fifo").as_uri())) == "it is not a file"
    assert run(reason(tmp_path.as_uri())) == "it is not a file"
    assert "No such file" in run(reason((tmp_path / "missing").as_uri()))


def test_trouble_of_the_reader_is_not_taken_for_trouble_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"body")

    async def main() -> None:
        async with Loopback({"/a": answer(b"body")}) as server:
            for url in ((tmp_path / "a").as_uri(), server.url("/a")):
                with pytest.raises(PermissionError):
                    async with download(url, silence=BOUND):
                        raise PermissionError

    run(main())
