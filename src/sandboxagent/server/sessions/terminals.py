"""Run commands in terminals for agents, keep their newest output, and end their process trees.

All processes of a terminal end together. This module knows only the names of the session and of the agent process that
own a terminal, and with which it ends.
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

from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import InvalidRequest, ShuttingDown, UnknownTerminal
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.text import as_agent_errors
from sandboxagent.server.processes.children import (
    KILL_TIMEOUT,
    ProcessTrees,
    end_tree,
    read_exit_status,
    start_child,
    wait_until,
)
from sandboxagent.server.sessions.budgets import Budgets, Share

logger = logging.getLogger(__name__)

STDOUT = 1
LINGER_TIMEOUT = 0.5
"""Seconds that a command's leftover processes have to finish their output, before they are killed."""
DRAIN_TIMEOUT = 1.0
"""Seconds to wait for the end of the pipe after that. A process that the server cannot find may hold it open."""


class Output:
    """The newest bytes of a command's output, as text."""

    def __init__(self, limit: int, share: Share | None = None) -> None:
        """`share` is its part of the budget of the agent process that reads it."""
        self._limit = limit
        self._share = share or Share(Budgets(), "")
        self._kept = bytearray()
        self._truncated = self._closed = False

    def feed(self, data: bytes) -> None:
        if self._closed:
            return
        self._kept += data
        # Keep up to twice the limit: moving the rest for each piece would cost far more.
        if len(self._kept) > 2 * self._limit:
            self._cut(self._limit)
        if not self._share.resize(len(self._kept)):
            self._cut(self._share.size)

    def close(self) -> None:
        """Take no more output, and give the budget back: only who waits for the command's end may still read it."""
        self._share.resize(0)
        self._closed = True

    def read(self, *, ended: bool) -> tuple[str, bool]:
        """Return the text, and whether older output was dropped. Unless `ended`, an incomplete last character waits."""
        self._cut(self._limit)
        kept = bytes(self._kept)
        if self._truncated:
            kept = kept[_first_character(kept) :]
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, ended)
        encoded = text.encode()
        if len(encoded) > self._limit:
            # The replacement character is longer than the invalid bytes that it replaces.
            encoded = encoded[len(encoded) - self._limit :]
            return encoded[_first_character(encoded) :].decode(), True
        return text, self._truncated

    def _cut(self, size: int) -> None:
        """Keep only the newest bytes, so many of them."""
        excess = len(self._kept) - size
        if excess > 0:
            del self._kept[:excess]
            self._truncated = True
            if not self._closed:
                self._share.resize(size)


def _first_character(data: bytes) -> int:
    """Return the index of the first whole UTF-8 character in bytes that were cut at any place."""
    # A character has at most four bytes. If none begins within four bytes, the data is not text.
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0 if len(data) > 3 else len(data))


class TerminalLimits(Struct, frozen=True):
    """Maximum number of terminals of a session, bytes kept of each one's output, seconds from SIGTERM to SIGKILL."""

    count: int = 32
    output: int = 1 << 20
    grace: float = 1.0


class TerminalOwners(Struct, frozen=True):
    """The owners of a terminal: it ends with the process that asked for it, and with the session."""

    process: str
    session: str


class TerminalCommand(Struct, frozen=True, kw_only=True):
    """A command to run. `directory` must be within `directories`; `environment` is its whole environment.

    `within` opens paths within `directories`, and may limit them further.
    """

    program: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str]
    directory: str
    directories: Sequence[str]
    output_limit: int | None = None
    within: Callable[[Sequence[str]], Confined] = Confined


class ExitStatus(Struct, frozen=True):
    """A command's exit code, or the signal that ended it."""

    code: int | None
    signal: str | None


