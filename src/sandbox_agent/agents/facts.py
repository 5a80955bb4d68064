"""What is known of an agent on this machine, without any process of it: the same facts for the server and the CLI.

Of credentials it says names and paths, never a value. Instructions, for people, are made from the manifest.
"""

import json
import re
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec import UNSET
from msgspec.structs import replace

from sandbox_agent import __version__
from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.install.record import Record
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.wire.agents import AgentFacts, Credential, InstallFacts

_VARIABLE = r"\$(\w+)"


def find_credentials(agent: Agent, environ: Mapping[str, str]) -> list[Credential]:
    """All that the agent could use, and whether it is there. A file whose path names an unset variable is left out."""
    seen = ChainMap(dict(agent.env), cast("dict[str, str]", environ))
    found = [Credential("variable", name, bool(seen.get(name))) for name in agent.credentials]
    paths = {path: _expand(path, seen) for path in agent.credential_files}
    return found + [Credential("file", name, _is_file(path)) for name, path in paths.items() if path is not None]


def find_missing_credentials(agent: Agent, environ: Mapping[str, str]) -> list[str]:
    """The variables of which one would do, if none of its credentials is there."""
    return [] if has_credentials(agent, environ) else list(agent.credentials)


def has_credentials(agent: Agent, environ: Mapping[str, str]) -> bool:
    """Whether one of them is there, or none is needed."""
    known = find_credentials(agent, environ)
    return not known or any(each.found for each in known)


def _expand(path: str, environ: Mapping[str, str]) -> Path | None:
    if any(not environ.get(name) for name in re.findall(_VARIABLE, path)):
        return None
    path = re.sub(_VARIABLE, lambda match: environ[match[1]], path)
    if path.startswith("~/"):
        path = environ.get("HOME", str(Path.home())) + path[1:]
    return Path(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # We have no permission to read that home.
        return False


def write_instructions(agent: Agent) -> str:
    """A few lines: what to run, what it needs, what to know."""
    steps = [_install_line(agent)]
    if agent.credentials or agent.credential_files:
        steps.append(f"It reaches a model when {_describe_needs(agent)}.")
    if agent.description:
        steps.append(agent.description)
    return "\n".join(steps)


def _install_line(agent: Agent) -> str:
    if agent.source == "bundled":
        return "Nothing to install: it comes with sandbox-agent."
    if agent.source == "path":
        command = json.dumps(agent.command, ensure_ascii=False)
        return f"agents.toml runs {command}; that program must be on PATH, or be a path that exists."
    line = f"Run: sandbox-agent agents install {agent.id}"
    slugs = " or ".join(agent.registry)
    if not agent.supported:
        return f"Not supported: {agent.unsupported_reason}. Where the registry has {slugs}: {line[5:]}"
    pins = ", ".join(f"{each.name}@{each.version}" for each in agent.packages)
    where = [f"what the ACP registry has as {slugs}"] if slugs else []
    where += [f"{pins} of {'PyPI' if agent.packages[0].index == 'pypi' else 'npm'}"] if pins else []
    return f"{line}\nIt installs {', else '.join(where)}."


def _describe_needs(agent: Agent) -> str:
    variables = ", ".join(agent.credentials)
    files = ", ".join(agent.credential_files)
    either = [f"the server has one of these variables: {variables}"] if variables else []
    either += [f"one of these files is there: {files}"] if files else []
    return ", or ".join(either)


def read_facts(agent: Agent, catalog: Catalog, environ: Mapping[str, str]) -> AgentFacts:
    """What is known of an agent on this machine, with this environment."""
    record = catalog.record(agent)
    path = catalog.program(agent)
    supported = catalog.supported(agent)
    version = __version__ if agent.source == "bundled" else record and record.version
    return AgentFacts(
        id=agent.id,
        title=agent.title,
        description=agent.description,
        supported=supported,
        installed=path is not None,
        credentials_available=has_credentials(agent, environ),
        credentials=find_credentials(agent, environ),
        install=_read_install(agent, catalog, record),
        instructions=write_instructions(replace(agent, supported=supported)),
        capabilities=record.capabilities if record else {},
        unsupported_reason=UNSET if supported else agent.unsupported_reason or UNSET,
        version=version or UNSET,
        native_version=(record and record.native_version) or UNSET,
        path=path or UNSET,
        agent_info=(record and record.agent_info) or UNSET,
        features=agent.features or UNSET,
    )


def _read_install(agent: Agent, catalog: Catalog, record: Record | None) -> InstallFacts:
    source = catalog.source(agent)
    install = InstallFacts(
        source=source,
        non_registry=source != "registry",
        verified=record is not None or agent.source == "bundled",
        artifacts=catalog.artifacts(agent),
        registry_slug=agent.registry[0] if agent.registry else UNSET,
        package=agent.packages[0].name if agent.packages else UNSET,
    )
    if record is not None:
        install.registry_slug = record.registry_slug or UNSET
        install.package = record.package or UNSET
        install.folder = str(catalog.store.folder(record))
        install.installed_at, install.verified_at = record.installed_at, record.verified_at
        install.platform, install.node = record.platform, record.node
        install.note = record.note or UNSET
    return install
