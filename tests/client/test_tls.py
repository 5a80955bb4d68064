"""A server whose TLS fails: the error says why, and what to do."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from sandboxagent.client.api import Api
from sandboxagent.client.errors import TlsFailed
from tests.cli.place import Place
from tests.support.client import run
from tests.support.running import BOUND

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="making a certificate needs openssl")


AUTHORITY = """\
[ca]
default_ca = authority
[authority]
database = {directory}/index.txt
new_certs_dir = {directory}
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = {name}
"""


class Certificate:
    """A certificate that signs itself, with its key."""

    def __init__(self, directory: Path, name: str = "IP:127.0.0.1", until: str = "20991231235959Z") -> None:
        self.file, key, asked = directory / "certificate.pem", directory / "key.pem", directory / "asked.pem"
        config = directory / "openssl.cnf"
        config.write_text(AUTHORITY.format(directory=directory, name=name))
        (directory / "index.txt").touch()
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test"]
        dates = ["-startdate", "20200101000000Z", "-enddate", until]
        files = ["-keyfile", str(key), "-in", str(asked), "-out", str(self.file)]
        for words in (
            ["req", "-new", *kind, "-keyout", str(key), "-out", str(asked)],
            ["ca", "-batch", "-selfsign", "-notext", "-config", str(config), *dates, *files],
        ):
            subprocess.run(["openssl", *words], capture_output=True, check=True, timeout=BOUND)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.file, key)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


def failure(certificate: Certificate | None, doctor: Place | None = None) -> tuple[str, str]:
    """The message of a call to a server with this certificate, or without TLS, and doctor's report of it."""

    async def scenario() -> tuple[str, str]:
        context = None if certificate is None else certificate.context
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            api = Api(url)
            try:
                with pytest.raises(TlsFailed) as failed:
                    await api.request("GET", "/v1/health", silence=BOUND)
            finally:
                await api.close()
            assert not failed.value.outcome_unknown
            said = str(failed.value).removeprefix(f"{url} ")
            if doctor is None:
                return said, ""
            ran = await asyncio.to_thread(doctor.run_apart, "doctor", "--endpoint", url)
            called = await asyncio.to_thread(doctor.run_apart, "sessions", "list", "--endpoint", url)
            assert called.stderr == f"sandbox-agent: {failed.value}\n"
            return said, ran.stdout.replace(url, "URL")

    return run(scenario())


def test_a_self_signed_certificate_is_named_also_by_commands_and_doctor(tmp_path: Path) -> None:
    said, report = failure(Certificate(tmp_path), Place(tmp_path))

    assert said == "has a self-signed certificate: if you trust it, set SSL_CERT_FILE to the file of the certificate"
    assert "URL has a self-signed certificate" in report


def test_an_expired_certificate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = Certificate(tmp_path, until="20200102000000Z")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))

    said, _ = failure(certificate)

    assert said == "has a certificate that has expired: renew it on the server's machine"


def test_a_certificate_for_another_host_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = Certificate(tmp_path, name="DNS:box.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))

    said, _ = failure(certificate)

    assert said.startswith("has a certificate for another host name: call the server by a name in its certificate")


def test_a_server_without_tls_is_named() -> None:
    said, _ = failure(None)

    assert said == "does not speak TLS on this port: use http://, or the port of its proxy for TLS"


def test_a_self_signed_certificate_that_is_trusted_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = Certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))

    async def scenario() -> int:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=certificate.context)
        async with server:
            api = Api(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            try:
                async with api.exchange("GET", "/v1/health", silence=BOUND) as response:
                    return response.status_code
            finally:
                await api.close()

    assert run(scenario()) == 400
