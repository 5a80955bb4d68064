"""Ask each version of an agent once for its offers, in a throw-away session, and keep the answer.

Only `ask` and `begin` start a process: `ask` for a client that waits for the offers, `begin` in the background, after
an install and when a client asks about one agent. Everything else reads the kept answers.
"""

import asyncio
import logging
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path

import msgspec
from msgspec import Struct

from sandboxagent.core.archives.remove import discard
from sandboxagent.core.tasks import Shared
from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE_BYTES, Envelope, Kind, Object, failure, parse, request, text_at
from sandboxagent.protocol.errors import (
    AgentExited,
    AgentNotReading,
    AgentTimeout,
    MethodNotFound,
    NotAnEnvelope,
    OffersUnknown,
    SandboxAgentError,
    ShuttingDown,
)
from sandboxagent.protocol.json_bounds import read
from sandboxagent.server.agents.build import InstallOnUse
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.credentials import find_credentials, has_credentials
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.options import MODE, MODEL, list_options, listing, merge_offers
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.agents.running import RunningAgent
from sandboxagent.server.agents.start import AgentStarter, describe_exit

logger = logging.getLogger(__name__)

FILE = "offers.json"
"""Name of the file in the data directory."""
MAX_KEPT_BYTES = 1 << 20
"""Maximum bytes of an agent's answer that is kept. A larger answer is only passed on."""
MAX_AT_ONCE = 4
"""Maximum number of agents that are asked at the same time. Further ones wait."""
CLOSE_TIMEOUT = 5.0
"""Seconds that an agent gets to delete its throw-away session."""


class Capabilities(Struct, rename="camel", frozen=True):
    """The answer of one edition of an agent."""

    edition: list[str]
    offers: Object
    capabilities: Object

    def models(self) -> Object:
        """Return `availableModels` and `currentModelId`, whichever shape the agent uses."""
        return listing(self.offers, MODEL)

    def modes(self) -> Object:
        """Return `availableModes` and `currentModeId`, whichever shape the agent uses."""
        return listing(self.offers, MODE)

    def config_options(self) -> list[Object]:
        """Return all options, including those for mode and model, whichever shape the agent uses."""
        return list_options(self.offers)


class _Failure(Struct, frozen=True):
    """The reason why one edition of an agent did not tell its offers."""

    edition: list[str]
    reason: str


class AgentCapabilities:
    """The offers of all agents, in a file unless `path` is None."""

    def __init__(
        self,
        catalog: Catalog,
        starter: AgentStarter,
        install_on_use: InstallOnUse,
        environ: Mapping[str, str],
        path: Path | None,
        timeout: float,
        pool: Pool,
    ) -> None:
        self._catalog = catalog
        self._starter = starter
        self._install_on_use = install_on_use
        self._environ = environ
        self._path = path
        self._timeout = timeout
        self._pool = pool
        self._kept: dict[str, Capabilities] = {} if path is None else _read(path)
        self._failures: dict[str, _Failure] = {}
        self._asking = Shared[str, Capabilities]()
        self._closed = False
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    @property
    def busy(self) -> bool:
        """Whether an agent is being asked."""
        return bool(self._asking)

    def find(self, agent: Agent) -> Capabilities | None:
        """Return the answer of this edition of an agent; None when it was not asked yet."""
        kept = self._kept.get(agent.id)
        return kept if kept is not None and kept.edition == self._edition(agent) else None

    def failure(self, agent: Agent) -> str | None:
        """Return why this edition of an agent did not tell its offers; None when it did, or was not asked."""
        failed = self._failures.get(agent.id)
        return failed.reason if failed is not None and failed.edition == self._edition(agent) else None

    def is_asking(self, agent: Agent) -> bool:
        return agent.id in self._asking

    def begin(self, agent: Agent) -> None:
        """Ask an agent in the background, unless this edition has answered or failed before. Never raises."""
        if self._closed or self.is_asking(agent) or self.find(agent) is not None or self.failure(agent) is not None:
            return
        with self._join(agent):
            pass  # Nobody waits for it.

    async def ask(self, agent: Agent) -> Capabilities:
        """Return the answer of this edition of an agent, and ask it if needed. All callers share one process.

        Raises:
            AgentNotInstalled, AgentBootFailed, AgentTimeout: there is no process to ask.
            OffersUnknown: the agent opens no session, most often for want of credentials.
        """
        if (kept := self.find(agent)) is not None:
            return kept
        if self._closed:
            raise ShuttingDown
        with self._join(agent) as task:
            return await asyncio.shield(task)

    async def close(self) -> None:
        """End all processes that are being asked, and ask no more."""
        self._closed = True
        await self._asking.close()

    def _join(self, agent: Agent) -> AbstractContextManager[asyncio.Task[Capabilities]]:
        return self._asking.join(agent.id, lambda: self._ask(agent), f"offers of {agent.id}")

    async def _ask(self, agent: Agent) -> Capabilities:
        try:
            async with self._slots:
                offer = await self._ask_edition(agent)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        self._failures.pop(agent.id, None)
        if len(msgspec.json.encode(offer)) <= MAX_KEPT_BYTES:
            self._kept[agent.id] = offer
            await self._pool.run(self._write, dict(self._kept))
        return offer

    async def _ask_edition(self, agent: Agent) -> Capabilities:
        # Read before the question: an install meanwhile makes another edition.
        edition = self._edition(agent)
        try:
            return await self._ask_in_directory(agent, edition)
        except SandboxAgentError as error:
            self._failures[agent.id] = _Failure(edition, str(error))
            raise

    async def _ask_in_directory(self, agent: Agent, edition: list[str]) -> Capabilities:
        directory = Path(await self._pool.run(lambda: tempfile.mkdtemp(prefix="sandbox-agent-offers-")))
        try:
            return await self._try_session(agent, edition, directory)
        finally:
            await asyncio.shield(self._pool.run(discard, directory))

    async def _try_session(self, agent: Agent, edition: list[str], directory: Path) -> Capabilities:
        launch = await self._install_on_use(agent)
        trial = _Probe(agent.id)
        running = await self._starter.start(agent, launch, {}, trial, lambda _running, _exit: None)
        try:
            params: Object = {"cwd": str(directory), "mcpServers": []}
            answer = await trial.call(running, methods.NEW, params, self._timeout)
            if not answer.succeeded:
                raise self._refusal(agent, answer)
            result = answer.result()
            await _leave(trial, running, text_at(result, "sessionId"))
            return Capabilities(edition, merge_offers({}, result), running.handshake.capabilities)
        finally:
            await asyncio.shield(self._starter.stop(running))

    def _refusal(self, agent: Agent, answer: Envelope) -> OffersUnknown:
        error = answer.error()
        said = text_at(error, "message") or "no reason given"
        message = f"agent {agent.id} opened no session to tell its models: {said}"
        if has_credentials(agent, self._environ):
            return OffersUnknown(message, agent=agent.id, error=error)
        names = [each.name for each in find_credentials(agent, self._environ)]
        message += f"; the server has no credentials for it, any one of: {', '.join(names)}"
        return OffersUnknown(message, agent=agent.id, error=error, credentials=names)

    def _edition(self, agent: Agent) -> list[str]:
        """Return the values that the answer depends on: the version, and the names of credentials that are there."""
        record, program = self._catalog.record(agent), self._catalog.program(agent)
        if record is not None:
            version = [record.version, record.native_version or ""]
        else:
            version = [program or "", *_state(program)]
        return version + [each.name for each in find_credentials(agent, self._environ) if each.found]

    def _write(self, kept: dict[str, Capabilities]) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".offers-", delete=False) as file:
                file.write(msgspec.json.encode(kept))
            Path(file.name).replace(self._path)
        except OSError as error:
            # The agents are asked again after the next start.
            logger.warning("offers not kept path=%s reason=%s", self._path, error.strerror)


