"""Check the agents on this machine, and the ACP registry that they come from."""

import asyncio
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET

from sandboxagent.cli.daemon import SeenCredentials, find_seen_credentials
from sandboxagent.cli.doctor import DoctorSubject, Finding, Status, join_words
from sandboxagent.protocol.errors import RegistryUnavailable, SettingsError
from sandboxagent.protocol.views import AgentFacts
from sandboxagent.server.agents.build import open_catalog
from sandboxagent.server.agents.catalog import Catalog, read_facts
from sandboxagent.server.agents.install.download import redact_url
from sandboxagent.server.agents.install.registry import Registry, Snapshot
from sandboxagent.server.agents.install.registry_entries import current_platform
from sandboxagent.server.agents.manifest import load_manifest

REGISTRY_TIMEOUT = 2.0
"""Seconds to wait for the registry."""


def agents(subject: DoctorSubject) -> list[Finding]:
    """Check which agents are installed, whether they could run, and which credentials they would find."""
    try:
        catalog = open_catalog(subject.settings, subject.environ)
        catalog.agents()
    except SettingsError:
        return []  # The check of agents.toml reports the mistake.
    known = [read_facts(agent, catalog, subject.environ) for agent in catalog.agents()]
    seen = find_seen_credentials(subject.settings)
    for agent in known:
        if credentials := seen and seen.of(agent.id):
            agent.credentials, agent.credentials_available = credentials, any(each.found for each in credentials)
    broken = catalog.store.find_broken()
    found = [_broken(id) for id in broken]
    found += [each for agent in known if agent.installed for each in _check_installed(agent, seen)]
    found += [_unknown_program(agent) for agent in known if not agent.installed and agent.install.source == "path"]
    found += _crashes([each for each in known if each.installed])
    missing = [each for each in known if not each.installed and each.supported and each.install.source != "path"]
    found += _missing([each for each in missing if each.id not in broken], subject)
    return found + _spare(catalog)


def _check_installed(agent: AgentFacts, seen: SeenCredentials | None) -> list[Finding]:
    name = agent.id if agent.version is UNSET else f"{agent.id} {agent.version}"
    path, platform = agent.path or "", agent.install.platform or current_platform()
    reinstall = f"sandbox-agent agents install {agent.id} --reinstall"
    if not os.access(path, os.R_OK):
        return [
            Finding("agents", agent.id, "problem", f"{name} is installed, but its program is gone: {path}", reinstall)
        ]
    if platform != current_platform():
        sentence = f"{name} was installed for {platform}, and this machine is {current_platform()}"
        return [Finding("agents", agent.id, "problem", sentence, reinstall)]
    source = {"bundled": "comes with sandbox-agent", "path": f"is named by agents.toml: {path}"}
    verified = f"verified {agent.install.verified_at[:10]}" if agent.install.verified_at else "not verified"
    how = source.get(agent.install.source) or f"is installed ({agent.install.source}, {verified})"
    if not agent.credentials:
        return [Finding("agents", agent.id, "ok", f"{name} {how}")]
    there = [f"{each.kind} {each.name}" for each in agent.credentials if each.found]
    if there:
        return [Finding("agents", agent.id, "ok", f"{name} {how}; credentials: {join_words(there)}")]
    advice = f"sandbox-agent agents instructions {agent.id}"
    if seen is None:
        return [Finding("agents", agent.id, "warning", f"{name} {how}, but no credentials are found", advice)]
    advice += "; what you set now reaches the server with: sandbox-agent daemon restart"
    return [Finding("agents", agent.id, "warning", f"{name} {how}, but the server has no credentials for it", advice)]


def _crashes(agents: Sequence[AgentFacts]) -> list[Finding]:
    """Say what a crash of each agent takes with it."""
    shared = [each.id for each in agents if each.isolation == "agent"]
    own = [each.id for each in agents if each.isolation == "session"]
    found: list[Finding] = []
    if shared:
        sentence = (
            f"all sessions of an agent share its process: {join_words(shared, 20)}. A crash ends the turns of all "
            "these sessions; the next prompt resumes a session, if its agent can do that"
        )
        advice = 'To give each session a process of its own, set isolation = "session" in agents.toml.'
        found.append(Finding("agents", "shared-processes", "note", sentence, advice))
    if own:
        sentence = (
            f"each session has a process of its own: {join_words(own, 20)}. A crash ends the turn of that session "
            "alone; its next prompt resumes it, if its agent can do that"
        )
        found.append(Finding("agents", "own-processes", "note", sentence))
    return found


