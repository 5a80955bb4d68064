"""Run commands in terminals for agents, keep their newest output, and end their process trees.

Each is a process tree that dies whole.

Knows nothing of sessions and agents but the names of those that a terminal belongs to, and ends with.
"""

import asyncio
import codecs
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from msgspec import Struct

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import InvalidRequest, ShuttingDown, UnknownTerminal
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.text import refusals
from sandboxagent.server.processes.children import (
    KILL_TIMEOUT,
    ProcessTrees,
    end_tree,
    read_exit_status,
    start_child,
    wait_until,
)

logger = logging.getLogger(__name__)

STDOUT = 1
LINGER_TIMEOUT = 0.5
"""Seconds that what a command left running has to finish its output; then it is killed."""
DRAIN_TIMEOUT = 1.0
"""Seconds for the pipe to end after that; something we cannot find may hold it."""


class Output:
    """The newest bytes of what was written, as text."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._truncated = False

    def feed(self, data: bytes) -> None:
        self._kept += data
        # Twice as much is kept at times: to move the rest for each piece would cost far more.
        if len(self._kept) > 2 * self._limit:
            self._cut()

    def read(self, *, ended: bool) -> tuple[str, bool]:
        """The text, and whether more had been written. A character that has come in part is left for later."""
        self._cut()
        kept = bytes(self._kept)
        if self._truncated:
            kept = kept[_first_character(kept) :]
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, ended)
        encoded = text.encode()
        if len(encoded) > self._limit:
            # What stands for bytes that are no text is longer than they are.
            encoded = encoded[len(encoded) - self._limit :]
            return encoded[_first_character(encoded) :].decode(), True
        return text, self._truncated

    def _cut(self) -> None:
        excess = len(self._kept) - self._limit
        if excess > 0:
            del self._kept[:excess]
            self._truncated = True


def _first_character(data: bytes) -> int:
    """Where the first whole character begins in bytes that were cut somewhere."""
    # A character has four bytes at most: where there is none in four, this is no text.
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0 if len(data) > 3 else len(data))


class TerminalLimits(Struct, frozen=True):
    """What terminals may take: how many a session may have, bytes kept of each, seconds between SIGTERM and SIGKILL."""

    count: int = 32
    output: int = 1 << 20
    grace: float = 1.0


class Asker(Struct, frozen=True):
    """Whose a terminal is: it ends with the process that asked for it, and with the session."""

    process: str
    session: str


class TerminalCommand(Struct, frozen=True, kw_only=True):
    """What is to run. `directory` must be within `directories`; `environment` is all that it gets.

    `within` gives what of some directories may be used at all.
    """

    program: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str]
    directory: str
    directories: Sequence[str]
    output_limit: int | None = None
    within: Callable[[Sequence[str]], Confined] = Confined


class ExitStatus(Struct, frozen=True):
    """How a command ended: with a code, or by a signal."""

    code: int | None
    signal: str | None


class Terminal(asyncio.SubprocessProtocol):
    """One command. Everything happens on the event loop's thread."""

    def __init__(self, key: str, children: ProcessTrees, pool: Pool, output_limit: int) -> None:
        self.key = key
        self.exit: ExitStatus | None = None
        self._children = children
        self._pool = pool
        self._output = Output(output_limit)
        self._transport: asyncio.SubprocessTransport | None = None
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self._done: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, command: TerminalCommand) -> None:
        """Raises InvalidParams, NoSuchFile or FileFailed when it cannot be started."""
        try:
            with refusals(command.directory):
                directory, arguments = await self._pool.run(_prepare, command)
            # Both on one pipe, so that they are in order.
            pipes = (asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT)
            try:
                with refusals(command.program):
                    here = _descriptor(directory)
                    await start_child(
                        self._children, self.key, self, arguments, command.environment, here, pipes, LINGER_TIMEOUT
                    )
            finally:
                os.close(directory)
        finally:
            self._started.set_result(None)

    def output(self) -> tuple[str, bool]:
        """The newest that it wrote, and whether there was more."""
        return self._output.read(ended=self.exit is not None)

    async def exited(self) -> ExitStatus:
        """Wait until it has ended, for any reason."""
        return await asyncio.shield(self._done)

    async def stop(self, grace: float) -> None:
        """End it with its whole tree; what it wrote stays. All callers share one stop."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop {self.key}")
        await asyncio.shield(self._stopping)

    async def kill(self) -> None:
        """End its tree without a grace, whatever else is under way."""
        await end_tree(self._children, self.key, self._dead, 0)

    async def _stop(self, grace: float) -> None:
        await self._started
        if self._transport is None:
            return
        if not self._dead.done():
            await end_tree(self._children, self.key, self._dead, grace)
        if not await wait_until(KILL_TIMEOUT if self._dead.done() else 0, self._done):
            self._finish()

    def _finish(self) -> None:
        """All of its output is here: say how it ended, and let go of the pipe. Once."""
        if self.exit is not None:
            return
        assert self._transport is not None
        self.exit = ExitStatus(*read_exit_status(self._transport.get_returncode()))
        self._done.set_result(self.exit)
        pipe = self._transport.get_pipe_transport(STDOUT)
        if self._open and pipe is not None:
            pipe.close()
        # Closing it earlier would take the exit status from the event loop.
        if self._dead.done():
            self._transport.close()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._children.register(self.key, self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.exit is None:
            self._output.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open = False
        if self._dead.done():
            self._finish()
        else:
            self._children.hurry(self.key)

    def process_exited(self) -> None:
        self._dead.set_result(None)
        try:
            self._children.forget(self.key)
        except Exception:
            logger.exception("cannot end what a command left behind terminal=%s", self.key)
        if self.exit is not None:
            # It was given up, and has come back from the kernel after all.
            cast("asyncio.SubprocessTransport", self._transport).close()
        else:
            self._loop.call_later(DRAIN_TIMEOUT if self._open else 0, self._finish)


class Terminals:
    """All terminals of the server, until they are released."""

    def __init__(self, children: ProcessTrees, pool: Pool, limits: TerminalLimits) -> None:
        self._children = children
        self._pool = pool
        self._limits = limits
        self._terminals: dict[str, tuple[Asker, Terminal]] = {}
        self._ending: dict[asyncio.Task[None], Terminal] = {}
        self._closed = False

    async def create(self, asker: Asker, command: TerminalCommand) -> str:
        """Start a command; gives the terminal's id.

        Raises InvalidRequest when the session has too many, and what `Terminal.start` raises.
        """
        if self._closed:
            raise ShuttingDown
        self._check_room(asker)
        id = f"terminal-{secrets.token_hex(8)}"
        limit = self._limits.output if command.output_limit is None else min(command.output_limit, self._limits.output)
        terminal = Terminal(id, self._children, self._pool, limit)
        # Before it runs: it counts, and ends with its asker, from here on.
        self._terminals[id] = (asker, terminal)
        try:
            await terminal.start(command)
        except BaseException:
            self._terminals.pop(id, None)
            raise
        if id not in self._terminals:
            raise UnknownTerminal(id)
        return id

    def get(self, asker: Asker, id: str) -> Terminal:
        """Raises UnknownTerminal, also for one of another session."""
        found = self._terminals.get(id)
        if found is None or found[0] != asker:
            raise UnknownTerminal(id)
        return found[1]

    async def kill(self, asker: Asker, id: str) -> None:
        """End the command; its output and its exit status stay until it is released."""
        await self.get(asker, id).stop(self._limits.grace)

    async def release(self, asker: Asker, id: str) -> None:
        """End the command if it runs, and forget the terminal."""
        terminal = self.get(asker, id)
        del self._terminals[id]
        await asyncio.shield(self._end(terminal, self._limits.grace))

    def end_session(self, session: str) -> None:
        self._end_all(lambda asker: asker.session == session, self._limits.grace)

    def end_process(self, process: str) -> None:
        self._end_all(lambda asker: asker.process == process, self._limits.grace)

    async def close(self, longest: float) -> None:
        """End all of them and start no more; none gets longer than this."""
        self._closed = True
        self._end_all(lambda _: True, min(longest, self._limits.grace))
        ending = dict(self._ending)
        if ending:
            _, late = await asyncio.wait(ending, timeout=longest + KILL_TIMEOUT)
            await asyncio.gather(*(ending[task].kill() for task in late))

    def _check_room(self, asker: Asker) -> None:
        used = sum(other.session == asker.session for other, _ in self._terminals.values())
        if used >= self._limits.count:
            raise InvalidRequest(
                f"this session has {used} terminals already; release one first", limit=self._limits.count
            )

    def _end_all(self, ended: Callable[[Asker], bool], grace: float) -> None:
        for id, (asker, terminal) in list(self._terminals.items()):
            if ended(asker):
                del self._terminals[id]
                self._end(terminal, grace)

    def _end(self, terminal: Terminal, grace: float) -> asyncio.Task[None]:
        task = asyncio.create_task(terminal.stop(grace))
        self._ending[task] = terminal
        task.add_done_callback(self._ending.pop)
        return task


def _prepare(command: TerminalCommand) -> tuple[int, list[str]]:
    """The descriptor of where it runs, and what runs there."""
    directory = command.within(command.directories).open_directory(command.directory)
    return directory, _arguments(command, directory)


def _arguments(command: TerminalCommand, directory: int) -> list[str]:
    """The program with its arguments; a program alone that is none is a line for the shell, as agents send it."""
    program = command.program
    path = command.environment.get("PATH", os.defpath)
    named = f"{_descriptor(directory)}/{program}" if "/" in program and not program.startswith("/") else program
    if command.arguments or shutil.which(named, path=path) is not None:
        return [program, *command.arguments]
    return [shutil.which("bash", path=path) or "/bin/sh", "-c", program]


def _descriptor(directory: int) -> str:
    """A name for an open directory that its path cannot be taken from; in the child too, until it runs its program."""
    return f"/proc/self/fd/{directory}"
