"""Connect to the server that a run talks to, or start a private one with `--no-daemon`."""

import getpass
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from sandboxagent import ClientError, SandboxAgent, SessionInfo, StartFailed
from sandboxagent.cli.call import CLIENT
from sandboxagent.cli.daemon import ensure_server
from sandboxagent.cli.flags import settings_of
from sandboxagent.cli.output import one_line, show_install
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.cli.session_lookup import find_session, last_use, read_session
from sandboxagent.client.agents import Agent, Agents, health
from sandboxagent.client.api import Api, Locate
from sandboxagent.client.errors import ServerProblem
from sandboxagent.client.requests import Handlers
from sandboxagent.core.data_directory import find_lock_owner
from sandboxagent.core.discovery import SERVER_OPTIONS, ServerAddress, find_server, is_named
from sandboxagent.core.settings import Settings
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE
from sandboxagent.protocol.errors import MissingNode, SettingsError

MAX_COMPARED = 1000
"""Maximum number of sessions that are compared to find the newest."""
_KNOWN = ("no handler", "the embedded server has ended")
"""Log messages to hide: they are expected, or shown in another way."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server that a run uses; without an address, a private one to start."""

    address: ServerAddress | None
    settings: Settings
    here: bool
    """Whether the server certainly sees the files of this machine."""
    locate: Locate | None = None
    """Finds the server again when it has come back on another port."""


@dataclass(frozen=True, slots=True)
class ConnectedServer:
    """A connected client of the chosen server."""

    client: SandboxAgent
    here: bool


def select_target(arguments: ParsedArguments, say: Say) -> ServerTarget:
    """Choose the named server, else the one on the data directory; if none runs there, start one in the background.

    With --no-daemon, choose a private server.

    Raises:
        SettingsError: the arguments are invalid or contradict each other.
        ServerFailed: the server on the data directory cannot be used, or none starts.
        StartFailed: with --no-daemon, another server holds the data directory.
    """
    settings = settings_of(arguments, os.environ, (*SERVER_OPTIONS, "agents_dir"))
    alone = arguments.switch("no_daemon")
    if alone and is_named(arguments.values, os.environ):
        raise SettingsError(
            f"--no-daemon starts a private server; it cannot be used with --endpoint or {ENDPOINT_VARIABLE}"
        )
    if alone:
        _check_free(settings)
        return ServerTarget(None, settings, here=True)
    found = ensure_server(arguments, say)
    here = found.source == "record"
    return ServerTarget(found, settings, here, (lambda: _locate(arguments)) if here else None)


def _locate(arguments: ParsedArguments) -> tuple[str, str | None] | None:
    """Return the address and the token of the server on the data directory; None if none listens there."""
    with suppress(SettingsError):
        found = find_server(arguments.values, os.environ)
        if found is not None and found.source == "record":
            return found.url, found.token
    return None


def _check_free(settings: Settings) -> None:
    pid = find_lock_owner(settings.data_dir)
    if pid is not None:
        raise StartFailed(
            f"a server (process {pid or 'unknown'}) holds the data directory {settings.data_dir}; leave --no-daemon "
            "out to use that server, or choose another directory with --data-dir"
        )


@asynccontextmanager
async def served(choice: ServerTarget, handlers: Handlers) -> AsyncGenerator[ConnectedServer]:
    """Connect a client to the server, or start the private one, for the time of the block.

    Raises ClientError if the server does not start or refuses the connection.
    """
    async with AsyncExitStack() as stack:
        if choice.address is None:
            client = await _start(stack, choice.settings, handlers)
        else:
            try:
                client = await _connect(stack, choice.address, handlers, choice.locate)
            except ValueError as error:
                raise SettingsError(f"--token: {error}") from None
        yield ConnectedServer(client, choice.here)


async def _connect(
    stack: AsyncExitStack, server: ServerAddress, handlers: Handlers, locate: Locate | None
) -> SandboxAgent:
    return await stack.enter_async_context(
        SandboxAgent.connect(
            server.url,
            server.token,
            on_permission=handlers.permission,
            on_question=handlers.question,
            on_elicitation=handlers.elicitation,
            name=CLIENT,
            user=_user(),
            locate=locate,
        )
    )