def _broken(id: str) -> Finding:
    sentence = f"the installation of {id} is damaged, or of another version of sandbox-agent"
    return Finding("agents", id, "problem", sentence, f"sandbox-agent agents install {id} --reinstall")


def _unknown_program(agent: AgentFacts) -> Finding:
    sentence = f"{agent.id}: the program that agents.toml names is not there"
    return Finding("agents", agent.id, "problem", sentence, "Correct command in agents.toml, or install that program.")


def _missing(agents: Sequence[AgentFacts], subject: DoctorSubject) -> list[Finding]:
    if not agents:
        return []
    ready = " (credentials are there)"
    names = [each.id + (ready if each.credentials and each.credentials_available else "") for each in agents]
    never = subject.settings.require_preinstall
    status: Status = "warning" if never and any(ready in name for name in names) else "note"
    advice = "sandbox-agent agents install <agent>" + ("" if never else "; else it is installed when it is first used")
    return [Finding("agents", "not-installed", status, f"not installed: {join_words(names, 20)}", advice)]


def _spare(catalog: Catalog) -> list[Finding]:
    folders = catalog.store.find_spare()
    names = sorted({path.parent.name for path in folders})
    busy = [name for name in names if _is_held(catalog.store.directory / f".{name}.lock")]
    found = [Finding("agents", "installing", "note", f"{name} is being installed or removed now") for name in busy]
    idle = [name for name in names if name not in busy]
    if idle:
        count = len([path for path in folders if path.parent.name in idle])
        folder = "1 folder is" if count == 1 else f"{count} folders are"
        sentence = f"{folder} left from earlier installs, or still used by running agents: {join_words(idle)}"
        found.append(
            Finding("agents", "left-over", "note", sentence, "A server removes what is not in use when it starts.")
        )
    return found


def _is_held(path: Path) -> bool:
    """Whether a process has locked a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The lock is shared and short, so that checks at the same time do not take each other for an install.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(descriptor)


# --- the registry -----------------------------------------------------------------------------------------------------


def registry(subject: DoctorSubject) -> list[Finding]:
    """Check whether the registry can be reached, and whether there is a local copy."""
    settings = subject.settings
    location = settings.acp_registry_url
    name = redact_url(location) if "://" in location else location
    kept = Registry(location, settings.agents_dir / ".registry").cached()
    copy = "there is no copy of it" if kept is None else f"there is a copy, {_age(kept)}"
    if subject.offline:
        return [Finding("registry", "registry", "note", f"the ACP registry was not asked (--offline); {copy}: {name}")]
    try:
        # The path gives the registry no place to store a copy: the doctor changes nothing.
        snapshot = asyncio.run(Registry(location, Path(os.devnull, "none"), timeout=REGISTRY_TIMEOUT).snapshot())
    except RegistryUnavailable as unavailable:
        sentence = f"the ACP registry cannot be used ({unavailable.fields.get('reason')}); {copy}: {name}"
        advice = "Check the network and proxies, or set SANDBOX_AGENT_ACP_REGISTRY_URL to another address or a file."
        if kept is None and load_manifest(None).agents:
            advice += " Without it, agents are installed in the versions that sandbox-agent knows."
        return [Finding("registry", "registry", "warning", sentence, advice)]
    found = [Finding("registry", "registry", "ok", f"the ACP registry has {len(snapshot.entries)} agents: {name}")]
    if snapshot.rejected:
        sentence = f"{len(snapshot.rejected)} entries of the ACP registry cannot be used: {snapshot.rejected[0]}"
        found.append(Finding("registry", "registry", "note", sentence))
    return found


def _age(snapshot: Snapshot) -> str:
    days = int((time.time() - snapshot.fetched_at) // 86400)
    return "of today" if days < 1 else "of yesterday" if days == 1 else f"{days} days old"
