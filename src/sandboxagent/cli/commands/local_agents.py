"""List, install and remove the agents of this machine without a server."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, Struct

from sandboxagent.cli.output import (
    EXIT_FAILED,
    NONE,
    Show,
    complain,
    describe,
    fill_lines,
    harmless,
    print_facts,
    print_json,
    print_table,
    shown,
)
from sandboxagent.core.settings import Settings
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import Object, objects_at, text_at
from sandboxagent.protocol.errors import InstallFailed, RegistryUnavailable, SandboxAgentError
from sandboxagent.protocol.views import AgentFacts, Artifact, InstallRequest, InstallResult
from sandboxagent.server.agents.build import InstallOnUse, open_catalog, open_installer, open_starter
from sandboxagent.server.agents.catalog import Catalog, read_facts, write_instructions
from sandboxagent.server.agents.install.installer import Installer, InstallOutcome
from sandboxagent.server.agents.install.plan import Job
from sandboxagent.server.agents.installs import AgentInstalls
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.processes.children import ProcessTrees

if TYPE_CHECKING:
    from sandboxagent.server.agents.capabilities import Capabilities

_PROCESSES = {
    "agent": "one for all sessions: a crash ends the turns of all; the next prompt resumes a session",
    "session": "one for each session: a crash ends the turn of that session alone; its next prompt resumes it",
}
TITLES = ("agent", "installed", "source", "credentials", "supported")


def print_list(settings: Settings, environ: Mapping[str, str], *, registry: bool, as_json: bool) -> None:
    """Print all known agents; with `registry`, also all others of the ACP registry."""
    catalog = open_catalog(settings, environ)
    agents = asyncio.run(_all(catalog)) if registry else catalog.agents()
    known = [read_facts(agent, catalog, environ) for agent in agents]
    if as_json:
        print_json(msgspec.json.encode({"agents": known}))
    else:
        print_table(TITLES, [_row(each) for each in known])


def print_agent(
    settings: Settings, environ: Mapping[str, str], name: str, *, asking: bool = False, as_json: bool
) -> None:
    """Print all facts about one agent. With `asking`, start it to ask for its models.

    Raises UnknownAgent, or the reason why the agent cannot be asked.
    """
    import uvloop

    catalog = open_catalog(settings, environ)
    agent = asyncio.run(catalog.find(name))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        offer = runner.run(_find_offer(settings, catalog, agent, asking=asking))
    known = read_facts(agent, catalog, environ)
    announced = {} if offer is None else {"models": offer.models(), "modes": offer.modes()}
    if as_json:
        print_json(msgspec.json.encode(msgspec.to_builtins(known) | announced))
    else:
        print_facts([*_lines(known), *((name, _choices(shape, name)) for name, shape in announced.items())])


async def _find_offer(settings: Settings, catalog: Catalog, agent: Agent, *, asking: bool) -> "Capabilities | None":
    from sandboxagent.server.agents.capabilities import FILE, AgentCapabilities

    children = ProcessTrees(token_hex(16))
    starter = open_starter(settings, children, catalog.environ)
    install_on_use = InstallOnUse(catalog, open_installer(settings, children, catalog, starter), may_install=False)
    path = settings.data_dir / FILE
    timeout = settings.request_timeout
    offers = AgentCapabilities(catalog, starter, install_on_use, catalog.environ, path, timeout, Pool("offers", 1))
    try:
        return await offers.ask(agent) if asking else offers.find(agent)
    finally:
        await offers.close()


def _choices(shape: Object, name: str) -> str:
    """Format models or modes, one per line, with a mark at the current one."""
    from sandboxagent.server.agents.options import MODE, MODEL

    category = MODEL if name == MODEL.shape else MODE
    ids = [text_at(each, category.choice_id) or "" for each in objects_at(shape, category.available)]
    return "\n".join(f"{id} (current)" if id == shape.get(category.current) else id for id in ids) or NONE


def print_instructions(settings: Settings, environ: Mapping[str, str], name: str | None, *, as_json: bool) -> None:
    """Print how to install one agent, or each, and its needs. Raises UnknownAgent."""
    catalog = open_catalog(settings, environ)
    agents = catalog.agents() if name is None else [asyncio.run(catalog.find(name))]
    if as_json:
        told = [{"agent": agent.id, "instructions": write_instructions(agent)} for agent in agents]
        print_json(msgspec.json.encode({"agents": told}))
    elif name is not None:
        print(fill_lines(harmless(write_instructions(agents[0])), ""))
    else:
        print("\n\n".join(harmless(f"{each.id} ({each.title})\n") + _indent_description(each) for each in agents))


async def _all(catalog: Catalog) -> list[Agent]:
    try:
        snapshot = await catalog.registry.snapshot()
    except RegistryUnavailable as error:
        complain(f"warning: {error}")
        return catalog.agents()
    if snapshot.problem:
        complain(f"warning: {snapshot.problem}; the list is from an older copy")
    return await catalog.all()


def _row(agent: AgentFacts) -> tuple[str, ...]:
    version = "yes" if agent.version is UNSET else agent.version
    if any(each.unverified is True for each in agent.install.artifacts):
        version = f"{version} (unverified)"
    credentials = _yes(agent.credentials_available) if agent.credentials else NONE
    return (
        agent.id,
        version if agent.installed else "no",
        agent.install.source,
        credentials,
        _yes(agent.supported),
    )


def _lines(agent: AgentFacts) -> list[tuple[str, str]]:
    install = agent.install
    programs = [
        f"{each.name} {each.version or ''}".strip()
        + (" (inferred)" if each.version_inferred is True else "")
        + "".join(f"\n  {name}: {value}" for name, value in _details(each))
        for each in install.artifacts
    ]
    known = [f"{'found    ' if each.found else 'not found'}  {each.kind} {each.name}" for each in agent.credentials]
    return [
        ("agent", agent.id),
        ("title", agent.title),
        ("description", agent.description),
        ("supported", "yes" if agent.supported else f"no: {agent.unsupported_reason or NONE}"),
        ("installed", _row(agent)[1]),
        ("agent itself", agent.native_version or ""),
        ("source", f"{install.source}{' (expected)' if install.expected else ''}"),
        ("registry slug", install.registry_slug or ""),
        ("package", install.package or ""),
        ("note", install.note or ""),
        ("folder", install.folder or ""),
        ("program", agent.path or ""),
        ("programs", "\n".join(programs)),
        ("installed at", install.installed_at or ""),
        ("verified", f"by a handshake at {install.verified_at}" if install.verified_at else ""),
        ("platform", install.platform or ""),
        ("node", install.node or ""),
        ("says it is", " ".join(str(value) for value in (agent.agent_info or {}).values() if isinstance(value, str))),
        ("processes", _PROCESSES[agent.isolation]),
        ("credentials", "\n".join(known) or "none needed"),
        ("instructions", agent.instructions),
    ]


def _details(artifact: Artifact) -> list[tuple[str, object]]:
    named = [
        ("package version", artifact.package_version),
        ("path", artifact.path),
        ("sha256", artifact.sha256),
        ("npm integrity", artifact.integrity),
    ]
    if artifact.unverified is True:
        named.append(("unverified", "there was no hash to check it against"))
    return [(name, value) for name, value in named if value]


def _indent_description(agent: Agent) -> str:
    return "  " + fill_lines(harmless(write_instructions(agent)), "  ")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


PROGRESS_INTERVAL = 0.2


class Removal(Struct):
    """The result of removing an agent; `uninstalled` is false when it was not installed."""

    agent: str
    uninstalled: bool


@dataclass(frozen=True, slots=True)
class FailedAgent:
    """An agent whose install or removal failed."""

    agent: str
    error: SandboxAgentError


async def install(
    settings: Settings, names: Sequence[str], asked: InstallRequest, tell: Callable[[InstallResult | FailedAgent], None]
) -> None:
    """Install agents and report each. If one fails, the others are still installed."""
    async with _opened(settings) as (catalog, installer):
        installs = AgentInstalls(catalog, installer)
        for name in names:
            with shown(name) as show:
                result = await _one(installs, name, asked, show)
            tell(result)
            if isinstance(result, InstallResult) and not result.already_installed:
                _note(catalog, result.agent)


async def uninstall(settings: Settings, names: Sequence[str], tell: Callable[[Removal | FailedAgent], None]) -> None:
    """Remove agents and report each. If one fails, the others are still removed."""
    async with _opened(settings) as (catalog, installer):
        for name in names:
            tell(await _remove_agent(catalog, installer, name))


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Catalog, Installer]]:
    """Open an installer for the time of the block. At its end, unfinished installs are undone."""
    catalog = open_catalog(settings, os.environ)
    # With an owner id of its own: the server on this data directory ends processes by its own owner id.
    children = ProcessTrees(token_hex(16))
    installer = open_installer(settings, children, catalog, open_starter(settings, children, os.environ))
    try:
        yield catalog, installer
    finally:
        await installer.close()


async def _one(installs: AgentInstalls, name: str, asked: InstallRequest, show: Show) -> InstallResult | FailedAgent:
    try:
        begun = await installs.begin(name, asked)
        if isinstance(begun, InstallResult):
            return begun
        await _follow(*begun, show)
        return await installs.wait_for_result(begun[1])
    except SandboxAgentError as error:
        return FailedAgent(name, error)


async def _follow(job: Job, task: "asyncio.Task[InstallOutcome]", show: Show) -> None:
    seen = job.progress
    while not task.done():
        changed = asyncio.ensure_future(job.changed())
        try:
            # With a timeout, because a change just before `changed` waits would show only with the next one.
            await asyncio.wait({changed, task}, timeout=PROGRESS_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if job.progress is not seen and not task.done():
            seen = job.progress
            show(seen)


async def _remove_agent(catalog: Catalog, installer: Installer, name: str) -> Removal | FailedAgent:
    try:
        agent = catalog.agent(name)
        if not agent.installable:
            where = "it comes with sandbox-agent" if agent.source == "bundled" else "agents.toml names its program"
            return FailedAgent(name, InstallFailed(f"agent {agent.id} cannot be removed: {where}", agent=agent.id))
        return Removal(agent.id, await installer.uninstall(agent.id))
    except SandboxAgentError as error:
        return FailedAgent(name, error)


def _note(catalog: Catalog, agent: str) -> None:
    """Print the note of an agent's install, if it has one."""
    record = catalog.store.record(agent)
    if record is not None and record.note:
        complain(f"note: {record.note}")


