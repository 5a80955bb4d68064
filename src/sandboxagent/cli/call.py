"""Call a server with the SDK for a command, and report failures."""

import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sandboxagent.cli.failures import Failure, sentence, tell
from sandboxagent.cli.output import EXIT_FAILED, complain, describe
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.client.errors import (
    ClientError,
    ConnectionLost,
    TlsFailed,
)
from sandboxagent.protocol.errors import SettingsError

if TYPE_CHECKING:
    from sandboxagent import Health, SandboxAgent
    from sandboxagent.client.api import Api
    from sandboxagent.core.discovery import ServerAddress


CLIENT = "sandbox-agent command line"
"""The name under which other clients see the answers of this program."""
MOCK = "mock"
"""The agent that every server has installed."""
PIECE_BYTES = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CalledServer:
    """The server that a command calls: by HTTP with `api`, by ACP on a connection."""

    endpoint: "ServerAddress"
    api: "Api"
    session: str | None = None
    """The session whose files the command means."""
    node: str | None = None
    """At a gateway, the node whose files the command means."""

    @asynccontextmanager
    async def connected(self, agent: str) -> "AsyncGenerator[SandboxAgent]":
        """Connect a client for the time of the block, to ask about sessions of this agent.

        A connection for any agent can do that, so this one names an agent that runs. Otherwise, a look at a session
        would install its agent, or fail where that agent does not start.
        """
        from sandboxagent.client.agents import health
        from sandboxagent.client.client import SandboxAgent

        facts = await health(self.api)
        ready = _ready(facts, agent)
        url, token = self.endpoint.url, self.endpoint.token
        async with SandboxAgent.connect(url, token, agent=ready, name=CLIENT, reconnect_timeout=0) as client:
            yield client

    def describe(self, failure: Failure, about: str = "") -> None:
        """Report a failure. If the server cannot be reached, say what to do about it."""
        if isinstance(failure, ConnectionLost) and not (failure.outcome_unknown or isinstance(failure, TlsFailed)):
            start = "start one with: sandbox-agent server" if self.endpoint.local else "name another with --endpoint"
            describe(f"{about}{sentence(failure)}; {start}")
        else:
            tell(failure, about)


def call(arguments: ParsedArguments, work: Callable[[CalledServer], Awaitable[int]]) -> int:
    """Find or start the server that the arguments mean, pass it to `work` and return the exit code."""
    import asyncio

    from sandboxagent.cli.daemon import ensure_server

    return asyncio.run(_call(ensure_server(arguments, complain), work))


async def _call(server: "ServerAddress", work: Callable[[CalledServer], Awaitable[int]]) -> int:
    from sandboxagent.client.api import Api

    try:
        api = Api(server.url, server.token)
    except ValueError as error:
        raise SettingsError(f"--token: {error}") from None
    remote = CalledServer(server, api)
    try:
        return await work(remote)
    except ClientError as failure:
        remote.describe(failure)
        return EXIT_FAILED
    finally:
        await api.close()


async def attempt(remote: CalledServer, call: Awaitable[T], about: str = "") -> T | None:
    """Return the result of a call. If it fails, report that and return None, so that other calls can follow."""
    from sandboxagent import RequestError

    try:
        return await call
    except (ClientError, RequestError) as failure:
        remote.describe(failure, about)
        return None


def _ready(health: "Health", wanted: str) -> str:
    running = sorted(each.agent for each in health.agents if each.running)
    installed = {each.agent for each in health.agents if each.installed}
    if health.gateway is not None:
        # An agent may run at another node than the one that the connection gets. The mock starts at once everywhere.
        return MOCK if MOCK in installed else wanted
    if wanted in running:
        return wanted
    return running[0] if running else MOCK if MOCK in installed else wanted


async def read_input(descriptor: int) -> AsyncGenerator[bytes]:
    """Yield the bytes of stdin or another open file. It waits without a thread, so Ctrl-C always works."""
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
        piece = os.read(descriptor, PIECE_BYTES)
        if not piece:
            return
        yield piece
