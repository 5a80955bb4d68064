"""Serve health, configuration, providers and projects, and empty answers for features without ACP."""

import posixpath
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sandboxagent import __version__
from sandboxagent.adapters.opencode.ids import milliseconds
from sandboxagent.adapters.opencode.params import Reading, Table, answer
from sandboxagent.adapters.opencode.providers import Providers
from sandboxagent.adapters.opencode.session_ids import project_id
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.protocol.envelope import Object, text_at
from sandboxagent.server.sessions.hub import Hub

PROJECTS = 200
"""Number of the newest sessions whose directories are listed as projects."""
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
"""Empty answers, by path, for features of OpenCode that agents over ACP do not have."""
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
"""Paths of requests that are accepted without effect."""


@dataclass(frozen=True, slots=True)
class ServerRoutes:
    """Handlers of the routes that are not about sessions or files."""

    reading: Reading
    hub: Hub
    providers: Providers
    transcripts: Transcripts

    def table(self) -> Table:
        return [
            ("GET", "/global/health", self.health),
            ("GET", "/config", self.config),
            ("PATCH", "/config", self.echo),
            ("PATCH", "/global/config", self.echo),
            ("GET", "/config/providers", self.config_providers),
            ("GET", "/provider", self.list_providers),
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
        await self.providers.learn(self.providers.connected())
        config: Object = {"model": self.providers.default_model_name(), "share": "disabled", "autoupdate": False}
        none: Object = {"agent": {}, "mode": {}, "command": {}, "plugin": []}
        return answer(config | none)

    async def echo(self, request: Request) -> Response:
        """Answer a change of the configuration with its own body. The change has no effect."""
        return answer(await self.reading.body(request, msgspec.Raw))

    async def config_providers(self, request: Request) -> Response:
        return answer(await self.providers.config_providers())

    async def list_providers(self, request: Request) -> Response:
        return answer(await self.providers.providers())

    async def agents(self, request: Request) -> Response:
        return answer(await self.providers.modes_as_agents())

    async def commands(self, request: Request) -> Response:
        """Answer with the commands of the newest session of a directory, else of the default agent.

        Agents announce commands only in sessions.
        """
        here = self.hub.store.page(None, self.reading.named_directory(request), 1)
        session = here[0] if here else self.hub.store.find_newest(self.providers.default_agent())
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
        for session in self.hub.store.page(None, None, PROJECTS):
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
