"""Run one agent process: lines in, lines out, its stderr, and how it ended.

A process is dead when it has exited, and not when its stdout has ended: a grandchild may hold stdout open for hours.
This module knows nothing of the meaning of lines, nor of when an agent is started or restarted.
"""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

from msgspec import Struct

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import AgentExited, AgentNotReading
from sandboxagent.server.agents.lines import MAX_LINE_BYTES, LineSplitter, Stderr, StderrTail
from sandboxagent.server.processes.children import (
    KILL_TIMEOUT,
    ProcessTrees,
    end_tree,
    read_exit_status,
    start_child,
    wait_until,
)

STDIN, STDOUT, STDERR = 0, 1, 2
MAX_STDIN_BYTES = 64 * 1024 * 1024
"""Maximum bytes that wait to be written to stdin. With more, the agent process counts as not reading."""

STDIN_TIMEOUT = 0.3
"""Seconds that a process has to exit after the end of its stdin, before SIGTERM."""
DRAIN_TIMEOUT = 1.0
"""Seconds that the pipes have to end after the process. A program that cannot be found may hold them open."""
REAP_INTERVAL = 1.0
MAX_STDERR_LOG_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)


class Exit(Struct, frozen=True):
    """The end of a process: with a code, or by a signal."""

    code: int | None
    signal: str | None
    stderr: Stderr

    def facts(self) -> dict[str, object]:
        """Return the facts of the end, as reported to clients."""
        ending: dict[str, object] = {"signal": self.signal} if self.signal else {"exitCode": self.code}
        stderr = {
            "head": self.stderr.head,
            "tail": self.stderr.tail,
            "truncated": self.stderr.truncated,
            "totalLines": self.stderr.total_lines,
        }
        return {**ending, "stderr": stderr}


class ProcessListener(Protocol):
    """The receiver of a process's output. Its methods must not raise; an exception is logged."""

    def lines(self, process: "AgentProcess", blob: bytes, /) -> None:
        """Take whole lines, each with its newline. Some may still come after `pause_reading`."""
        ...

    def oversized(self, process: "AgentProcess", head: bytes, /) -> None:
        """Take the beginning of a line that was dropped because it was over the limit."""
        ...

    def exited(self, process: "AgentProcess", ended: Exit, /) -> None:
        """Note that the process is dead and all its lines have been delivered. Called once."""
        ...


