"""A process that has imported the program, and forks one for each test that needs one.

Most of what a server or a command costs is importing its modules: half a second of CPU, hundreds of times. What is
forked here is as much a process of its own as one that was started anew: it has its own sockets, signals, files and
end. Tests about the command line or the imports of a program start it anew.

The forking program (`python -I fork_server.py <fd>`) reads requests from a socket, each with the file descriptors for
stdin, stdout and stderr. It writes a message for each process that it has forked, and one for each that has ended.
Programs that tests start, such as a suite in TypeScript, ask it at an address: `forked.py` is the program that they
start in place of the real one.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import IO, NoReturn

PYTHON = "--python"
"""In place of the first word of a command: what follows is a file in Python, and its arguments."""
BOUND = 60.0
"""Seconds that it may take to import everything, or to fork."""
_LONGEST = 1 << 20
_PR_SET_PDEATHSIG = 1
_SLICE = 0.05
"""Seconds that one thread listens at a time."""


class Forked:
    """A process that was forked for us, as `subprocess.Popen` would show it."""

    def __init__(self, fork_server: "Forkery", pid: int) -> None:
        self.pid = pid
        self.stdout: IO[str] | None = None
        self._forkery = fork_server

    @property
    def returncode(self) -> int | None:
        return self._forkery.ended.get(self.pid)

    def poll(self) -> int | None:
        self._forkery.listen(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked server", timeout or 0)
            self._forkery.listen(left)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forkery:
    """The forking process, seen from the tests."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        """Exit codes by process id, negative for signals."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-I", __file__, str(its.fileno())]
            # It ends when our end of the socket is closed, however we end.
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        self._lock = threading.RLock()
        self._socket = ours
        self._socket.settimeout(BOUND)
        self._address = self._socket.recv(_LONGEST).decode()
        assert self._address, "the forking program did not start"
        atexit.register(self._close)

    @property
    def stand_in(self) -> list[str]:
        """The command that is `sandbox-agent`, for programs that start it by themselves."""
        return [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked.py")), self._address]

    @property
    def python(self) -> list[str]:
        """The command that is `python -W error`, for a file that uses the SDK."""
        return [*self.stand_in, PYTHON]

    @cached_property
    def programs(self) -> Path:
        """A directory for a PATH, with `sandbox-agent` in it."""
        directory = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        program = Path(directory) / "sandbox-agent"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self.stand_in)} "$@"\n')
        program.chmod(0o755)
        return Path(directory)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        cwd: Path | None = None,
        *,
        terminal: bool = False,
    ) -> Forked:
        """A process that runs `sandbox-agent`; with `terminal`, the terminal of its stdin is its own."""
        wish = {"arguments": list(arguments), "environment": dict(environment), "terminal": terminal}
        content = json.dumps({**wish, "cwd": str(cwd or Path.cwd())}).encode()
        with self._lock:
            socket.send_fds(self._socket, [content], descriptors)
            started: int | None = None
            while started is None:
                started = self.listen(BOUND)
            # Ids come again: what was known of an earlier process is about another one.
            self.ended.pop(started, None)
        return Forked(self, started)

    def listen(self, timeout: float | None) -> int | None:
        """Take in what it says; the id of a process that it has started, if that was it."""
        # A thread that waits lets others have their turn, and may take in what they wait for.
        wait = _SLICE if timeout is None else min(timeout, _SLICE)
        with self._lock:
            if not select.select([self._socket], [], [], wait)[0]:
                return None
            message = json.loads(self._socket.recv(_LONGEST))
            if "started" in message:
                return message["started"]
            self.ended[message["ended"]] = message["code"]
            return None


@cache
def fork_server() -> Forkery:
    """The one of this process."""
    return Forkery()


# --- the program ------------------------------------------------------------------------------------------------------


_IMPORTED = (
    "sandboxagent.server.main",
    "sandboxagent.server.file_api.routes",
    "sandboxagent.cli.main",
    "sandboxagent.cli.commands.server",
    "sandboxagent.cli.commands.run",
    "sandboxagent.cli.daemon",
    "sandboxagent.cli.chat.run",
    "sandboxagent.cli.chat.input",
    "sandboxagent.server.http.websocket",
    "sandboxagent.adapters.opencode.app",
    "sandboxagent.adapters.opencode.server_routes",
    "prompt_toolkit",
    "rich.markdown",
    # What the first server of a process imports, whatever it serves.
    "encodings.idna",
    "encodings.utf_8_sig",
)
_IMPORTED_FOR = {
    PYTHON: ("sandboxagent.client.sync", "sandboxagent.client.embedded"),
    "--join": (
        "sandboxagent.fleet.bus.nats",
        "sandboxagent.fleet.node.connections",
        "sandboxagent.fleet.node.membership",
    ),
    "acp": ("sandboxagent.cli.commands.acp", "sandboxagent.client.transport"),
    "api": ("sandboxagent.cli.commands.api",),
    "daemon": ("sandboxagent.cli.commands.daemon",),
    "doctor": (
        "sandboxagent.cli.doctor.server",
        "sandboxagent.cli.doctor.machine",
        "sandboxagent.cli.doctor.agents",
    ),
    "fs": ("sandboxagent.cli.commands.fs",),
    "gateway": (
        "sandboxagent.fleet.gateway.app",
        "sandboxagent.fleet.gateway.requests",
        "sandboxagent.fleet.gateway.main",
    ),
}
"""By words of the command line; imported before the first program with such a word, for it and all others."""


