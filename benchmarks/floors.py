"""Measure the cost of the libraries under a turn, with no code around them (`./dev bench floors`).

It is the CPU time of one thread, the best of many short samples. A server in Python cannot be cheaper than the sum of
these, whatever its own code does.
"""

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import httptools
import msgspec
import uvloop
from build import compile_tools
from scenarios import Sample, posts
from servers import Ours

SAMPLES = 20
BODY = (
    b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s0","prompt":[{"type":"text",'
    b'"text":"hello"}]}}'
)
REQUEST = (
    b"POST /v1/rpc HTTP/1.1\r\nHost: 127.0.0.1:2468\r\nAuthorization: Bearer x\r\nX-ACP-Connection-Id: 0123456789abcdef"
    b"\r\nContent-Type: application/json\r\nIdempotency-Key: key-1\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
SCHEMA = """
pragma journal_mode = wal; pragma synchronous = normal;
create table events(first integer primary key, last integer, session text, channel text, lines blob);
create index by_channel on events(channel, last);
create index by_session on events(session, last)
"""
IMPORTS = {
    "Python itself": "pass",
    "with asyncio": "import asyncio",
    "with uvloop, msgspec, httptools and sqlite3, too": "import asyncio, uvloop, msgspec, httptools, sqlite3",
    "our server": "import sandboxagent.server.main",
    "our client": "import sandboxagent; sandboxagent.SandboxAgent",
}


class Peek(msgspec.Struct, gc=False):
    id: msgspec.Raw = msgspec.Raw(b"")
    method: str = ""


class Heads:
    """The callbacks of an httptools parser."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body = body


def measure() -> list[list[str]]:
    """Return names with microseconds, and start times in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        floors = [*_parsing(), *_descriptors(), *_disk(Path(folder)), *uvloop.run(_loop()), *_relayed()]
    return [[name, f"{micros:.1f} µs"] for name, micros in floors] + [
        [f"start: {name}", f"{_start(code) * 1e3:.0f} ms"] for name, code in IMPORTS.items()
    ]


def _parsing() -> list[tuple[str, float]]:
    peek = msgspec.json.Decoder(Peek)
    notification = {"jsonrpc": "2.0", "method": "x", "params": {"sessionId": "s0", "turnId": "t", "state": "started"}}
    return [
        ("httptools: a request", _best(lambda: httptools.HttpRequestParser(Heads()).feed_data(REQUEST))),
        ("msgspec: peek at an envelope", _best(lambda: peek.decode(BODY))),
        ("msgspec: write a notification", _best(lambda: msgspec.json.encode(notification))),
    ]


def _descriptors() -> list[tuple[str, float]]:
    reader, writer = os.pipe()
    one, other = socket.socketpair()
    with closing(one), closing(other):
        floors = [
            ("a line through a pipe, both ends", _best(lambda: (os.write(writer, BODY), os.read(reader, 1 << 16)))),
            ("a request through a socket, both ends", _best(lambda: (one.send(REQUEST), other.recv(1 << 16)))),
        ]
    os.close(reader)
    os.close(writer)
    return floors


def _disk(folder: Path) -> list[tuple[str, float]]:
    numbers = count(1)
    journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT, 0o600)
    with closing(sqlite3.connect(folder / "floors.db", isolation_level=None)) as sqlite:
        sqlite.executescript(SCHEMA)

        def insert(rows: int) -> None:
            sqlite.execute("begin immediate")
            positions = [next(numbers) for _ in range(rows)]
            values = [(each, each, "s0", "session:s0", BODY) for each in positions]
            sqlite.executemany("insert into events values (?, ?, ?, ?, ?)", values)
            sqlite.execute("commit")

        floors = [
            ("SQLite: a transaction with five rows and two indexes", _best(lambda: insert(5), 50)),
            ("SQLite: a row of a transaction with two hundred", _best(lambda: insert(200), 5) / 200),
            ("a record of 1.5 KiB written to a file", _best(lambda: os.pwrite(journal, BODY * 12, 0))),
        ]
    os.close(journal)
    return floors


async def _loop() -> list[tuple[str, float]]:
    loop = asyncio.get_running_loop()

    async def nothing() -> None:
        pass

    async def future() -> None:
        waiting = loop.create_future()
        loop.call_soon(waiting.set_result, None)
        await waiting

    return [
        ("uvloop: a task", await _best_of_many(lambda: loop.create_task(nothing()))),
        ("uvloop: a future that the next turn resolves", await _best_of_many(future)),
        ("a thread that is asked and waited for", await _best_of_many(_hop())),
    ]


class Relay(Ours):
    """The smallest possible server (relay.py)."""

    name = "relay"

    def command(self, port: int, folder: Path) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("relay.py")), str(port), str(self._agent)]


def _relayed() -> list[tuple[str, float]]:
    """Return the CPU time of a call that only goes to an agent and back."""
    tools = compile_tools()
    floors: list[tuple[str, float]] = []
    for clients, requests in ((1, 3000), (32, 300)):
        runs = [posts(clients, requests, in_session=True).run(Relay(tools.agent), tools) for _ in range(3)]
        best = min(run.notes["server CPU µs/request"] for run in runs if isinstance(run, Sample))
        floors.append((f"a call through uvloop to an agent and back, {clients} at a time", best))
    return floors


def _hop() -> Callable[[], Awaitable[object]]:
    from sandboxagent.server.log.database import Database
    from sandboxagent.server.log.worker import Worker

    loop = asyncio.get_running_loop()
    worker = Worker(Database(None), loop)

    async def hop() -> None:
        done: asyncio.Future[object] = loop.create_future()
        worker.submit(lambda _: None, done.set_result, 1.0)
        await done

    return hop


def _best(work: Callable[[], object], times: int = 300) -> float:
    """Return the best CPU time of a call, in microseconds."""
    best = float("inf")
    for _ in range(SAMPLES):
        began = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


async def _best_of_many(work: Callable[[], Awaitable[object]], times: int = 300) -> float:
    best = float("inf")
    for _ in range(SAMPLES):
        began = time.process_time()
        for _ in range(times):
            await work()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


def _start(code: str) -> float:
    """Return the CPU seconds of a Python process that runs the code."""
    best = float("inf")
    for _ in range(SAMPLES // 2):
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = getrusage(RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best
