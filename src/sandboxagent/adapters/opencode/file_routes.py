"""List, read and search the files of the host for OpenCode, and name the branch of a repository."""

import base64
import mimetypes
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.params import Reading, Table, answer, query, read_number
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import SandboxAgentError
from sandboxagent.server.files.entries import read_page
from sandboxagent.server.files.roots import Roots, file_problems

if TYPE_CHECKING:
    from sandboxagent.server.files.search import Searches


MAX_FILE_BYTES = 8 << 20
"""Maximum bytes of a file that is sent whole."""
MAX_ENTRIES = 5000
MAX_FOUND = 200
_HEAD = "ref: refs/heads/"


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Access to the host's files."""

    roots: Roots
    searches: "Callable[[], Searches]"
    """Returns the searches, which are made on first use."""
    pool: Pool

    def read(self, path: str, directory: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file in a directory. Raises FileProblem, or BridgeError for a large file."""
        with file_problems(path), self.roots.within((directory,)).open(path) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise BridgeError(413, f"{path} is larger than {limit} bytes; use GET /v1/fs/file")
        return content


@dataclass(frozen=True, slots=True)
class OpenCodeFileRoutes:
    """Handlers of the routes for files."""

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
            page = read_page(self.files.roots.within((directory,)), path, None, MAX_ENTRIES)
            return [_node(each.name, each.path, directory, each.entry_type == "directory") for each in page.entries]

        return answer(await self.files.pool.run(work))

    async def content(self, request: Request) -> Response:
        given = query(request).get("path")
        if not given:
            raise BridgeError(400, "the query needs path")
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
        from sandboxagent.server.files.search import Query

        asked = query(request)
        wanted = (asked.get("query") or "").strip()
        directory = self.reading.directory(request)
        searches, limit = self.files.searches(), min(read_number(request, "limit") or MAX_FOUND, MAX_FOUND)
        name = f"**/*{wanted}*" if "/" in wanted else wanted
        search = searches.prepare(directory, Query(None, name or "*"), limit)
        found = await searches.find(search, directory)
        return answer(list(dict.fromkeys(posixpath.relpath(each.path, directory) for each in found.matches)))

    async def find_text(self, request: Request) -> Response:
        from sandboxagent.server.files.search import Query

        pattern = query(request).get("pattern")
        if not pattern:
            raise BridgeError(400, "the query needs pattern")
        directory = self.reading.directory(request)
        searches = self.files.searches()
        search = searches.prepare(directory, Query(pattern, None, regex=True), MAX_FOUND)
        found = await searches.find(search, directory)
        return answer([_match(each.path, directory, each.line, each.text) for each in found.matches])

    async def repository(self, request: Request) -> Response:
        """Answer with the branch of a git repository, from its `.git/HEAD`; empty if there is none."""
        directory = self.reading.directory(request)
        path = posixpath.join(directory, ".git/HEAD")
        try:
            head = (await self.files.pool.run(self.files.read, path, directory, 4096)).decode(errors="replace").strip()
        except SandboxAgentError:
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
