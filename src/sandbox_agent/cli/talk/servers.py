"""Which server a run talks to: one that is named, one that runs on the data directory, or one of its own."""

import asyncio
import getpass
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox_agent.cli.background import find as find_running
from sandbox_agent.cli.calling import CLIENT, find_session, read_session
from sandbox_agent.cli.flags import VARIABLE, find_address, settings_of
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.cli.output import one_line
from sandbox_agent.client import ConnectionLost, SandboxAgent, ServerProblem, SessionInfo, StartFailed
from sandbox_agent.client.api import Api
from sandbox_agent.client.asking import Handlers
from sandbox_agent.data_directory import find_lock_owner
from sandbox_agent.errors import SettingsError
from sandbox_agent.settings import Settings

TRIES = 50
PAUSE = 0.1
"""Seconds between two looks for a server that is about to listen, or to end; and how many there are."""
SIGN_OF_LIFE = 10.0
"""Seconds between two words about a server that cannot be reached."""
_KNOWN = ("no handler", "the embedded server has ended")
"""Log messages to hide: they are expected, or shown in another way."""
Say = Callable[[str], None]
_WHICH = ("config_dir", "data_dir", "agents_dir", "token", "token_file")


@dataclass(frozen=True, slots=True)
class Served:
    """A client of the server that was found."""

    client: SandboxAgent
    here: bool
    """Whether the server surely sees the files of this machine."""


@asynccontextmanager
async def served(arguments: Arguments, say: Say, warn: Say, handlers: Handlers) -> AsyncGenerator[Served]:
    """A client for as long as the block lasts; `say` and `warn` tell what was done to have one.

    Raises:
        SettingsError: what the arguments say makes no sense.
        ClientError: there is no server, or it does not let us in.
    """
    async with AsyncExitStack() as stack:
        if arguments.word("endpoint") or os.environ.get(VARIABLE):
            yield await _named(stack, arguments, handlers)
        else:
            yield await _found(stack, arguments, say, warn, handlers)


async def _named(stack: AsyncExitStack, arguments: Arguments, handlers: Handlers) -> Served:
    server = find_address(arguments, os.environ)
    try:
        client = await _connected(stack, server.url, server.token, handlers)
    except ValueError as error:
        raise SettingsError(f"--token: {error}") from None
    return Served(client, here=False)


async def _found(stack: AsyncExitStack, arguments: Arguments, say: Say, warn: Say, handlers: Handlers) -> Served:
    settings = settings_of(arguments, os.environ, _WHICH)
    for left in reversed(range(TRIES)):
        running = find_running(settings)
        try:
            if running is not None:
                client = await _connected(stack, running.url, running.token, handlers)
                return Served(client, here=True)
            if find_lock_owner(settings.data_dir) is None:
                say("no server is running; starting one for this run")
                client = await _started(stack, settings, settings.data_dir, handlers)
                return Served(client, here=True)
        except ServerProblem as problem:
            if running is None or problem.status != 401:
                raise
            # Most likely another run's own server, which will be gone with it.
            warn(
                f"the server at {running.url} needs a token that was not found (give it with --token), so another one "
                "is started; its session is not kept"
            )
            return Served(await _started(stack, settings, None, handlers), here=True)
        except (ConnectionLost, StartFailed):
            # It has just ended, or another process was quicker.
            if not left or (running is None and find_lock_owner(settings.data_dir) is None):
                raise
        await asyncio.sleep(PAUSE)
    pid = find_lock_owner(settings.data_dir)
    raise StartFailed(f"process {pid} holds the data directory {settings.data_dir}, and does not say where it listens")


async def _connected(stack: AsyncExitStack, url: str, token: str | None, handlers: Handlers) -> SandboxAgent:
    return await stack.enter_async_context(
        SandboxAgent.connect(
            url,
            token,
            on_permission=handlers.permission,
            on_question=handlers.question,
            on_elicitation=handlers.elicitation,
            name=CLIENT,
            user=_user(),
        )
    )


async def _started(
    stack: AsyncExitStack, settings: Settings, data_dir: Path | None, handlers: Handlers
) -> SandboxAgent:
    places = {"config_dir": settings.config_dir, "agents_dir": settings.agents_dir}
    # What it reports is seen only when it fails: then the last lines should be about that.
    options = {**places, "quiet": True, "log_level": "warning"}
    return await stack.enter_async_context(
        SandboxAgent.start(
            on_permission=handlers.permission,
            on_question=handlers.question,
            on_elicitation=handlers.elicitation,
            data_dir=data_dir,
            options=options,
        )
    )


async def find(client: SandboxAgent, name: str) -> SessionInfo:
    """The session with this id or alias, or the only one whose id or alias begins so. Raises ClientError."""
    api = Api(client.url, client.token)
    try:
        return read_session(await find_session(api, name))
    finally:
        await api.close()


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


class Reports(logging.Handler):
    """Shows each log message of the SDK on one line, and hides all others."""

    def __init__(self, say: Say, warn: Say) -> None:
        super().__init__(logging.INFO)
        self._say = say
        self._warn = warn
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Without a traceback: you use the program, and need not read it."""
        told = record.getMessage()
        if record.levelno >= logging.WARNING and not told.startswith(_KNOWN):
            self._warn(one_line(told))
        elif told.startswith("the stream broke") and record.created >= self._next:
            self._next = record.created + SIGN_OF_LIFE
            self._say("the connection to the server broke; trying to reach it")

    def install(self) -> None:
        """Take all reports of this process."""
        logging.getLogger().addHandler(logging.NullHandler())
        reports = logging.getLogger("sandbox_agent.client")
        reports.setLevel(logging.INFO)
        reports.addHandler(self)
