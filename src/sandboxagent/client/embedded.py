"""Run a private server in a child process, which ends when this process ends.

The module starts and ends the server. It does not call it.
"""

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from sandboxagent.client.errors import InvalidCall, StartFailed

READY = b"sandbox-agent listening on "
START_TIMEOUT, STOP_TIMEOUT, TERM_TIMEOUT, LAST_TIMEOUT = 30.0, 5.0, 2.0, 1.0
"""Seconds until the server must be ready; until it must end after the end of its stdin; until it must end after
SIGTERM; and until its pipes must be closed after it has ended."""
MAX_TAIL_BYTES = 1 << 14
"""Maximum number of bytes that are kept of the server's stderr, and of a first line that does not end."""

_TOKEN = "SANDBOX_AGENT_TOKEN"  # noqa: S105 - the name of a variable
_OTHER_WAYS = ("SANDBOX_AGENT_TOKEN_FILE", "SANDBOX_AGENT_NO_TOKEN")
_OURS = frozenset({"embedded", "data_dir", "token", "token_file", "no_token"})

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """A running private server. It ends with `close`, or when this program ends for any reason."""

    def __init__(self, transport: asyncio.SubprocessTransport, watch: "_Watch", url: str, token: str) -> None:
        """Create the object for a started server. Only `start` calls this."""
        self.url = url
        self.token = token
        self.pid = transport.get_pid()
        self._transport = transport
        self._watch = watch
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        *,
        command: Sequence[str] | None = None,
        data_dir: Path | None = None,
        options: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "EmbeddedServer":
        """Start a server on a free port, with a secret token, and wait until it is ready.

        Args:
            command: command that runs `sandbox-agent`; by default, the `sandboxagent` package of this Python.
            data_dir: directory that keeps the sessions; without it, they are deleted with the server.
            options: flags of `sandbox-agent server` by name. True is a switch, and a list is a flag for each item.
            env: environment variables of the server, in addition to those of this process.

        Raises:
            StartFailed: the server did not start; the error has the end of its output.
        """
        program = [sys.executable or "", "-P", "-m", "sandboxagent"] if command is None else list(command)
        place = [] if data_dir is None else [f"--data-dir={data_dir}"]
        whole = [*program, "server", "--embedded", "--port=0", *place, *_flags(options or {})]
        token = (env or {}).get(_TOKEN) or secrets.token_urlsafe(32)
        # Every user of the machine can read a command line. An empty variable counts as unset.
        environment = {**os.environ, **(env or {}), **dict.fromkeys(_OTHER_WAYS, ""), _TOKEN: token}
        transport, watch = await _spawn(whole, environment)
        try:
            url = await watch.url()
        except BaseException:
            await _end(transport, watch, STOP_TIMEOUT)
            raise
        return cls(transport, watch, _reachable(url), token)

    @property
    def stderr(self) -> str:
        """The end of the server's output on stderr."""
        return self._watch.tail()

    async def ended(self) -> str:
        """Wait until the server ends by itself, and return how it ended."""
        await asyncio.wait([self._watch.exited])
        return self._watch.how()

    async def close(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop the server, and wait until it has ended. If the caller is cancelled, the server still ends.

        Closing its stdin is enough for a server. After `timeout` seconds it is ended by signals.
        """
        if self._ending is None:
            self._watch.expected = True
            self._ending = asyncio.create_task(_end(self._transport, self._watch, timeout))
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> "EmbeddedServer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Watch(asyncio.SubprocessProtocol):
    """Reads the server's output, so that the server never blocks on a full pipe, and notices the server's end."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.line: asyncio.Future[bytes] = loop.create_future()
        """The first line of stdout; empty if the server ended before."""
        self.exited: asyncio.Future[None] = loop.create_future()
        self.disconnected: asyncio.Future[None] = loop.create_future()
        self.expected = False
        """Whether the server is meant to end."""
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdout, self._stderr = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr = (self._stderr + data)[-MAX_TAIL_BYTES:]
        elif not self.line.done():
            self._stdout += data
            line, end, _ = self._stdout.partition(b"\n")
            if end or len(line) > MAX_TAIL_BYTES:
                self.line.set_result(line)

    def process_exited(self) -> None:
        self.exited.set_result(None)
        if not self.expected and self.line.done():
            logger.warning("the embedded server has ended how=%s", self.how())

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.exited, self.disconnected):
            if not future.done():
                future.set_result(None)

    async def url(self) -> str:
        """Wait until the server listens, and return its address. Raises StartFailed."""
        await asyncio.wait([self.line, self.exited], timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if self.line.done() and self.line.result().startswith(READY):
            return self.line.result().removeprefix(READY).decode().strip()
        self.expected = True
        if self.exited.done():
            # The last output may not have been read yet.
            await asyncio.wait([self.disconnected], timeout=LAST_TIMEOUT)
            raise StartFailed(f"the server {self.how()} before it was ready", self.tail())
        if self.line.done():
            raise StartFailed(
                f"the command does not run sandbox-agent: it says {self.line.result()!r:.200}", self.tail()
            )
        raise StartFailed(f"the server was not ready within {START_TIMEOUT:.0f} seconds", self.tail())

    def how(self) -> str:
        """Describe how the server ended, for an error message."""
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"

    def tail(self) -> str:
        return self._stderr.decode(errors="replace")


async def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> tuple[asyncio.SubprocessTransport, _Watch]:
    try:
        return await asyncio.get_running_loop().subprocess_exec(
            _Watch,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            # In its own session, the server does not get the SIGINT of Ctrl-C, and this process can end it in order.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StartFailed(f"{command[0] or 'Python'} cannot be started: {reason}") from error


async def _end(transport: asyncio.SubprocessTransport, watch: _Watch, timeout: float) -> None:
    """End the server by the end of its stdin, then SIGTERM, then SIGKILL, and close its pipes.

    If the caller is cancelled, SIGKILL follows at once.
    """
    try:
        stdin = transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        if not await _within(timeout, watch.exited):
            with suppress(ProcessLookupError):
                transport.terminate()
            await _within(min(timeout, TERM_TIMEOUT), watch.exited)
    finally:
        if not watch.exited.done():
            with suppress(ProcessLookupError):
                transport.kill()
        try:
            # A process that another program left behind may hold the pipes open.
            await _within(LAST_TIMEOUT, watch.disconnected)
        finally:
            transport.close()


async def _within(seconds: float, future: asyncio.Future[None]) -> bool:
    await asyncio.wait([future], timeout=seconds)
    return future.done()


def _flags(options: Mapping[str, object]) -> list[str]:
    """Return options as flags of a command line. Raises InvalidCall for options that only `start` may set."""
    flags: list[str] = []
    for name, value in options.items():
        if name.replace("-", "_") in _OURS:
            raise InvalidCall(f"{name} cannot be among the options: start() gives it to the server")
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [value]
            flags += [f"{flag}={item}" for item in items]
    return flags


def _reachable(url: str) -> str:
    """Replace the wildcard host of an address by the loopback host, which a client can connect to."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
