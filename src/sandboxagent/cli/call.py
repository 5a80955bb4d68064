"""Call a server with the SDK for a command, and report what fails."""

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
)
from sandboxagent.protocol.errors import SettingsError

if TYPE_CHECKING:
    from sandboxagent.client import Health, SandboxAgent
    from sandboxagent.client.api import Api
    from sandboxagent.core.discovery import ServerAddress


CLIENT = "sandbox-agent command line"
"""The name other clients see on this program's answers."""
MOCK = "mock"
"""The agent that every server has."""
PIECE = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CalledServer:
    """A server that is called: by HTTP with `api`, by ACP on a connection."""

    endpoint: "ServerAddress"
    api: "Api"
    session: str | None = None
    """Whose files are meant."""
    node: str | None = None
    """Likewise, at a gateway."""

    @asynccontextmanager
    async def connected(self, agent: str) -> "AsyncGenerator[SandboxAgent]":
        """A client for the time of the block, to ask about sessions of this agent.

        Which agent its connection is opened with does not matter, so this takes one that runs: to look at a session
        must not install its agent, nor fail when that does not start any more.
        """
        from sandboxagent.client.agents import health
        from sandboxagent.client.client import SandboxAgent

        facts = await health(self.api)
        ready = _ready(facts, agent)
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


def call(arguments: ParsedArguments, work: Callable[[CalledServer], Awaitable[int]]) -> int:
    """Do something with the server that the arguments name, or that of the data directory; gives the exit code."""
    import asyncio

    from sandboxagent.cli.daemon import ServerFailed, ensure_server

    try:
        server = ensure_server(arguments, complain)
    except ServerFailed as failed:
        describe(str(failed), failed.stderr)
        return failed.code
    return asyncio.run(_call(server, work))


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
    """The result of a call; None if it fails, after reporting it, so that the remaining calls still run."""
    from sandboxagent.client import RequestError

    try:
        return await call
    except (ClientError, RequestError) as failure:
        remote.describe(failure, about)
        return None


def _ready(health: "Health", wanted: str) -> str:
    running = sorted(each.agent for each in health.agents if each.running)
    installed = {each.agent for each in health.agents if each.installed}
    if health.gateway is not None:
        # What runs at one node may not run at the node that the connection gets: this takes one that starts at once.
        return MOCK if MOCK in installed else wanted
    if wanted in running:
        return wanted
    return running[0] if running else MOCK if MOCK in installed else wanted


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