def serve(descriptor: int) -> NoReturn:
    """Fork for each request, until the tests have ended."""
    _import(_IMPORTED)
    _warm_up()
    tests = socket.socket(fileno=descriptor)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A terminal's ^C is for the tests, which then end their servers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Without a name in the file system: nothing is left of it, however this ends.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(b"")
    listener.listen()
    tests.send(listener.getsockname()[1:])
    forked: dict[int, socket.socket] = {}
    """Who asked for it, by process id."""
    asking = [tests]
    while True:
        ready, _, _ = select.select([reading, listener, *asking], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _report_ends(forked)
        if listener in ready:
            _accept(listener, asking)
        for each in [each for each in asking if each in ready]:
            try:
                content, descriptors, _, _ = socket.recv_fds(each, _LONGEST, 3)
            except ConnectionResetError:
                content, descriptors = b"", []
            if not content:
                # Tests that were interrupted leave no server, which leaves no agent.
                _end([pid for pid, asked in forked.items() if each in (asked, tests)], each is tests)
                asking.remove(each)
                each.close()
                continue
            wish = json.loads(content)
            for word in _IMPORTED_FOR.keys() & wish["arguments"]:
                _import(_IMPORTED_FOR[word])
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for own in (reading, writing):
                    os.close(own)
                for own in (listener, *asking):
                    own.close()
                _become(wish, descriptors)
            for one in descriptors:
                os.close(one)
            forked[pid] = each
            with suppress(OSError):
                each.send(json.dumps({"started": pid}).encode())


def _import(names: Sequence[str]) -> None:
    if all(name in sys.modules for name in names):
        return
    for name in names:
        importlib.import_module(name)
    # Nor does a program that was forked look through it.
    gc.collect()
    gc.freeze()


def _warm_up() -> None:
    """Do once what every server does first: Python and msgspec compile patterns and types when they are first used."""
    from sandboxagent.cli.commands.server import server_command
    from sandboxagent.server.agents.manifest import load_manifest

    load_manifest(None)
    server_command()
    gc.collect()
    gc.freeze()


def _accept(listener: socket.socket, asking: list[socket.socket]) -> None:
    """Programs of this user may ask."""
    came, _ = listener.accept()
    _, user, _ = struct.unpack("3i", came.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user == os.getuid():
        asking.append(came)
    else:
        came.close()


def _end(pids: Sequence[int], over: bool) -> None:
    """End processes that no test waits for any more: as its stand-in ended, or in peace when the tests are over."""
    for pid in pids:
        os.kill(pid, signal.SIGTERM if over else signal.SIGKILL)
    if over:
        raise SystemExit(0)


def _report_ends(forked: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        # Who asked for it may have ended without listening to the last of it.
        with suppress(OSError):
            forked.pop(pid).send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, object], descriptors: Sequence[int]) -> NoReturn:
    """Be as a program that was started with this request; and end with the fork_server, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for number in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
        os.close(source)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    told = os.environ.get("PYTHONIOENCODING")
    sys.stdin = sys.__stdin__ = open(0, encoding=told, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=told, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, encoding=told, errors="backslashreplace", closefd=False
    )
    os.chdir(str(request["cwd"]))
    sys.argv = ["sandbox-agent", *request["arguments"]]  # type: ignore[misc]
    if sys.argv[1:2] == [PYTHON]:
        del sys.argv[:2]
        _run(_run_file)
    _run(lambda: runpy.run_module("sandboxagent", run_name="__main__", alter_sys=True))


def _run_file() -> None:
    """Run a file as `python -W error` does, which tells of all that was left open."""
    warnings.simplefilter("error")
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        gc.collect()


def _run(program: Callable[[], object]) -> NoReturn:
    """Run the program to its end, and end: taking apart what was imported costs more than all else that it does."""
    try:
        program()
        code: object = None
    except SystemExit as end:
        code = end.code
    # Other ends are Python's own to tell of.
    if code is None or isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)
    raise SystemExit(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
