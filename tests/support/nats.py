"""NATS servers for tests, on loopback, each gone with the block that started it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.running import BOUND

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
def nats_server(directory: Path, **settings: object) -> Generator[NatsServer]:
    """A server of its own with JetStream; `settings` are added to its configuration."""
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
