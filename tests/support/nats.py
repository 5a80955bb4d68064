"""NATS servers for tests, on loopback, each gone with the block that started it; and credentials that expire."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import nkeys  # pyright: ignore[reportMissingTypeStubs] - it has none

from tests.support.running import BOUND

_read = cast("Callable[[bytearray], nkeys.KeyPair]", nkeys.from_seed)
_encode_seed = cast("Callable[[bytes, int], bytes]", nkeys.encode_seed)

PROGRAM = Path(sys.executable).with_name("nats-server")


@dataclass(slots=True)
class NatsServer:
    """One server: it can be killed, frozen and started again on the same disk and port."""

    directory: Path
    port: int
    process: "subprocess.Popen[bytes]"
    ports: dict[str, int] = field(default_factory=dict[str, int])
    """Of everything else that it serves."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """On the same port: clients come back by themselves."""
        self.process = _start(self.directory, self.port)
        _wait_for_ports(self.directory, self.process)

    def configure(self, **settings: object) -> None:
        """Change its configuration; it reads it again at SIGHUP."""
        path = self.directory / "server.conf"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@contextmanager
def nats_server(directory: Path, *, keep: bool = False, **settings: object) -> Generator[NatsServer]:
    """A server of its own with JetStream; `settings` are added to its configuration. With `keep`, its disk stays."""
    directory.mkdir(parents=True, exist_ok=True)
    configuration = {
        "host": "127.0.0.1",
        "server_name": directory.name,
        "jetstream": {"store_dir": str(directory / "streams")},
        "ports_file_dir": str(directory),
        **settings,
    }
    (directory / "server.conf").write_text(json.dumps(configuration))
    process = _start(directory, -1)
    server = NatsServer(directory, 0, process)
    try:
        server.ports = _wait_for_ports(directory, process)
        server.port = server.ports["nats"]
        yield server
    finally:
        server.kill()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, port: int) -> "subprocess.Popen[bytes]":
    for old in directory.glob("nats-server_*.ports"):
        old.unlink()
    with (directory / "server.log").open("ab") as log:
        return subprocess.Popen(
            [PROGRAM, "-c", directory / "server.conf", "-p", str(port)], stdout=log, stderr=log, env=dict(os.environ)
        )


def _wait_for_ports(directory: Path, process: "subprocess.Popen[bytes]") -> dict[str, int]:
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        for path in directory.glob("nats-server_*.ports"):
            if text := path.read_text():
                return {name: int(urls[0].rpartition(":")[2]) for name, urls in json.loads(text).items()}
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError((directory / "server.log").read_text())


class _Key:
    """A pair of keys, its public half as a name."""

    def __init__(self, kind: int) -> None:
        self.seed = _encode_seed(os.urandom(32), kind)
        self._pair = _read(bytearray(self.seed))
        self.name = bytes(self._pair.public_key).decode()

    def sign(self, text: bytes) -> bytes:
        return cast("Callable[[bytes], bytes]", self._pair.sign)(text)


class Issuer:
    """An operator with one account, who gives out credentials as NATS's own tools do."""

    def __init__(self) -> None:
        self._operator, self._account = _Key(nkeys.PREFIX_BYTE_OPERATOR), _Key(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def settings(self) -> dict[str, object]:
        """For the configuration of a server, which then knows no other credentials; without JetStream."""
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        account = {"type": "account", "version": 2, "limits": {**limits, "wildcards": True}}
        return {
            "operator": _sign(self._operator, self._operator, {"type": "operator", "version": 2}),
            "resolver": "MEMORY",
            "resolver_preload": {self._account.name: _sign(self._operator, self._account, account)},
            "jetstream": False,
        }

    def write_credentials(self, path: Path, expires_at: float) -> Path:
        """Of a user who may do everything until then."""
        user = _Key(nkeys.PREFIX_BYTE_USER)
        rights: dict[str, object] = {
            "type": "user",
            "version": 2,
            "subs": -1,
            "data": -1,
            "payload": -1,
            "pub": {},
            "sub": {},
        }
        parts = {
            "NATS USER JWT": _sign(self._account, user, rights, int(expires_at)),
            "USER NKEY SEED": user.seed.decode(),
        }
        lines = [f"-----BEGIN {name}-----\n{text}\n------END {name}------\n\n" for name, text in parts.items()]
        path.write_text("".join(lines))
        return path


def _sign(issuer: _Key, subject: _Key, claims: Mapping[str, object], expires_at: int = 0) -> str:
    token = {"iat": int(time.time()), "iss": issuer.name, "sub": subject.name, "name": "test", "nats": claims}
    if expires_at:
        token["exp"] = expires_at
    token["jti"] = base64.b32encode(hashlib.sha256(json.dumps(token).encode()).digest()).decode().rstrip("=")
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = b".".join(_encode(json.dumps(part).encode()) for part in (head, token))
    return b".".join([text, _encode(issuer.sign(text))]).decode()


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