class Terminal(asyncio.SubprocessProtocol):
    """One command. Everything happens on the event loop's thread."""

    def __init__(self, key: str, children: ProcessTrees, pool: Pool, output: Output) -> None:
        self.key = key
        self.exit: ExitStatus | None = None
        self._children = children
        self._pool = pool
        self._output = output
        self._transport: asyncio.SubprocessTransport | None = None
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self._done: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, command: TerminalCommand) -> None:
        """Start the command. Raises InvalidParams, NoSuchFile or FileFailed if that fails."""
        try:
            with as_agent_errors(command.directory):
                directory, arguments = await self._pool.run(_prepare, command)
            # stdout and stderr share one pipe, so that their order is kept.
            pipes = (asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT)
            try:
                with as_agent_errors(command.program):
                    here = _descriptor(directory)
                    await start_child(
                        self._children, self.key, self, arguments, command.environment, here, pipes, LINGER_TIMEOUT
                    )
            finally:
                os.close(directory)
        finally:
            self._started.set_result(None)

    def output(self) -> tuple[str, bool]:
        """Return the newest output, and whether older output was dropped."""
        return self._output.read(ended=self.exit is not None)

    def forget(self) -> None:
        """Take no more output, because the terminal was released."""
        self._output.close()

    async def exited(self) -> ExitStatus:
        """Wait until the command has ended, for any reason, and return its exit status."""
        return await asyncio.shield(self._done)

    async def stop(self, grace: float) -> None:
        """End the command with its whole process tree. Its output stays. All callers share one stop."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop {self.key}")
        await asyncio.shield(self._stopping)

    async def kill(self) -> None:
        """Kill the process tree at once, without a grace period, even if a `stop` is under way."""
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
        """Set the exit status and close the pipe, after all output has arrived. Only the first call has an effect."""
        if self.exit is not None:
            return
        assert self._transport is not None
        self.exit = ExitStatus(*read_exit_status(self._transport.get_returncode()))
        self._done.set_result(self.exit)
        pipe = self._transport.get_pipe_transport(STDOUT)
        if self._open and pipe is not None:
            pipe.close()
        # Do not close the transport earlier: the event loop would then not get the exit status.
        if self._dead.done():
            self._transport.close()

    # Callbacks of the event loop

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
            self._children.end_linger(self.key)

    def process_exited(self) -> None:
        self._dead.set_result(None)
        try:
            self._children.forget(self.key)
        except Exception:
            logger.exception("cannot end what a command left behind terminal=%s", self.key)
        if self.exit is not None:
            # The stop had given up on the process, which hung in the kernel and has exited after all.
            cast("asyncio.SubprocessTransport", self._transport).close()
        else:
            self._loop.call_later(DRAIN_TIMEOUT if self._open else 0, self._finish)


class Terminals:
    """All terminals of the server, until they are released."""

    def __init__(self, children: ProcessTrees, pool: Pool, limits: TerminalLimits, budgets: Budgets) -> None:
        self._budgets = budgets
        self._children = children
        self._pool = pool
        self._limits = limits
        self._terminals: dict[str, tuple[TerminalOwners, Terminal]] = {}
        self._ending: set[Terminal] = set()
        self._tasks = Tasks()
        self._closed = False

    async def create(self, asker: TerminalOwners, command: TerminalCommand) -> str:
        """Start a command, and return the terminal's id.

        Raises InvalidRequest if the session has too many terminals, and the errors of `Terminal.start`.
        """
        if self._closed:
            raise ShuttingDown
        self._check_room(asker)
        id = f"terminal-{secrets.token_hex(8)}"
        limit = self._limits.output if command.output_limit is None else min(command.output_limit, self._limits.output)
        output = Output(limit, Share(self._budgets, asker.process))
        terminal = Terminal(id, self._children, self._pool, output)
        # Add the terminal before it runs, so that it counts, and ends with its owners, from here on.
        self._terminals[id] = (asker, terminal)
        try:
            await terminal.start(command)
        except BaseException:
            self._terminals.pop(id, None)
            terminal.forget()
            raise
        if id not in self._terminals:
            raise UnknownTerminal(id)
        return id

    def get(self, asker: TerminalOwners, id: str) -> Terminal:
        """Return a terminal. Raises UnknownTerminal, also for one of another session or process."""
        found = self._terminals.get(id)
        if found is None or found[0] != asker:
            raise UnknownTerminal(id)
        return found[1]

    async def kill(self, asker: TerminalOwners, id: str) -> None:
        """End the command. Its output and exit status stay until the terminal is released."""
        await self.get(asker, id).stop(self._limits.grace)

    async def release(self, asker: TerminalOwners, id: str) -> None:
        """End the command if it runs, and forget the terminal."""
        terminal = self.get(asker, id)
        del self._terminals[id]
        await asyncio.shield(self._end(terminal, self._limits.grace))

    def end_session(self, session: str) -> None:
        self._end_all(lambda asker: asker.session == session, self._limits.grace)

    def end_process(self, process: str) -> None:
        self._end_all(lambda asker: asker.process == process, self._limits.grace)

    async def close(self, longest: float) -> None:
        """End all terminals, each after at most `longest` seconds of grace, and start no more."""
        self._closed = True
        self._end_all(lambda _: True, min(longest, self._limits.grace))
        try:
            async with asyncio.timeout(longest + KILL_TIMEOUT):
                await self._tasks.settle()
        except TimeoutError:
            await asyncio.gather(*(terminal.kill() for terminal in self._ending))

    def _check_room(self, asker: TerminalOwners) -> None:
        used = sum(other.session == asker.session for other, _ in self._terminals.values())
        if used >= self._limits.count:
            raise InvalidRequest(
                f"this session has {used} terminals already; release one first", limit=self._limits.count
            )

    def _end_all(self, ended: Callable[[TerminalOwners], bool], grace: float) -> None:
        for id, (asker, terminal) in list(self._terminals.items()):
            if ended(asker):
                del self._terminals[id]
                self._end(terminal, grace)

    def _end(self, terminal: Terminal, grace: float) -> asyncio.Task[None]:
        terminal.forget()

        async def end() -> None:
            try:
                await terminal.stop(grace)
            finally:
                self._ending.discard(terminal)

        self._ending.add(terminal)
        return self._tasks.run(end(), f"end {terminal.key}")


def _prepare(command: TerminalCommand) -> tuple[int, list[str]]:
    """Return the descriptor of the command's directory, and the program with its arguments."""
    directory = command.within(command.directories).open_directory(command.directory)
    return directory, _arguments(command, directory)


def _arguments(command: TerminalCommand, directory: int) -> list[str]:
    """Return the program with its arguments.

    If the command has no arguments and its program does not exist, it is a line for the shell: agents send such lines.
    """
    program = command.program
    path = command.environment.get("PATH", os.defpath)
    named = f"{_descriptor(directory)}/{program}" if "/" in program and not program.startswith("/") else program
    if command.arguments or shutil.which(named, path=path) is not None:
        return [program, *command.arguments]
    return [shutil.which("bash", path=path) or "/bin/sh", "-c", program]


def _descriptor(directory: int) -> str:
    """Return a path to an open directory that stays right if the directory is moved or replaced.

    It works in the child, too, until the child executes its program.
    """
    return f"/proc/self/fd/{directory}"
