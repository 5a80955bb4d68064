"""Printing what is known of agents: a table, one agent, or how to get it."""

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.depot import open_catalog
from sandbox_agent.agents.facts import read_facts, write_instructions
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.cli.output import NONE, complain, filled, harmless, print_facts, print_json, print_table
from sandbox_agent.errors import RegistryUnavailable
from sandbox_agent.settings import Settings
from sandbox_agent.wire.agents import AgentFacts, Artifact

TITLES = ("agent", "installed", "source", "credentials", "supported")


def print_list(settings: Settings, environ: Mapping[str, str], *, registry: bool, as_json: bool) -> None:
    """All agents; with `registry`, those that only the ACP registry has too."""
    catalog = open_catalog(settings, environ)
    agents = asyncio.run(_all(catalog)) if registry else catalog.agents()
    known = [read_facts(agent, catalog, environ) for agent in agents]
    if as_json:
        print_json(msgspec.json.encode({"agents": known}))
    else:
        print_table(TITLES, [_row(each) for each in known])


def print_agent(settings: Settings, environ: Mapping[str, str], name: str, *, as_json: bool) -> None:
    """Everything known of one agent; raises UnknownAgent."""
    catalog = open_catalog(settings, environ)
    known = read_facts(asyncio.run(catalog.find(name)), catalog, environ)
    if as_json:
        print_json(msgspec.json.encode(known))
    else:
        print_facts(_lines(known))


def print_instructions(settings: Settings, environ: Mapping[str, str], name: str | None, *, as_json: bool) -> None:
    """How to get one agent, or each; raises UnknownAgent."""
    catalog = open_catalog(settings, environ)
    agents = catalog.agents() if name is None else [asyncio.run(catalog.find(name))]
    if as_json:
        told = [{"agent": agent.id, "instructions": write_instructions(agent)} for agent in agents]
        print_json(msgspec.json.encode({"agents": told}))
    elif name is not None:
        print(filled(harmless(write_instructions(agents[0])), ""))
    else:
        print("\n\n".join(harmless(f"{each.id} ({each.title})\n") + _indented(each) for each in agents))


async def _all(catalog: Catalog) -> list[Agent]:
    try:
        snapshot = await catalog.registry.snapshot()
    except RegistryUnavailable as error:
        complain(f"warning: {error}")
        return catalog.agents()
    if snapshot.problem:
        complain(f"warning: {snapshot.problem}; this is an older copy")
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
        f"{each.name} {each.version or ''}".strip() + "".join(f"\n  {name}: {value}" for name, value in _details(each))
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
        ("source", install.source),
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
        ("credentials", "\n".join(known) or "none needed"),
        ("instructions", agent.instructions),
    ]


def _details(artifact: Artifact) -> list[tuple[str, object]]:
    named = [("path", artifact.path), ("sha256", artifact.sha256), ("npm integrity", artifact.integrity)]
    if artifact.unverified is True:
        named.append(("unverified", "there was no hash to check it against"))
    return [(name, value) for name, value in named if value]


def _indented(agent: Agent) -> str:
    return "  " + filled(harmless(write_instructions(agent)), "  ")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