class _Probe:
    """The listener of a process that is only asked for its offers. Requests of the process are refused."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._ids = count(1)
        self._waiting: dict[bytes, asyncio.Future[Envelope]] = {}

    async def call(self, running: RunningAgent, method: str, params: Object, timeout: float) -> Envelope:
        """Send a request, and return its answer. Raises OffersUnknown and AgentTimeout."""
        id = b'"offers-%d"' % next(self._ids)
        answered = self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            running.send(request(id, method, params))
            async with asyncio.timeout(timeout):
                return await answered
        except (AgentExited, AgentNotReading) as error:
            raise OffersUnknown(str(error), agent=self._agent) from error
        except TimeoutError:
            reason = f"agent {self._agent} did not answer {method} in {timeout:g} s"
            raise AgentTimeout(reason, agent=self._agent) from None
        finally:
            del self._waiting[id]

    def receive(self, running: RunningAgent, blob: bytes) -> None:
        # A line that is too long to be parsed here is left out.
        for line in (each for each in blob.splitlines() if len(each) <= LARGE_BYTES):
            with suppress(NotAnEnvelope, AgentExited, AgentNotReading):
                self._hear(running, parse(line))

    def _hear(self, running: RunningAgent, envelope: Envelope) -> None:
        if envelope.id is None:
            return
        if envelope.kind is Kind.REQUEST:
            running.answer(failure(envelope.id, MethodNotFound("this session is only a trial, without a client")))
        elif (answered := self._waiting.get(envelope.id)) is not None and not answered.done():
            answered.set_result(envelope)

    def oversized(self, running: RunningAgent, head: bytes) -> None:
        logger.warning("agent wrote an oversized line agent=%s", self._agent)

    def exited(self, running: RunningAgent, exit: Exit) -> None:
        for answered in self._waiting.values():
            if not answered.done():
                message = f"agent {self._agent} {describe_exit(exit)} when it was asked what it offers"
                answered.set_exception(OffersUnknown(message, agent=self._agent, stderr=exit.stderr.text(4096)))


async def _leave(trial: _Probe, running: RunningAgent, session_id: str | None) -> None:
    """Have the agent delete or close the session, where it can."""
    offered = running.handshake.offers
    ways = [
        method
        for method, name in ((methods.DELETE, "delete"), (methods.CLOSE, "close"))
        if offered("sessionCapabilities", name)
    ]
    if session_id is not None and ways:
        # The offers are known. However the agent answers, its process ends next.
        with suppress(SandboxAgentError):
            await trial.call(running, ways[0], {"sessionId": session_id}, CLOSE_TIMEOUT)


def _state(program: str | None) -> list[str]:
    """Return values that distinguish the versions of a program that the server did not install."""
    try:
        about = Path(program or "").stat()
    except OSError:
        return []
    return [str(about.st_mtime_ns), str(about.st_size)]


def _read(path: Path) -> dict[str, Capabilities]:
    try:
        return read(path.read_bytes(), dict[str, Capabilities])
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        logger.warning("offers not read, agents are asked again path=%s reason=%s", path, error)
        return {}
