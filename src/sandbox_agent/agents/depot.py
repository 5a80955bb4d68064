"""The agents of one machine, put together by the settings: for the server, and for a command line beside it."""

from collections.abc import Collection, Mapping

from sandbox_agent.agents.boot import Boots, ProcessLimits
from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.install.installer import Installer
from sandbox_agent.agents.install.record import Store
from sandbox_agent.agents.install.registry import Registry
from sandbox_agent.agents.install.tools import Runner
from sandbox_agent.agents.manifest import load_manifest
from sandbox_agent.processes.children import Children
from sandbox_agent.settings import Settings


def open_catalog(settings: Settings, environ: Mapping[str, str]) -> Catalog:
    """All agents, installed or not; raises SettingsError when agents.toml is wrong."""
    registry = Registry(settings.acp_registry_url, settings.agents_dir / ".registry")
    return Catalog(load_manifest(settings.agents_file), Store(settings.agents_dir), registry, environ)


def open_boots(
    settings: Settings, children: Children, environ: Mapping[str, str], secrets: Collection[str] = ()
) -> Boots:
    """What starts agents; none of the `secrets` gets into their environment."""
    limits = ProcessLimits(settings.request_timeout, settings.max_line, settings.stdin_limit, settings.stop_grace)
    return Boots(children, environ, secrets, limits, settings.data_dir / "logs")


def open_installer(settings: Settings, children: Children, catalog: Catalog, boots: Boots) -> Installer:
    """What installs agents of the catalog, and starts each once to see that it works."""
    return Installer(
        catalog.store,
        catalog.registry,
        Runner(children),
        boots.verify,
        catalog.environ,
        settings.install_timeout,
        require_hashes=settings.require_hashes,
    )
