"""Calling a server with the SDK, and reporting failures.

The SDK is imported when something is called: help and completion need none of it.
"""

import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.cli.endpoint import Endpoint, endpoint
from sandbox_agent.cli.failures import Failure, sentence, tell
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.cli.output import EXIT_FAILED, describe
from sandbox_agent.client.errors import ClientError, ConnectionLost, ServerProblem
from sandbox_agent.errors import SettingsError

if TYPE_CHECKING:
    from sandbox_agent.client import Health, SandboxAgent, SessionInfo
    from sandbox_agent.client.api import Api

CLIENT = "sandbox-agent command line"
"""The name other clients see on this program's answers."""
MOCK = "mock"
"""The agent that every server has."""
MOST_CANDIDATES = 10
PIECE = 1 << 16
_GONE = frozenset({"session-not-found", "removed", "not-found"})
"""What is answered for an id that is none; one with a slash leads to another route."""

T = TypeVar("T")


class _Page(Struct, rename="camel"):
    sessions: list[Raw]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Remote:
    """A server that is called: by HTTP with `api`, by ACP on a connection."""

    endpoint: Endpoint
    api: "Api"
    session: str | None = None
    """Whose files are meant."""

    @asynccontextmanager
    async def connected(self, agent: str) -> "AsyncGenerator[SandboxAgent]":
        """A client for the time of the block, to ask about sessions of this agent.

        Which agent its connection is opened with does not matter, so this takes one that runs: to look at a session
        must not install its agent, nor fail when that does not start any more.
        """
        from sandbox_agent.client.agents import health
        from sandbox_agent.client.client import SandboxAgent

        ready = _ready(await health(self.api), agent)
        url, token = self.endpoint.url, self.endpoint.token
        async with SandboxAgent.connect(url, token, agent=ready, name=CLIENT, reconnect_timeout=0) as client:
            yield client

    def describe(self, failure: Failure, about: str = "") -> None:
        """Report a failure, and what to do if no server runs."""
        if isinstance(failure, ConnectionLost) and not failure.outcome_unknown:
            start = "start one with: sandbox-agent server" if self.endpoint.local else "--endpoint names another"
            describe(f"{about}{sentence(failure)}; {start}")
        else:
            tell(failure, about)


def call(arguments: Arguments, work: Callable[[Remote], Awaitable[int]]) -> int:
    """Do something with the server that the arguments name; gives the exit code."""
    import asyncio

    return asyncio.run(_call(endpoint(arguments, os.environ), work))


async def _call(server: Endpoint, work: Callable[[Remote], Awaitable[int]]) -> int:
    from sandbox_agent.client.api import Api

    try:
        api = Api(server.url, server.token)
    except ValueError as error:
        raise SettingsError(f"--token: {error}") from None
    remote = Remote(server, api)
    try:
        return await work(remote)
    except ClientError as failure:
        remote.describe(failure)
        return EXIT_FAILED
    finally:
        await api.close()


async def attempt(remote: Remote, call: Awaitable[T], about: str = "") -> T | None:
    """The result of a call; None if it fails, after reporting it, so that the remaining calls still run."""
    from sandbox_agent.client import RequestError

    try:
        return await call
    except (ClientError, RequestError) as failure:
        remote.describe(failure, about)
        return None


def _ready(health: "Health", wanted: str) -> str:
    running = sorted(each.agent for each in health.agents if each.running)
    installed = {each.agent for each in health.agents if each.installed}
    if wanted in running:
        return wanted
    return running[0] if running else MOCK if MOCK in installed else wanted


# --- sessions ---------------------------------------------------------------------------------------------------------


async def list_sessions(api: "Api", cwd: str | None = None) -> AsyncGenerator[Raw]:
    """The JSON of each session, newest first; asks for a page when it is needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        cursor = page.next_cursor
        if cursor is None:
            return


async def find_session(api: "Api", name: str) -> Raw:
    """The JSON of the session with this id or alias, or the only one whose id or alias begins so.

    Raises:
        ClientError: there is none, or there are several.
    """
    from urllib.parse import quote

    if name not in ("", ".", ".."):
        try:
            path = f"/v1/sessions/{quote(name, safe='', errors='surrogateescape')}"
            return await api.json("GET", path, type=Raw)
        except ServerProblem as problem:
            if problem.slug not in _GONE:
                raise
    found = [(read_session(each), each) async for each in list_sessions(api)] if name else []
    same = [raw for each, raw in found if name in (each.session_id, each.alias)]
    begin = [
        (each, raw) for each, raw in found if each.session_id.startswith(name) or (each.alias or "").startswith(name)
    ]
    if same or len(begin) == 1:
        return same[0] if same else begin[0][1]
    if not begin:
        raise ClientError(f"there is no session {name!r:.200}; try: sandbox-agent sessions list")
    listed = [each.session_id for each, _ in begin[:MOST_CANDIDATES]]
    more = f" and {len(begin) - len(listed)} more" if len(begin) > len(listed) else ""
    raise ClientError(f"{name!r} is the beginning of {len(begin)} sessions: {', '.join(listed)}{more}")


def read_session(session: Raw) -> "SessionInfo":
    """The facts of a session. Raises ClientError."""
    from sandbox_agent.client.inventory import SessionInfo

    try:
        return msgspec.json.decode(session, type=SessionInfo)
    except msgspec.DecodeError as error:
        raise ClientError(f"the server's answer is invalid: {error}") from error


# --- input ------------------------------------------------------------------------------------------------------------


async def read_input(descriptor: int) -> AsyncGenerator[bytes]:
    """What comes from stdin, or from any other open file. No thread waits for it: you can always be interrupted."""
    import asyncio

    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if waits:
            ready.clear()
            try:
                loop.add_reader(descriptor, ready.set)
            except PermissionError:
                waits = False  # /dev/null and its like are always ready.
                continue
            try:
                await ready.wait()
            finally:
                loop.remove_reader(descriptor)
        piece = os.read(descriptor, PIECE)
        if not piece:
            return
        yield piece
