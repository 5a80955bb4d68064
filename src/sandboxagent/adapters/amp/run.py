"""Run Amp's command line for one turn, with its whole process tree.

A turn sends Amp's output as updates, asks the client for permissions, and returns the result. It does not know other
turns, nor how sessions are opened.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import cast
from uuid import uuid4

from sandboxagent.adapters.amp.permissions import PermissionSocket, Use, Verdict
from sandboxagent.adapters.amp.settings import UntrustedWorkspace, check_workspace, turn_settings
from sandboxagent.adapters.amp.stream import Stream, used_tools
from sandboxagent.adapters.amp.threads import data_directory, is_thread_id
from sandboxagent.adapters.amp.tools import is_read_only, tool_call
from sandboxagent.adapters.stdio import INTERNAL_ERROR, INVALID_REQUEST, Object, Peer, RpcError
from sandboxagent.server.agents.process import AgentProcess, Exit, ProcessListener
from sandboxagent.server.processes.children import ProcessTrees

AUTH_REQUIRED = -32000
"""ACP's code for an agent that needs a login first."""
PROGRAM, VERSION = "AMP_CLI", "AMP_CLI_VERSION"
"""Environment variables with the path of Amp's program, and with its version."""
COMMAND_TIMEOUT = 60.0
"""Seconds for a command of Amp's that is not a turn. Without a key, Amp would wait for a login forever."""
TERM_TIMEOUT = 1.0
"""Seconds that Amp has to end after SIGTERM. It needs a part of them to save the thread."""
MAX_LINE_BYTES = 128 << 20
MAX_ERROR_TEXT = 2000
"""Maximum characters of Amp's output in an error."""


class AmpCli:
    """Amp's program on this machine."""

    def __init__(self, environ: Mapping[str, str], children: ProcessTrees) -> None:
        self.environ = environ
        self._program = environ.get(PROGRAM) or "amp"
        self._children = children
        self._keys = count(1)

    @property
    def version(self) -> str:
        return self.environ.get(VERSION) or "unknown"

    def check_credentials(self) -> None:
        """Raise RpcError if Amp has no key. Amp would then wait for a login in a browser."""
        if not self.environ.get("AMP_API_KEY") and not (data_directory(self.environ) / "secrets.json").exists():
            raise RpcError(AUTH_REQUIRED, "Amp has no key: set AMP_API_KEY, or log in with amp login")

    async def new_thread(self, directory: str) -> str:
        """Have Amp create a thread, and return its id. Raises RpcError."""
        said = _Said()
        process = await self.start(["threads", "new"], directory, said)
        process.end_input()
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                ended = await process.exited()
        except TimeoutError:
            await process.stop(TERM_TIMEOUT)
            raise failure(f"Amp has made no thread in {COMMAND_TIMEOUT:g} s", said.text) from None
        except BaseException:
            await asyncio.shield(process.stop(TERM_TIMEOUT))
            raise
        words = said.text.split()
        if ended.code != 0 or not words or not is_thread_id(words[-1]):
            raise failure("Amp has made no thread", f"{said.text}\n{ended.stderr.text(MAX_ERROR_TEXT)}")
        return words[-1]

    async def start(self, arguments: Sequence[str], directory: str, listener: ProcessListener) -> AgentProcess:
        """Start Amp under a reaper process, which ends all descendants when Amp ends. Raises RpcError."""
        environment = {name: value for name, value in self.environ.items() if name not in (PROGRAM, VERSION)}
        try:
            return await AgentProcess.spawn(
                agent="amp",
                key=f"amp-{next(self._keys)}",
                command=[self._program, *arguments],
                environment=environment,
                directory=directory,
                listener=listener,
                children=self._children,
                max_line=MAX_LINE_BYTES,
            )
        except OSError as problem:
            raise failure(f"Amp cannot be started: {self._program}: {problem.strerror}", "") from problem


