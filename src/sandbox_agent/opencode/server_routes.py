"""The routes about the server and its machine: health, configuration, providers, projects, events, files.

Also what OpenCode has and agents do not, and what a repository is on.

`/event` and `/global/event` bring events as they happen, and first what a program may have missed: OpenCode's programs
come back a second after their stream broke, or half a minute. They do not say what they saw last, and do not ask for
messages again. What they have already changes nothing when it comes twice.
"""

import base64
import logging
import mimetypes
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sandbox_agent import __version__
from sandbox_agent.envelope import Object, text_at
from sandbox_agent.host.paths.roots import Roots, file_problems
from sandbox_agent.host.transfer.entries import read_page
from sandbox_agent.http.asgi import Scope, Send, is_gone, transport
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.session import Session
from sandbox_agent.opencode.bus import EventBus, EventReader
from sandbox_agent.opencode.ids import milliseconds
from sandbox_agent.opencode.naming import describe, id_of, is_busy, project_id
from sandbox_agent.opencode.offerings import Offerings
from sandbox_agent.opencode.reading import Reading, Table, answer, query, read_number
from sandbox_agent.opencode.refusals import Refused
from sandbox_agent.opencode.requests import Requests
from sandbox_agent.opencode.transcript import Transcript
from sandbox_agent.opencode.transcripts import Transcripts
from sandbox_agent.pools import Pool
from sandbox_agent.protocol.errors import LogUnavailable, SandboxAgentError

if TYPE_CHECKING:
    from sandbox_agent.host.search import Searches


PROJECTS = 200
"""Sessions whose directories are listed as projects."""
_EMPTY: dict[str, object] = {
    "/lsp": [],
    "/mcp": {},
    "/formatter": [],
    "/skill": [],
    "/provider/auth": {},
    "/experimental/resource": {},
    "/experimental/workspace": [],
    "/experimental/workspace/status": [],
    "/experimental/capabilities": {"backgroundSubagents": False},
    "/experimental/console": {"consoleManagedProviders": [], "switchableOrgCount": 0},
    "/experimental/tool/ids": [],
    "/experimental/tool": [],
    "/global/config": {},
}
"""What OpenCode has and agents over ACP do not: there is none of it."""
_DONE = (
    "/instance/dispose",
    "/global/dispose",
    "/tui/append-prompt",
    "/tui/open-help",
    "/tui/open-sessions",
    "/tui/open-themes",
    "/tui/open-models",
    "/tui/submit-prompt",
    "/tui/clear-prompt",
    "/tui/execute-command",
    "/tui/show-toast",
    "/tui/publish",
)
"""What is accepted and changes nothing."""


@dataclass(frozen=True, slots=True)
class ServerRoutes:
    """The handlers."""

    reading: Reading
    hub: Hub
    offerings: Offerings
    transcripts: Transcripts

    def table(self) -> Table:
        return [
            ("GET", "/global/health", self.health),
            ("GET", "/config", self.config),
            ("PATCH", "/config", self.echo),
            ("PATCH", "/global/config", self.echo),
            ("GET", "/config/providers", self.config_providers),
            ("GET", "/provider", self.providers),
            ("GET", "/agent", self.agents),
            ("GET", "/command", self.commands),
            ("GET", "/path", self.path),
            ("GET", "/project", self.projects),
            ("GET", "/project/current", self.project),
            ("GET", "/project/{id}/directories", self.directories),
            ("POST", "/log", self.done),
            *(("GET", path, partial(_give, value)) for path, value in _EMPTY.items()),
            *(("POST", path, self.done) for path in _DONE),
        ]

    async def health(self, request: Request) -> Response:
        return answer({"healthy": True, "version": __version__})

    async def config(self, request: Request) -> Response:
        await self.offerings.learn(self.offerings.connected())
        config: Object = {"model": self.offerings.default_model_name(), "share": "disabled", "autoupdate": False}
        none: Object = {"agent": {}, "mode": {}, "command": {}, "plugin": []}
        return answer(config | none)

    async def echo(self, request: Request) -> Response:
        """The configuration is ours; a change of it is taken for read."""
        return answer(await self.reading.body(request, msgspec.Raw))

    async def config_providers(self, request: Request) -> Response:
        return answer(await self.offerings.config_providers())

    async def providers(self, request: Request) -> Response:
        return answer(await self.offerings.providers())

    async def agents(self, request: Request) -> Response:
        return answer(await self.offerings.modes_as_agents())

    async def commands(self, request: Request) -> Response:
        """Those of the newest session of a directory, else of the default agent: agents name them in sessions."""
        here = self.hub.shelf.page(None, self.reading.named_directory(request), 1)
        session = here[0] if here else self.hub.shelf.find_newest(self.offerings.default_agent())
        if session is None:
            return answer([])
        transcript = await self.transcripts.get(session)
        return answer([_command(each) for each in transcript.commands if text_at(each, "name")])

    async def path(self, request: Request) -> Response:
        directory, home = self.reading.directory(request), str(Path.home())
        state, config = posixpath.join(home, ".local/state"), posixpath.join(home, ".config")
        worktree = {"worktree": directory, "directory": directory}
        return answer({"home": home, "state": state, "config": config, **worktree})

    async def projects(self, request: Request) -> Response:
        found = {self.reading.directory(request): self._project(self.reading.directory(request), 0, 0)}
        for session in self.hub.shelf.page(None, None, PROJECTS):
            facts = session.facts
            times = milliseconds(facts.created_at), milliseconds(facts.updated_at)
            found.setdefault(facts.cwd, self._project(facts.cwd, *times))
        return answer(list(found.values()))

    async def project(self, request: Request) -> Response:
        return answer(self._project(self.reading.directory(request), 0, 0))

    @staticmethod
    def _project(directory: str, created: int, updated: int) -> Object:
        time = {"created": created, "updated": updated}
        return {"id": project_id(directory), "worktree": directory, "time": time, "sandboxes": []}

    async def directories(self, request: Request) -> Response:
        return answer([])

    async def done(self, request: Request) -> Response:
        return answer(True)