# --- outcomes ---------------------------------------------------------------------------------------------------------


class Failure(Struct):
    """An agent, and the problem with it as the server would report it."""

    agent: str
    error: Raw


class Outcomes:
    """The outcomes of several agents, to print, with the exit code."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._all: list[InstallResult | Removal | Failure] = []

    def tell(self, result: InstallResult | Removal | FailedAgent) -> None:
        """Add and print one outcome. A failure always goes to stderr."""
        if isinstance(result, FailedAgent):
            from sandboxagent.server.http.asgi import problem_document

            describe(str(result.error), result.error.fields.get("stderr"))
            self._all.append(Failure(result.agent, Raw(problem_document(result.error))))
            return
        self._all.append(result)
        if not self._as_json:
            print(harmless(_sentence(result)), flush=True)

    def finish(self) -> int:
        """Print all outcomes if the output is JSON. Return the exit code."""
        if self._as_json:
            print_json(msgspec.json.encode({"agents": self._all}))
        failed = any(isinstance(each, Failure) for each in self._all)
        return EXIT_FAILED if failed else 0


def _sentence(result: InstallResult | Removal) -> str:
    if isinstance(result, Removal):
        return f"{result.agent} is removed" if result.uninstalled else f"{result.agent} is not installed"
    name = f"{result.agent} {result.version}" if result.version else result.agent
    how = "is already installed" if result.already_installed else "is installed"
    native = "" if result.native_version is UNSET else f", with version {result.native_version} of the agent itself"
    unverified = any(each.unverified is True for each in result.artifacts)
    warning = "; unverified: there was no hash to check it against" if unverified else ""
    return f"{name} {how} ({result.source}){native}{warning}"


# --- interrupts -------------------------------------------------------------------------------------------------------


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_undoing(work: Coroutine[object, object, None]) -> None:
    """Run a coroutine to its end. A signal cancels it, and the program exits with 128 plus the signal's number."""
    import uvloop

    told: list[signal.Signals] = []

    async def watched() -> None:
        task = asyncio.create_task(work)

        def stop(number: signal.Signals) -> None:
            if not told:
                task.cancel()
            told.append(number)

        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # An ignored signal stays ignored, as under nohup.
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            await task
        except asyncio.CancelledError:
            if not told:
                raise

    # The server's event loop, so that child processes end as they do there.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    if told:
        complain(f"stopped by {told[0].name}; the unfinished install was undone")
        raise SystemExit(128 + told[0])
