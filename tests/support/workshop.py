"""An installer with all that it needs, on a package index of its own, for tests without a server."""

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.install.installer import Installer, InstallOutcome
from sandboxagent.server.agents.install.plan import Wanted
from sandboxagent.server.agents.install.record import Store
from sandboxagent.server.agents.install.registry import Registry
from sandboxagent.server.agents.install.tools import Finished, Runner
from sandboxagent.server.agents.manifest import load_manifest
from sandboxagent.server.agents.start import AgentStarter, ProcessLimits
from sandboxagent.server.processes.children import ProcessTrees
from tests.support.package_index import PackageIndex, registry
from tests.support.running import BOUND


class Watched(Runner, frozen=True):
    """Runs programs, and remembers the environment of each."""

    environments: list[dict[str, str]] = msgspec.field(default_factory=list)

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Finished:
        self.environments.append(dict(environment))
        return await super().run(command, environment, directory, tell)


class Workshop:
    """Everything in one directory. Nothing that it started is there when the block has ended."""

    def __init__(
        self,
        directory: Path,
        index: PackageIndex | None = None,
        *entries: dict[str, Any],
        agents: str = "",
        environment: Mapping[str, str | None] | None = None,
        timeout: float = BOUND,
        boot_timeout: float = BOUND,
        agents_dir: Path | None = None,
        require_hashes: bool = False,
    ) -> None:
        own = {"PATH": os.environ["PATH"], "HOME": str(directory), **(index.environment if index else {})}
        given = {**own, "npm_config_fetch_retries": "0", "UV_HTTP_RETRIES": "0", **(environment or {})}
        self.environ = {name: value for name, value in given.items() if value is not None}
        self.registry_file = registry(directory / "registry.json", *entries)
        (directory / "agents.toml").write_text(agents)
        self.store = Store(agents_dir or directory / "agents")
        self.children = ProcessTrees(f"test-{uuid.uuid4()}")
        registry_ = Registry(str(self.registry_file), self.store.directory / ".registry")
        self.catalog = Catalog(load_manifest(directory / "agents.toml"), self.store, registry_, self.environ)
        limits = ProcessLimits(boot_timeout, stop_grace=0.1)
        self.starter = AgentStarter(self.children, self.environ, (), limits, None)
        self.runner = Watched(self.children)
        self.installer = Installer(
            self.store,
            registry_,
            self.runner,
            self.starter.verify,
            self.environ,
            timeout,
            require_hashes=require_hashes,
        )

    async def __aenter__(self) -> "Workshop":
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(self.installer.close(), self.starter.close(0.1))
        finally:
            # Whatever failed: with a process left, the event loop would never end.
            self.children.kill_leftovers()

    async def install(
        self, id: str, agent: str | None = None, process: str | None = None, *, reinstall: bool = False
    ) -> InstallOutcome:
        wanted = Wanted(agent, process)
        return await self.installer.install(await self.catalog.find(id), wanted, reinstall=reinstall)

    def folders(self, agent: str) -> list[Path]:
        """What there is of an agent on disk: installations, whole or half."""
        directory = self.store.directory / agent
        return sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine on the server's event loop, with a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(2 * BOUND):
            await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