async def _start(stack: AsyncExitStack, settings: Settings, handlers: Handlers) -> SandboxAgent:
    places = {"config_dir": settings.config_dir, "agents_dir": settings.agents_dir}
    # Its log is shown only when it fails. The last lines should then be about the failure.
    options = {**places, "quiet": True, "log_level": "warning"}
    return await stack.enter_async_context(
        SandboxAgent.start(
            on_permission=handlers.permission,
            on_question=handlers.question,
            on_elicitation=handlers.elicitation,
            data_dir=settings.data_dir,
            options=options,
        )
    )


async def find_named_session(client: SandboxAgent, name: str) -> SessionInfo:
    """Return the session with this id or alias, or the only one that begins with it. Raises ClientError."""
    api = Api(client.url, client.token)
    try:
        return read_session(await find_session(api, name))
    finally:
        await api.close()


async def find_newest_session(client: SandboxAgent, cwd: str, agent: str | None) -> SessionInfo:
    """Return the last used session of a directory that accepts prompts. Raises ClientError."""
    found: list[SessionInfo] = []
    async for info in client.sessions.list(cwd):
        if agent in (None, info.agent) and (info.resumable or not info.ended):
            found.append(info)
        if len(found) == MAX_COMPARED:
            break
    if not found:
        of = "" if agent is None else f" of {agent}"
        raise ClientError(f"there is no session{of} in {cwd} to continue; without --continue, run starts one")
    return max(found, key=last_use)


async def find_agent(agents: Agents, agent: str) -> Agent | None:
    """Return an agent; None at a gateway with several nodes, which chooses one only for the new session."""
    try:
        return await agents.get(agent)
    except ServerProblem as problem:
        if problem.slug != MissingNode.slug:
            raise
        return None


async def is_agent_of(server: ServerAddress, word: str) -> bool:
    """Whether a server knows an agent by this name, or by this slug in the ACP registry. Raises ClientError."""
    api = Api(server.url, server.token)
    try:
        try:
            known = await Agents(api).list()
        except ServerProblem as problem:
            if problem.slug != MissingNode.slug:
                raise
            # A gateway with several nodes lists the agents of all of them only by id.
            return any(each.agent == word for each in (await health(api)).agents)
        return any(word in (each.id, each.install.registry_slug) for each in known)
    finally:
        await api.close()


async def install_agent(agents: Agents, agent: str, *, quiet: bool) -> None:
    """Install an agent on the server unless it is installed, and show the progress."""
    known = await find_agent(agents, agent)
    if known is None or known.installed:
        return
    install = agents.install(agent)
    if not quiet:
        await show_install(install)
    await install


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


class ReportView(Protocol):
    """What shows the messages of the SDK."""

    def warn(self, text: str) -> None:
        """Show a warning."""
        ...

    def lose(self) -> None:
        """Show that the connection to the server broke."""
        ...

    def regain(self) -> None:
        """Show that the connection is there, perhaps again."""
        ...


class Reports(logging.Handler):
    """A log handler that shows each message of the SDK on one line. All other messages are hidden."""

    def __init__(self, view: ReportView) -> None:
        super().__init__(logging.INFO)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Show a log message, without a traceback: users of the program need not read it."""
        try:
            self._show(record)
        except Exception:
            # A failure here must not end the work that logged, such as a retry of an answer.
            self.handleError(record)

    def _show(self, record: logging.LogRecord) -> None:
        told = record.getMessage()
        if record.levelno >= logging.WARNING and not told.startswith(_KNOWN):
            self._view.warn(one_line(told))
        elif told.startswith("the stream broke"):
            self._view.lose()
        elif told.startswith("the stream is open"):
            self._view.regain()

    @contextmanager
    def installed(self) -> Generator[None]:
        """Show all log messages of this process for the time of the block."""
        reports, rest, silent = logging.getLogger("sandboxagent.client"), logging.getLogger(), logging.NullHandler()
        level = reports.level
        rest.addHandler(silent)
        reports.setLevel(logging.INFO)
        reports.addHandler(self)
        try:
            yield
        finally:
            reports.removeHandler(self)
            reports.setLevel(level)
            rest.removeHandler(silent)