def failure(text: str, said: str) -> RpcError:
    """Return an error with the end of Amp's output."""
    said = said.strip()[-MAX_ERROR_TEXT:]
    return RpcError(INTERNAL_ERROR, f"{text}: {said}" if said else text)


class _Said:
    """A listener that keeps the beginning of a command's output."""

    def __init__(self) -> None:
        self.text = ""

    def lines(self, process: AgentProcess, blob: bytes, /) -> None:
        self.text = (self.text + blob.decode(errors="replace"))[:MAX_ERROR_TEXT]

    def oversized(self, process: AgentProcess, head: bytes, /) -> None: ...
    def exited(self, process: AgentProcess, ended: Exit, /) -> None: ...


MAX_WAITING_BYTES = 4 << 20
"""Maximum bytes of Amp's output that wait for the client. Above it, Amp's output is not read."""
EXIT_TIMEOUT = 10.0
"""Seconds that Amp has to exit after it has reported the result, because it sends the thread to its server."""
ALLOW, REJECT = "allow", "reject"
OPTIONS: list[Object] = [
    {"optionId": ALLOW, "name": "Allow", "kind": "allow_once"},
    {"optionId": REJECT, "name": "Reject", "kind": "reject_once"},
]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
    """An open thread of Amp's."""

    id: str
    directory: str
    mode: str
    servers: list[Object] = field(default_factory=list[Object])
    begun: bool = False
    """Whether the thread has had a prompt. From then on, Amp does not change its mode."""


