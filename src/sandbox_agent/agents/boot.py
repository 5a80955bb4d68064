"""Starting one agent process and shaking hands with it; nothing half-booted stays behind.

A `Launch` says how an agent's program is started on this machine, and keeps its folder while it runs. Does not know
which processes there should be, nor who uses them.
"""

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Raw, Struct, field

from sandbox_agent import __version__
from sandbox_agent.agents.dialects.dialect import Companion, companion_of, dialect_of
from sandbox_agent.agents.manifest import Agent, child_environment
from sandbox_agent.agents.process import AgentProcess, Exit, StderrLog
from sandbox_agent.archives.removal import discard
from sandbox_agent.envelope import META, Envelope, Kind, Object, at, object_at, parse, request
from sandbox_agent.pools import Pool
from sandbox_agent.processes.children import Children
from sandbox_agent.protocol.errors import AgentBootFailed, AgentExited, AgentTimeout, NotAnEnvelope, ShuttingDown
from sandbox_agent.reports import Reports
from sandbox_agent.wire import methods

IN_USE, REMOVED = ".in-use", ".removed-"


class Launch(Struct, frozen=True):
    """A command and what its environment has beyond the agent's own; `folder` is what must stay while it runs."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None

    def __repr__(self) -> str:
        return f"Launch({self.command})"

    def program(self, path: str | None) -> str | None:
        """The program that would run, searched for on `path`; None when there is none."""
        return shutil.which(self.command[0], path=path)

    def lock_folder(self) -> "FolderLock":
        """Lock the folder against removal until released; raises FolderGone when it is already being removed."""
        return FolderLock(self.folder)


class FolderGone(Exception):
    """What was to be started is being removed: something else has taken its place."""


class FolderLock:
    """A shared lock on a folder. What cannot be locked may still be run: a folder that only root may write, for one."""

    def __init__(self, folder: Path | None) -> None:
        self._descriptor: int | None = None
        if folder is None:
            return
        mark = folder / IN_USE
        try:
            self._descriptor = os.open(mark, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # The folder may have been removed in between.
            gone = not os.path.samestat(os.fstat(self._descriptor), mark.stat())
        except (BlockingIOError, FileNotFoundError):
            gone = True
        except OSError:
            gone = False
        if gone:
            self.release()
            raise FolderGone(folder)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def remove_unused(folder: Path) -> None:
    """Delete a folder with everything in it, unless it is locked."""
    try:
        descriptor = os.open(folder / IN_USE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # It was never there, so it cannot be locked.
            discard(folder)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Move it away first: an agent must never start from a half-deleted folder.
        gone = folder.rename(folder.with_name(f"{REMOVED}{folder.name}"))
    except OSError:
        return
    else:
        discard(gone)
    finally:
        os.close(descriptor)


logger = logging.getLogger(__name__)

HANDSHAKE_ID = b'"sandbox-agent-initialize"'
PROTOCOL_VERSION = 1
CLIENT_CAPABILITIES: Object = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}, "url": {}},
    "plan": {},
    "_meta": {META: {"questions": True}},
}
_NOT_OFFERED: Object = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}

STDERR_IN_ERRORS = 4096
EARLY_BYTES = 8 << 20
"""What an agent may say before it has answered our initialize."""


class Listener(Protocol):
    """Receives what agent processes write. Nothing here may raise."""

    def receive(self, running: "RunningAgent", blob: bytes) -> None: ...
    def oversized(self, running: "RunningAgent", head: bytes) -> None: ...
    def exited(self, running: "RunningAgent", exit: Exit) -> None: ...


class Handshake(Struct, frozen=True):
    """What an agent answered to `initialize`."""

    result: Raw
    facts: Object

    @property
    def capabilities(self) -> Object:
        return object_at(self.facts, "agentCapabilities")

    def offers(self, *path: str) -> bool:
        """Whether the agent advertises a capability: `true`, or an object."""
        found = at(self.capabilities, *path)
        return found is not None and found is not False

    @property
    def resumes(self) -> bool:
        return self.offers("loadSession") or self.offers("sessionCapabilities", "resume")


Gone = Callable[["RunningAgent", Exit], None]


class RunningAgent:
    """One agent process after its handshake."""

    def __init__(
        self,
        agent: Agent,
        process: AgentProcess,
        handshake: Handshake,
        listener: Listener,
        gone: Gone,
        companion: Companion | None = None,
    ) -> None:
        self.agent = agent
        self.process = process
        self.handshake = handshake
        self.dialect = dialect_of(agent.dialect)
        """How it asks people."""
        self.echoes_prompts: bool | None = agent.echoes_prompts
        """Whether it repeats prompts as user_message_chunk; None until it has shown it."""
        self.environment: Mapping[str, str] = {}
        """What was added to its environment for the one session that it is for; may be secret."""
        self.alone = False
        """It is for one session, and ends with it."""
        self._listener = listener
        self._gone = gone
        self._companion = companion
        if companion is not None:
            companion.start(self._say)

    @property
    def key(self) -> str:
        return self.process.key

    @property
    def alive(self) -> bool:
        return self.process.alive

    def send(self, line: bytes) -> None:
        self.process.send(line)

    def pause_reading(self) -> None:
        self.process.pause_reading()

    def resume_reading(self) -> None:
        self.process.resume_reading()

    def answer(self, line: bytes) -> None:
        """Send it an answer to what it asked, by whatever way that came."""
        if self._companion is None or not self._companion.answer(line):
            self.send(line)

    def _say(self, line: bytes) -> None:
        self._listener.receive(self, line + b"\n")

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        self._listener.receive(self, blob)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self._listener.oversized(self, head)

    def exited(self, process: AgentProcess, exit: Exit) -> None:
        if self._companion is not None:
            self._companion.stop()
        self._gone(self, exit)
        self._listener.exited(self, exit)


class _Boot:
    """Listens to a process until it has answered our initialize."""

    def __init__(self, agent: str, answered: asyncio.Future[Envelope], companion: Companion | None) -> None:
        self._agent = agent
        self._answered = answered
        self.companion = companion
        self._early_size = 0
        self.early: list[bytes] = []
        """Envelopes that came before the process was handed over."""
        self.oversized_heads: list[bytes] = []
        """Of lines that were too long."""
        self._bad_lines = Reports(time.monotonic, _report_bad_lines)

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        for line in blob.splitlines():
            try:
                envelope = parse(line)
            except NotAnEnvelope:
                self._bad_lines.note(self._agent, what=f"bytes={len(line)}")
                continue
            if envelope.kind is Kind.RESPONSE and envelope.id == HANDSHAKE_ID and not self._answered.done():
                self._answered.set_result(envelope)
            else:
                self._keep(process, self.early, line)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self._keep(process, self.oversized_heads, head)

    def _keep(self, process: AgentProcess, kept: list[bytes], line: bytes) -> None:
        """Keep a line for those who listen later. After its answer, one that says too much has to wait."""
        if self._early_size + len(line) <= EARLY_BYTES:
            kept.append(line)
            self._early_size += len(line)
        elif not self._answered.done():
            reason = f"it wrote more than {EARLY_BYTES} bytes before it answered initialize"
            self._answered.set_exception(_boot_failed(self._agent, reason, None))
        else:
            # Its companion is being reached. What was read already is not lost; the rest stays in the pipe.
            kept.append(line)
            process.pause_reading()

    def hand_over(self, running: "RunningAgent", process: AgentProcess) -> None:
        """Deliver what was kept, and read on."""
        self._bad_lines.forget(self._agent)
        process.resume_reading()
        for head in self.oversized_heads:
            running.oversized(process, head)
        if self.early:
            running.lines(process, b"".join(line + b"\n" for line in self.early))

    def exited(self, process: AgentProcess, exit: Exit) -> None:
        self._bad_lines.forget(self._agent)
        if not self._answered.done():
            self._answered.set_exception(_boot_failed(self._agent, "it exited before it answered initialize", exit))


class ProcessLimits(Struct, frozen=True):
    """What one agent process may take, in seconds and bytes."""

    boot_timeout: float = 120.0
    max_line: int = 64 << 20
    stdin_limit: int = 64 << 20
    stop_grace: float = 1.0


class Boots:
    """Starts agent processes."""

    def __init__(
        self,
        children: Children,
        environ: Mapping[str, str],
        secrets: Collection[str],
        limits: ProcessLimits,
        log_directory: Path | None,
    ) -> None:
        self._children = children
        self._environ = environ
        self._secrets = secrets
        self._limits = limits
        self._log_directory = log_directory
        self._pool = Pool("stderr", 2)
        self._keys = count(1)
        self._booting: dict[AgentProcess, asyncio.Future[Envelope]] = {}
        self._closed = False

    async def boot(
        self, agent: Agent, launch: Launch, environment: Mapping[str, str], listener: Listener, gone: Gone
    ) -> RunningAgent:
        """A process that has answered our initialize.

        Raises:
            AgentBootFailed: it did not, with its stderr; AgentTimeout when it was too slow.
            FolderGone: what was to be started has been replaced.
        """
        companion = companion_of(agent.dialect)
        try:
            return await self._boot(agent, launch, environment, listener, gone, companion)
        except _CompanionFailed:
            # Its questions would not arrive and it would wait forever, so it is started with questions off.
            logger.warning("agent starts without questions, its port was not reached agent=%s", agent.id)
            return await self._boot(agent, launch, environment, listener, gone, None)

    async def _boot(
        self,
        agent: Agent,
        launch: Launch,
        environment: Mapping[str, str],
        listener: Listener,
        gone: Gone,
        companion: Companion | None,
    ) -> RunningAgent:
        self._check_open()
        key = f"{agent.id}-{next(self._keys)}"
        answered: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        boot = _Boot(agent.id, answered, companion)
        child = child_environment(agent, self._environ, {**launch.env, **environment}, self._secrets)
        if companion is not None:
            child = companion.prepare(child)
        lock = launch.lock_folder()

        def ended(running: RunningAgent, exit: Exit) -> None:
            lock.release()
            gone(running, exit)

        try:
            process = await self._spawn(agent, launch, child, key, boot)
            self._booting[process] = answered
            running = await self._finish_handshake(agent, process, boot, answered, listener, ended)
        except BaseException:
            lock.release()
            raise
        running.environment = environment
        return running

    async def verify(self, agent: Agent, launch: Launch) -> Handshake:
        """Boot it, read its handshake, and end it again."""
        running = await self.boot(agent, launch, {}, _SilentListener(), lambda _running, _exit: None)
        await self.stop(running)
        return running.handshake

    async def stop(self, running: RunningAgent, longest: float | None = None) -> None:
        """End one process, tree and all; it gets no longer than `longest`."""
        grace = self._limits.stop_grace
        await running.process.stop(grace if longest is None else min(longest, grace))

    async def close(self, longest: float) -> None:
        """End what is booting, and boot no more."""
        self._closed = True
        for answered in self._booting.values():
            if not answered.done():
                answered.set_exception(ShuttingDown())
        grace = min(longest, self._limits.stop_grace)
        await asyncio.gather(*(process.stop(grace) for process in self._booting), return_exceptions=True)

    def _open_log(self, agent: Agent) -> StderrLog | None:
        if self._log_directory is None:
            return None
        return StderrLog(self._log_directory / f"{agent.id}.stderr.log", self._pool)

    async def _spawn(
        self, agent: Agent, launch: Launch, environment: Mapping[str, str], key: str, boot: _Boot
    ) -> AgentProcess:
        try:
            process = await AgentProcess.spawn(
                agent=agent.id,
                key=key,
                command=launch.command,
                environment=environment,
                directory=None,
                listener=boot,
                children=self._children,
                stderr_log=self._open_log(agent),
                max_line=self._limits.max_line,
                stdin_limit=self._limits.stdin_limit,
            )
        except OSError as error:
            reason = f"agent {agent.id} could not be started: {launch.command[0]}: {error.strerror}"
            raise AgentBootFailed(reason, agent=agent.id, command=list(launch.command)) from error
        logger.info("agent process started agent=%s pid=%d", agent.id, process.pid)
        return process

    async def _finish_handshake(
        self,
        agent: Agent,
        process: AgentProcess,
        boot: _Boot,
        answered: asyncio.Future[Envelope],
        listener: Listener,
        gone: Gone,
    ) -> RunningAgent:
        companion = boot.companion
        try:
            self._check_open()
            handshake = await self._shake_hands(agent, process, answered)
            await _join(companion, process)
            return _take_over(RunningAgent(agent, process, handshake, listener, gone, companion), boot)
        except BaseException as error:
            # Whatever went wrong, nothing half-booted stays behind; shielded, for we may be cancelled ourselves.
            if companion is not None:
                companion.stop()
            exit = await asyncio.shield(process.stop(self._limits.stop_grace))
            if isinstance(error, AgentBootFailed | AgentTimeout):
                error.fields.setdefault("stderr", exit.stderr.text(STDERR_IN_ERRORS))
            raise
        finally:
            del self._booting[process]

    async def _shake_hands(self, agent: Agent, process: AgentProcess, answered: asyncio.Future[Envelope]) -> Handshake:
        info = {"name": "sandbox-agent", "title": "sandbox-agent", "version": __version__}
        capabilities = CLIENT_CAPABILITIES | {name: _NOT_OFFERED[name] for name in agent.not_offered}
        params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": capabilities, "clientInfo": info}
        # If it is gone already, its exit reports that, with its stderr.
        with suppress(AgentExited):
            process.send(request(HANDSHAKE_ID, methods.INITIALIZE, params))
        try:
            async with asyncio.timeout(self._limits.boot_timeout):
                answer = await answered
        except TimeoutError:
            seconds = self._limits.boot_timeout
            raise AgentTimeout(f"agent {agent.id} did not answer initialize in {seconds:g} s", agent=agent.id) from None
        if not answer.succeeded:
            raise _boot_failed(agent.id, f"it refused initialize: {answer.error().get('message')}", None)
        if not bytes(msgspec.json.encode(answer.peek.result)).startswith(b"{"):
            raise _boot_failed(agent.id, "its answer to initialize is not an object", None)
        return Handshake(Raw(bytes(msgspec.json.encode(answer.peek.result))), answer.result())

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown


class _CompanionFailed(Exception):
    """The companion did not reach its agent."""


async def _join(companion: Companion | None, process: AgentProcess) -> None:
    if companion is not None and not await companion.connect(process.pid):
        raise _CompanionFailed


class _SilentListener:
    """Listens to a process that is only looked at."""

    def receive(self, running: RunningAgent, blob: bytes) -> None: ...
    def oversized(self, running: RunningAgent, head: bytes) -> None: ...
    def exited(self, running: RunningAgent, exit: Exit) -> None: ...


def _take_over(running: RunningAgent, boot: _Boot) -> RunningAgent:
    """It speaks to its listener from now on, and what it has said already is not lost."""
    process = running.process
    process.listener = running
    boot.hand_over(running, process)
    if process.exit is not None:
        raise _boot_failed(running.agent.id, "it exited right after initialize", process.exit)
    return running


def _report_bad_lines(agent: str, count: int, newest: str) -> None:
    logger.warning("agent wrote lines that are no envelopes agent=%s lines=%d %s", agent, count, newest)


def describe_exit(exit: Exit) -> str:
    """How it ended, for people."""
    return f"ended by {exit.signal}" if exit.signal else f"exited with code {exit.code}"


def _boot_failed(agent: str, reason: str, exit: Exit | None) -> AgentBootFailed:
    fields: Object = {"agent": agent}
    if exit is not None:
        fields["stderr"] = exit.stderr.text(STDERR_IN_ERRORS)
        fields.update({"signal": exit.signal} if exit.signal else {"exitCode": exit.code})
    return AgentBootFailed(f"agent {agent} did not start: {reason}", **fields)