async def _give(value: object, request: Request) -> Response:
    return answer(value)


def _command(command: Object) -> Object:
    name, hint = text_at(command, "name") or "", text_at(command, "input", "hint")
    hints = [] if hint is None else ["$ARGUMENTS"]
    description = text_at(command, "description") or ""
    return {"name": name, "description": description, "template": "", "hints": hints, "source": "command"}


logger = logging.getLogger(__name__)

RECENT = 120.0
"""Seconds. A program waits at most thirty before it tries again."""
LOOKED_AT = 100
SESSIONS = 8
"""Sessions whose newest messages a reader gets."""
MESSAGES = 4
"""The newest messages of each: its last two turns."""
MOST = 256 << 10
"""Bytes for the messages of a session; what does not fit, a program reads when it opens the session again."""


class CatchUp:
    """Tells a reader of what has happened lately."""

    def __init__(self, hub: Hub, transcripts: Transcripts, bus: EventBus) -> None:
        self._hub = hub
        self._transcripts = transcripts
        self._bus = bus

    def tell(self, reader: EventReader) -> None:
        """Begin to; what is not in memory is read from the log first."""
        since = self._hub.clock() - RECENT
        try:
            newest = self._hub.shelf.page(None, reader.directory, LOOKED_AT)
        except LogUnavailable as error:
            logger.warning("past not sent reason=%s", error.slug)
            return
        recent = [each for each in newest if each.facts.updated_at >= since]
        recent.sort(key=lambda each: each.facts.updated_at, reverse=True)
        for session in recent[:SESSIONS]:
            self._transcripts.after_all(session, partial(self._tell, reader, session))

    def _tell(self, reader: EventReader, session: Session, transcript: Transcript) -> None:
        directory, info = session.facts.cwd, describe(session, transcript)
        status: dict[str, object] = {"type": "busy" if is_busy(session) else "idle"}
        self._bus.send(reader, directory, "session.updated", {"sessionID": info.id, "info": info})
        self._bus.send(reader, directory, "session.status", {"sessionID": id_of(session), "status": status})
        room = MOST
        for message in transcript.messages()[-MESSAGES:]:
            about = {"sessionID": info.id}
            room -= self._bus.send(reader, directory, "message.updated", {**about, "info": message.info}, room)
            for part in message.parts:
                told = {**about, "messageID": part.message_id, "part": part, "time": message.info.time.created}
                room -= self._bus.send(reader, directory, "message.part.updated", told, room)