class Turn:
    """One prompt under way, and the listener of Amp's process."""

    def __init__(self, peer: Peer, cli: AmpCli, permission_socket: PermissionSocket, session: Session) -> None:
        self._peer = peer
        self._cli = cli
        self._socket = permission_socket
        self._session = session
        self._stream = Stream()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._exit: Exit | None = None
        self._process: AgentProcess | None = None
        self._permitted: set[str] = set()
        """Ids of the tool calls that Amp has asked about and may make."""
        self._failure: RpcError | None = None
        """The error for which the adapter itself ended the turn."""
        self.cancelled = False

    async def play(self, message: Object) -> Object:
        """Run the prompt, and return its result. Raises RpcError."""
        self._check_workspace()
        secret, files = self._socket.open_turn(self._judge)
        try:
            settings = turn_settings(self._cli.environ, files.program, self._session.servers)
            files.write_settings(settings)
            await self._run(self._arguments(str(files.settings)), message)
        finally:
            self._socket.revoke(secret)
        await self._send(self._stream.close(self._permitted))
        return self._result()

    async def cancel(self) -> None:
        """End the turn, and all processes that Amp has started."""
        self.cancelled = True
        await self._end()

    def _arguments(self, settings: str) -> list[str]:
        mode = [] if self._session.begun else ["--mode", self._session.mode]
        quiet = ["--no-ide", "--no-jetbrains", "--no-notifications", "--no-color"]
        stream = ["--execute", "--stream-json", "--stream-json-thinking", "--stream-json-input"]
        return ["threads", "continue", self._session.id, *stream, *quiet, *mode, "--settings-file", settings]

    async def _run(self, arguments: list[str], message: Object) -> None:
        if self.cancelled:
            return
        self._process = process = await self._cli.start(arguments, self._session.directory, self)
        try:
            if not self.cancelled:
                self._session.begun = True
                process.send(json.dumps(message).encode())
                # Amp exits when its input has ended and the model's answer is complete.
                process.end_input()
            else:
                await self._end()
            await self._follow()
        finally:
            await asyncio.shield(process.stop(TERM_TIMEOUT))

    async def _end(self) -> None:
        if self._process is not None:
            await self._process.stop(TERM_TIMEOUT)

    # Amp's output

    async def _follow(self) -> None:
        while self._waiting or self._exit is None:
            try:
                async with asyncio.timeout(EXIT_TIMEOUT if self._stream.finished else None):
                    await self._news.wait()
            except TimeoutError:
                return
            self._news.clear()
            while self._waiting:
                line = self._waiting.popleft()
                self._size -= len(line)
                await self._take(line)
            if self._process is not None and self._size < MAX_WAITING_BYTES:
                self._process.resume_reading()

    async def _take(self, line: bytes) -> None:
        try:
            parsed: object = json.loads(line)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            logger.warning("line skipped reason=not_an_object bytes=%d", len(line))
            return
        message = cast("Object", parsed)
        if not self.cancelled:
            await self._send(self._stream.updates(message))
        if message.get("type") == "user" and self._failure is None:
            self._failure = self._distrust(message)
            if self._failure is not None:
                await self._end()

    def _distrust(self, message: Object) -> RpcError | None:
        """Return an error if Amp used a tool without asking, or if the workspace lets it do so; else None."""
        try:
            self._check_workspace()
        except RpcError as problem:
            return problem
        if self._permitted.issuperset(used_tools(message)):
            return None
        # Settings of the machine, or another version of Amp, may keep it from asking.
        return RpcError(INTERNAL_ERROR, "Amp used a tool without asking for permission, so the turn was ended")

    async def _send(self, updates: Iterator[Object]) -> None:
        for update in updates:
            await self._peer.notify("session/update", {"sessionId": self._session.id, "update": update})

    def lines(self, process: AgentProcess, blob: bytes, /) -> None:
        for line in blob.splitlines():
            self._waiting.append(line)
            self._size += len(line)
        if self._size >= MAX_WAITING_BYTES:
            process.pause_reading()
        self._news.set()

    def oversized(self, process: AgentProcess, head: bytes, /) -> None:
        self._failure = self._failure or RpcError(INTERNAL_ERROR, "Amp wrote a line that is too long to be read")

    def exited(self, process: AgentProcess, ended: Exit, /) -> None:
        self._exit = ended
        self._news.set()

    def _result(self) -> Object:
        stream, ended = self._stream, self._exit
        if self._failure is not None:
            raise self._failure
        if self.cancelled:
            return {"stopReason": "cancelled"}
        if stream.error is not None:
            raise failure("Amp failed", stream.error)
        if not stream.finished and ended is not None:
            how = f"by {ended.signal}" if ended.signal else f"with code {ended.code}"
            raise failure(f"Amp ended {how} before the turn did", ended.stderr.text(MAX_ERROR_TEXT))
        return {"stopReason": stream.stop_reason, "usage": stream.usage.total()}

    # Amp's requests for permission

    async def _judge(self, use: Use) -> Verdict:
        if self.cancelled or self._failure is not None:
            return Verdict(False, "The turn was cancelled.")
        self._check_workspace()
        id = use.id or f"amp-{uuid4().hex}"
        await self._send(self._stream.announce(id, use.tool, use.arguments))
        if not is_read_only(use.tool, use.arguments, [self._session.directory]) and not await self._ask(id, use):
            return Verdict(False, "The user did not allow this.")
        if self.cancelled:
            return Verdict(False, "The turn was cancelled.")
        self._permitted.add(id)
        running: Object = {"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "in_progress"}
        await self._send(iter([running]))
        return Verdict(True)

    async def _ask(self, id: str, use: Use) -> bool:
        call = tool_call(id, use.tool, use.arguments)
        del call["sessionUpdate"]
        params: Object = {"sessionId": self._session.id, "toolCall": call, "options": OPTIONS}
        answer = await self._peer.request("session/request_permission", params)
        match answer.get("outcome"):
            case {"outcome": "selected", "optionId": str(chosen)}:
                return chosen == ALLOW
            case _:
                return False

    def _check_workspace(self) -> None:
        try:
            check_workspace(self._session.directory)
        except UntrustedWorkspace as problem:
            raise RpcError(INVALID_REQUEST, str(problem), {"path": str(problem.path)}) from None