class AgentProcess(asyncio.SubprocessProtocol):
    """A running process of an agent, made by `spawn`. Everything happens on the event loop's thread."""

    def __init__(
        self, agent: str, key: str, listener: ProcessListener, children: ProcessTrees, max_line: int, stdin_limit: int
    ) -> None:
        self.agent = agent
        self.key = key
        self.pid = 0
        self.started_at = time.time()
        self.listener = listener
        self.exit: Exit | None = None
        self._children = children
        self._stdin_limit = stdin_limit
        self._lines = LineSplitter(max_line)
        self._stderr = StderrTail()
        self._log: StderrLog | None = None
        self._open = {STDIN, STDOUT, STDERR}
        self._paused = False
        self._unanswered = False
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._loop = asyncio.get_running_loop()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self._done: asyncio.Future[Exit] = self._loop.create_future()
        self._stopping: asyncio.Task[Exit] | None = None

    @classmethod
    async def spawn(
        cls,
        *,
        agent: str,
        key: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str | None,
        listener: ProcessListener,
        children: ProcessTrees,
        stderr_log: "StderrLog | None" = None,
        max_line: int = MAX_LINE_BYTES,
        stdin_limit: int = MAX_STDIN_BYTES,
    ) -> "AgentProcess":
        """Start a process. It gets `environment` and the server's markers alone.

        No other process may ever have the same key.

        Raises:
            OSError: there is no such program or directory, or it may not be run.
        """
        process = cls(agent, key, listener, children, max_line, stdin_limit)
        process._log = stderr_log
        starting = asyncio.ensure_future(process._start(command, environment, directory))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The process is starting, and nothing else would ever end it.
            with suppress(OSError):
                await starting
                await process.stop(0)
            raise
        return process

    @property
    def alive(self) -> bool:
        return not self._dead.done() and self.exit is None

    @property
    def stopping(self) -> bool:
        """Whether the server has ended the process."""
        return self._stopping is not None

    def when_exited(self, callback: Callable[["AgentProcess", Exit], None]) -> None:
        """Call back when the process has exited, after its listener."""
        self._done.add_done_callback(lambda done: callback(self, done.result()))

    def send(self, line: bytes) -> None:
        """Write a line, which must have no newline in it.

        Raises:
            AgentNotReading: too much is waiting already.
            AgentExited: the process is dead, or its stdin is closed.
        """
        if STDIN not in self._open or self._stdin.is_closing() or not self.alive:
            raise self._gone()
        if self._stdin.get_write_buffer_size() + self._gathered_size + len(line) > self._stdin_limit:
            raise AgentNotReading(self.agent)
        # The first line after output of the agent is written at once. Further lines are gathered and written together.
        if not self._unanswered:
            self._unanswered = True
            self._stdin.write(line + b"\n")
            return
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered += (line, b"\n")
        self._gathered_size += len(line) + 1

    def end_input(self) -> None:
        """Write all waiting lines, and close the process's stdin."""
        if STDIN in self._open:
            self._flush()
            self._stdin.close()

    def pause_reading(self) -> None:
        """Stop reading stdout. When the pipe is full, the agent process waits."""
        if not self._paused and STDOUT in self._open and self.alive:
            self._paused = True
            self._stdout.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and STDOUT in self._open:
            self._stdout.resume_reading()
        self._paused = False

    async def exited(self) -> Exit:
        """Wait until the process has ended, for whatever reason."""
        return await asyncio.shield(self._done)

    async def stop(self, grace: float = 1.0) -> Exit:
        """End the process and its whole tree, with `grace` seconds between SIGTERM and SIGKILL.

        All callers share one stop.

        This returns even when the process cannot be killed because it hangs in the kernel. It then counts as killed.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop {self.key}")
        return await asyncio.shield(self._stopping)

    async def _start(self, command: Sequence[str], environment: Mapping[str, str], directory: str | None) -> None:
        pipe = asyncio.subprocess.PIPE
        await start_child(self._children, self.key, self, command, environment, directory, (pipe, pipe, pipe))

    async def _stop(self, grace: float) -> Exit:
        self.end_input()
        if not await wait_until(STDIN_TIMEOUT, self._dead):
            await end_tree(self._children, self.key, self._dead, grace)
        if not await wait_until(KILL_TIMEOUT if self._dead.done() else 0, self._done):
            self._finish()
        return self._done.result()

    def _flush(self) -> None:
        gathered, self._gathered, self._gathered_size = self._gathered, [], 0
        if gathered and STDIN in self._open and not self._stdin.is_closing():
            self._stdin.write(b"".join(gathered))

    def _gone(self) -> AgentExited:
        if self.exit is None:
            return AgentExited(f"agent {self.agent} is ending and takes no more input", agent=self.agent)
        return AgentExited(f"agent {self.agent} has exited", agent=self.agent, **self.exit.facts())

    def _finish(self) -> None:
        """Deliver the last output, close the pipes, and report the end. A second call does nothing."""
        if self.exit is not None:
            return
        if rest := self._lines.rest():
            self._deliver(rest + b"\n")
        self.exit = Exit(*read_exit_status(self._transport.get_returncode()), self._stderr.snapshot())
        self._done.set_result(self.exit)
        try:
            self.listener.exited(self, self.exit)
        except Exception:
            logger.exception("listener failed on exit agent=%s pid=%d", self.agent, self.pid)
        self._close()

    def _deliver(self, blob: bytes) -> None:
        # An exception in a callback of the pipe would close it, and no output of the agent would come through.
        try:
            if blob:
                self.listener.lines(self, blob)
            for head in self._lines.take_oversized():
                self.listener.oversized(self, head)
        except Exception:
            logger.exception("listener failed on lines agent=%s pid=%d", self.agent, self.pid)

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        # `close` may wait for bytes that are never read.
        if not self._stdin.is_closing() or self._stdin.get_write_buffer_size():
            self._stdin.abort()
        for pipe in (STDOUT, STDERR):
            if pipe in self._open and (reader := self._transport.get_pipe_transport(pipe)) is not None:
                reader.close()
        # Earlier, `close` would take the exit status from the event loop.
        if self._dead.done():
            self._transport.close()

    def _reap(self) -> None:
        self._children.reap()
        if self.exit is None:
            self._loop.call_later(REAP_INTERVAL, self._reap)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(STDIN))
        self._stdout = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(STDOUT))
        self.pid = self._children.register(self.key, self._transport.get_pid())
        self._loop.call_later(REAP_INTERVAL, self._reap)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.exit is not None:
            return
        if fd == STDOUT:
            self._unanswered = bool(self._gathered)
            self._deliver(self._lines.feed(data))
        else:
            self._stderr.feed(data)
            if self._log is not None:
                self._log.write(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if self._dead.done() and not self._open & {STDOUT, STDERR}:
            self._loop.call_soon(self._finish)

    def process_exited(self) -> None:
        self._dead.set_result(None)
        try:
            # At once, because processes that it left behind may hold the pipes open.
            self._children.forget(self.key)
        except Exception:
            logger.exception("cannot end what an agent left behind agent=%s pid=%d", self.agent, self.pid)
        if self.exit is not None:
            self._transport.close()
        elif self._open & {STDOUT, STDERR}:
            self.resume_reading()
            self._loop.call_later(DRAIN_TIMEOUT, self._finish)
        else:
            self._loop.call_soon(self._finish)


class StderrLog:
    """A log file that is rotated when it is full, and keeps one predecessor. Processes of one agent may share it.

    A thread writes to it, in order. While the disk is slow, at most MAX_STDERR_LOG_BYTES wait. Older bytes are left
    out, and the file says so.
    """

    def __init__(self, path: Path, pool: Pool) -> None:
        self._path = path
        self._pool = pool
        self._lock = threading.Lock()
        """Guards the fields below, which both threads change. No file is touched under it."""
        self._waiting: deque[bytes] = deque()
        self._waiting_size = 0
        self._left_out = 0
        self._is_due = False
        """Whether a thread is about to take the waiting bytes."""
        self._has_ended = False
        self._writing = threading.Lock()
        """Held by the thread that writes. Guards the fields below."""
        self._descriptor: int | None = None
        self._failed = False

    def write(self, data: bytes) -> None:
        """Append data, in a thread. On a full disk the log is incomplete, and nothing else is affected."""
        with self._lock:
            self._waiting.append(data)
            self._waiting_size += len(data)
            while self._waiting_size > MAX_STDERR_LOG_BYTES:
                oldest = len(self._waiting.popleft())
                self._waiting_size -= oldest
                self._left_out += oldest
        self._start()

    def close(self) -> None:
        """Write all waiting bytes, then close the file."""
        with self._lock:
            self._has_ended = True
        self._start()

    def _start(self) -> None:
        with self._lock:
            if self._is_due:
                return
            self._is_due = True
        self._pool.start(self._write_all)

    def _write_all(self) -> None:
        """Write all waiting bytes. Runs on a thread."""
        with self._writing:
            with self._lock:
                parts, self._waiting, self._waiting_size = self._waiting, deque[bytes](), 0
                left_out, self._left_out = self._left_out, 0
                self._is_due, has_ended = False, self._has_ended
            if left_out:
                parts.appendleft(b"\n[%d bytes are left out here: the disk was slow]\n" % left_out)
            try:
                for part in parts:
                    self._append(part)
            except OSError as error:
                if not self._failed:
                    logger.warning("cannot write the log of stderr path=%s error=%s", self._path, error)
                self._failed = True
            if has_ended:
                self._close()

    def _append(self, data: bytes) -> None:
        if self._descriptor is not None and os.fstat(self._descriptor).st_size + len(data) > MAX_STDERR_LOG_BYTES:
            self._rotate(self._descriptor)
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # The stderr of agents may have secrets.
            self._descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        os.write(self._descriptor, data)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _rotate(self, descriptor: int) -> None:
        # Another process may have rotated it before.
        if self._path.exists() and os.path.samestat(os.fstat(descriptor), self._path.stat()):
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._close()