_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Writes them."""

    bus: EventBus
    requests: Requests
    missed: CatchUp

    async def write(self, scope: Scope, send: Send, *, wrapped: bool, directory: str | None) -> None:
        """Events around which their directory stands (`wrapped`), or those of one directory."""
        reader = self.bus.open(transport(scope), wrapped=wrapped, directory=directory)
        try:
            if wrapped:
                # The programs that people look at read this stream; those that read the other one have just begun.
                self.missed.tell(reader)
            await self.requests.greet(reader)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while (data := await reader.next()) is not None:
                if not data:
                    self.bus.send(reader, None, "server.heartbeat", {})
                    continue
                await send({"type": "http.response.body", "body": data, "more_body": True})
                if is_gone(scope):
                    break
        finally:
            self.bus.forget(reader)
        await send({"type": "http.response.body", "body": b""})


LARGEST = 8 << 20
"""Bytes of a file that is given out whole."""
MOST_ENTRIES = 5000
MOST_FOUND = 200
_HEAD = "ref: refs/heads/"


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The host's files."""

    roots: Roots
    searches: "Callable[[], Searches]"
    """Made on first use."""
    pool: Pool

    def read(self, path: str, directory: str, limit: int = LARGEST) -> bytes:
        """A file in a directory. Raises FileProblem, or Refused for a large one."""
        with file_problems(path), self.roots.within((directory,)).open(path) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise Refused(413, f"{path} is larger than {limit} bytes; use GET /v1/fs/file")
        return content


@dataclass(frozen=True, slots=True)
class OpenCodeFileRoutes:
    """The handlers."""

    reading: Reading
    files: HostFiles

    def table(self) -> Table:
        return [
            ("GET", "/file", self.list),
            ("GET", "/file/content", self.content),
            ("GET", "/file/status", self.nothing),
            ("GET", "/find", self.find_text),
            ("GET", "/find/file", self.find_files),
            ("GET", "/find/symbol", self.nothing),
            ("GET", "/vcs", self.repository),
            ("GET", "/vcs/status", self.nothing),
            ("GET", "/vcs/diff", self.nothing),
        ]

    async def list(self, request: Request) -> Response:
        directory = self.reading.directory(request)
        given = query(request).get("path") or "."
        path = self.files.roots.absolute(given, directory)

        def work() -> list[Object]:
            page = read_page(self.files.roots.within((directory,)), path, None, MOST_ENTRIES)
            return [_node(each.name, each.path, directory, each.entry_type == "directory") for each in page.entries]

        return answer(await self.files.pool.run(work))

    async def content(self, request: Request) -> Response:
        given = query(request).get("path")
        if not given:
            raise Refused(400, "the query needs path")
        directory = self.reading.directory(request)
        path = self.files.roots.absolute(given, directory)
        data = await self.files.pool.run(self.files.read, path, directory)
        mime = mimetypes.guess_type(path)[0]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            kind = mime or "application/octet-stream"
            encoded = base64.b64encode(data).decode()
            return answer({"type": "binary", "content": encoded, "encoding": "base64", "mimeType": kind})
        return answer({"type": "text", "content": text})

    async def find_files(self, request: Request) -> Response:
        from sandbox_agent.host.search import Query

        asked = query(request)
        wanted = (asked.get("query") or "").strip()
        directory = self.reading.directory(request)
        searches, limit = self.files.searches(), min(read_number(request, "limit") or MOST_FOUND, MOST_FOUND)
        name = f"**/*{wanted}*" if "/" in wanted else wanted
        search = searches.prepare(directory, Query(None, name or "*"), limit)
        found = await searches.find(search, directory)
        return answer(list(dict.fromkeys(posixpath.relpath(each.path, directory) for each in found.matches)))

    async def find_text(self, request: Request) -> Response:
        from sandbox_agent.host.search import Query

        pattern = query(request).get("pattern")
        if not pattern:
            raise Refused(400, "the query needs pattern")
        directory = self.reading.directory(request)
        searches = self.files.searches()
        search = searches.prepare(directory, Query(pattern, None, regex=True), MOST_FOUND)
        found = await searches.find(search, directory)
        return answer([_match(each.path, directory, each.line, each.text) for each in found.matches])

    async def repository(self, request: Request) -> Response:
        """The branch that a directory is on, as git keeps it."""
        directory = self.reading.directory(request)
        path = posixpath.join(directory, ".git/HEAD")
        try:
            head = (await self.files.pool.run(self.files.read, path, directory, 4096)).decode(errors="replace").strip()
        except (SandboxAgentError, Refused):
            return answer({})
        return answer({"branch": head.removeprefix(_HEAD)} if head.startswith(_HEAD) else {})

    async def nothing(self, request: Request) -> Response:
        return answer([])


def _node(name: str, path: str, directory: str, is_directory: bool) -> Object:
    kind = "directory" if is_directory else "file"
    relative = posixpath.relpath(path, directory)
    return {"name": name, "path": relative, "absolute": path, "type": kind, "ignored": False}


def _match(path: str, directory: str, line: object, text: object) -> Object:
    said = text if isinstance(text, str) else ""
    return {
        "path": {"text": posixpath.relpath(path, directory)},
        "lines": {"text": said},
        "line_number": line if isinstance(line, int) else 1,
        "absolute_offset": 0,
        "submatches": [],
    }
