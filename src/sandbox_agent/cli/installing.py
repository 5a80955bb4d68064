"""Installing and removing agents without a server, one after the other, safely beside one that runs."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex

from msgspec import Struct

from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.depot import open_boots, open_catalog, open_installer
from sandbox_agent.agents.install.installer import Installer, Outcome
from sandbox_agent.agents.install.progress import Job
from sandbox_agent.cli.arguments import complain
from sandbox_agent.cli.progress import Show, shown
from sandbox_agent.errors import InstallFailed, SandboxAgentError
from sandbox_agent.hub.agent_installs import AgentInstalls
from sandbox_agent.processes.children import Children
from sandbox_agent.settings import Settings
from sandbox_agent.wire.agents import InstallRequest, InstallResult

PACE = 0.2


class Removal(Struct):
    """What removing an agent did; `uninstalled` is false when there was nothing."""

    agent: str
    uninstalled: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """An agent that could not be had, or not be removed."""

    agent: str
    error: SandboxAgentError


async def install(
    settings: Settings, names: Sequence[str], asked: InstallRequest, tell: Callable[[InstallResult | Failed], None]
) -> None:
    """Install all of them and tell of each; one that fails does not keep the others from it."""
    async with _opened(settings) as (catalog, installer):
        installs = AgentInstalls(catalog, installer)
        for name in names:
            with shown(name) as show:
                result = await _one(installs, name, asked, show)
            tell(result)
            if isinstance(result, InstallResult) and not result.already_installed:
                _note(catalog, result.agent)


async def uninstall(settings: Settings, names: Sequence[str], tell: Callable[[Removal | Failed], None]) -> None:
    """Remove all of them and tell of each; one that fails does not keep the others from it."""
    async with _opened(settings) as (catalog, installer):
        for name in names:
            tell(await _removed(catalog, installer, name))


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Catalog, Installer]]:
    """An installer for a moment; what it has begun and not finished is undone."""
    catalog = open_catalog(settings, os.environ)
    # An owner of its own: the server of this data directory knows its processes by another.
    children = Children(token_hex(16))
    installer = open_installer(settings, children, catalog, open_boots(settings, children, os.environ))
    try:
        yield catalog, installer
    finally:
        await installer.close()


async def _one(installs: AgentInstalls, name: str, asked: InstallRequest, show: Show) -> InstallResult | Failed:
    try:
        begun = await installs.begin(name, asked)
        if isinstance(begun, InstallResult):
            return begun
        await _follow(*begun, show)
        return await installs.result(begun[1])
    except SandboxAgentError as error:
        return Failed(name, error)


async def _follow(job: Job, task: "asyncio.Task[Outcome]", show: Show) -> None:
    seen = job.progress
    while not task.done():
        changed = asyncio.ensure_future(job.changed())
        try:
            # Bounded: what changes before `changed` has begun to wait would be seen with the next change only.
            await asyncio.wait({changed, task}, timeout=PACE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if job.progress is not seen and not task.done():
            seen = job.progress
            show(seen)


async def _removed(catalog: Catalog, installer: Installer, name: str) -> Removal | Failed:
    try:
        agent = catalog.agent(name)
        if not agent.installable:
            where = "it comes with sandbox-agent" if agent.source == "bundled" else "agents.toml names its program"
            return Failed(name, InstallFailed(f"agent {agent.id} cannot be removed: {where}", agent=agent.id))
        return Removal(agent.id, await installer.uninstall(agent.id))
    except SandboxAgentError as error:
        return Failed(name, error)


def _note(catalog: Catalog, agent: str) -> None:
    """Say what is to be said about where it came from."""
    record = catalog.store.record(agent)
    if record is not None and record.note:
        complain(f"note: {record.note}")
