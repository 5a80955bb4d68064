"""Amp's command line: where it is, what it needs, and running it with its whole process tree; the threads it keeps.

Newer threads may be kept by Amp's server alone: you can continue those, but not read them here. Knows nothing of ACP's
sessions.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import cast

from sandbox_agent.agents.amp.stream import chunk, objects, tool_call, tool_result
from sandbox_agent.agents.process import AgentProcess, Exit, ProcessListener
from sandbox_agent.agents.stdio import INTERNAL_ERROR, Object, RpcError
from sandbox_agent.processes.children import Children

LARGEST = 256 << 20
"""Bytes of a thread's file that is read."""
_ID = re.compile(r"T-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FAILED = frozenset({"error", "cancelled", "rejected-by-user", "cancellation-requested"})


def is_thread_id(text: str) -> bool:
    """Whether it may be the id of a thread, an argument of Amp's, and the name of a file."""
    return _ID.fullmatch(text) is not None


def data_directory(environ: Mapping[str, str]) -> Path:
    """Where Amp keeps what it knows."""
    home = environ.get("HOME") or Path.home()
    return Path(environ.get("XDG_DATA_HOME") or f"{home}/.local/share") / "amp"


def read_thread(environ: Mapping[str, str], id: str) -> Object | None:
    """A thread as it is kept here; None when it is not."""
    path = data_directory(environ) / "threads" / f"{id}.json"
    try:
        if path.stat().st_size > LARGEST:
            return None
        parsed: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cast("Object", parsed) if isinstance(parsed, dict) else None


def history(thread: Object) -> Iterator[Object]:
    """What was said in a thread, as updates."""
    for message in objects(thread.get("messages")):
        for block in objects(message.get("content")):
            yield from _update(str(message.get("role")), block)


def _update(role: str, block: Object) -> Iterator[Object]:
    match block:
        case {"type": "text", "text": str(text)} if text:
            yield chunk("user_message_chunk" if role == "user" else "agent_message_chunk", text)
        case {"type": "image", "source": {"mediaType": str(kind), "data": str(data)}}:
            image = {"type": "image", "mimeType": kind, "data": data}
            yield {"sessionUpdate": "user_message_chunk", "content": image}
        case {"type": "thinking", "thinking": str(thought)} if thought:
            yield chunk("agent_thought_chunk", thought)
        case {"type": "tool_use", "id": str(id), "name": str(tool)}:
            arguments = block.get("input")
            call = tool_call(id, tool, cast("Object", arguments) if isinstance(arguments, dict) else {})
            # The old text of a diff would be what the file holds today.
            old = [each for each in cast("list[Object]", call["content"]) if tool == "edit_file"]
            yield {**call, "content": old}
        case {"type": "tool_result", "toolUseID": str(id), "run": {"status": str(status)}}:
            run = cast("Object", block["run"])
            yield tool_result(id, run.get("result") or run.get("error"), failed=status in _FAILED)
        case _:
            pass


AUTH_REQUIRED = -32000
"""ACP's code for an agent that needs a login first."""
PROGRAM, VERSION = "AMP_CLI", "AMP_CLI_VERSION"
"""Variables that say where Amp's program is, and in which version."""
PATIENCE = 60.0
"""Seconds for a command of Amp's that is no turn. Without a key, Amp would wait for a login forever."""
GRACE = 1.0
"""Seconds to end in after SIGTERM: Amp needs a part of that to keep the thread."""
LONGEST_LINE = 128 << 20
SAID = 2000
"""Characters of what Amp wrote that get into an error."""


class AmpCli:
    """Amp's program on this machine."""

    def __init__(self, environ: Mapping[str, str], children: Children) -> None:
        self.environ = environ
        self._program = environ.get(PROGRAM) or "amp"
        self._children = children
        self._keys = count(1)

    @property
    def version(self) -> str:
        return self.environ.get(VERSION) or "unknown"

    def check_credentials(self) -> None:
        """Raises RpcError when Amp has no key: it would wait for a login in a browser."""
        if not self.environ.get("AMP_API_KEY") and not (data_directory(self.environ) / "secrets.json").exists():
            raise RpcError(AUTH_REQUIRED, "Amp has no key: set AMP_API_KEY, or log in with amp login")

    async def new_thread(self, directory: str) -> str:
        """Have Amp make a thread, and give its id; raises RpcError."""
        said = _Said()
        process = await self.start(["threads", "new"], directory, said)
        process.end_input()
        try:
            async with asyncio.timeout(PATIENCE):
                ended = await process.exited()
        except TimeoutError:
            await process.stop(GRACE)
            raise failure(f"Amp has made no thread in {PATIENCE:g} s", said.text) from None
        except BaseException:
            await asyncio.shield(process.stop(GRACE))
            raise
        words = said.text.split()
        if ended.code != 0 or not words or not is_thread_id(words[-1]):
            raise failure("Amp has made no thread", f"{said.text}\n{ended.stderr.text(SAID)}")
        return words[-1]

    async def start(self, arguments: Sequence[str], directory: str, listener: ProcessListener) -> AgentProcess:
        """Start it below a keeper of its own: its end is the end of all that it has started. Raises RpcError."""
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
                max_line=LONGEST_LINE,
            )
        except OSError as problem:
            raise failure(f"Amp cannot be started: {self._program}: {problem.strerror}", "") from problem


def failure(text: str, said: str) -> RpcError:
    """An error with the end of what Amp wrote."""
    said = said.strip()[-SAID:]
    return RpcError(INTERNAL_ERROR, f"{text}: {said}" if said else text)


class _Said:
    """Keeps the beginning of what a command writes."""

    def __init__(self) -> None:
        self.text = ""

    def lines(self, process: AgentProcess, blob: bytes, /) -> None:
        self.text = (self.text + blob.decode(errors="replace"))[:SAID]

    def oversized(self, process: AgentProcess, head: bytes, /) -> None: ...
    def exited(self, process: AgentProcess, ended: Exit, /) -> None: ...
