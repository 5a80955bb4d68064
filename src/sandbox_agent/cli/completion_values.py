"""Values that are looked up when somebody presses the tab key. Whatever cannot be read is as good as not there."""

import os
from collections.abc import Mapping
from pathlib import Path

from sandbox_agent.cli.completion_words import Pairs, Values
from sandbox_agent.errors import SettingsError

_WHERE = ("config_dir", "data_dir", "agents_dir", "agents_file")


def agents(given: Mapping[str, str], current: str) -> Pairs:
    """The agents that there are; once a letter is typed, also those of the ACP registry, as far as it was read."""
    from sandbox_agent.agents.manifest import is_id, load_manifest
    from sandbox_agent.settings import load

    try:
        settings = load({name: value for name, value in given.items() if name in _WHERE}, os.environ, _WHERE)
        known = load_manifest(settings.agents_file).agents
    except SettingsError:
        return [(agent.id, agent.title) for agent in load_manifest(None).agents]
    named = {slug for agent in known for slug in (agent.id, *agent.registry)}
    others = {path.parent.name: "installed" for path in settings.agents_dir.glob("*/installed.json")}
    if current:
        others |= _registry(settings.agents_dir / ".registry/registry.json")
    more = [(id, text) for id, text in sorted(others.items()) if is_id(id) and id not in named]
    return [*((agent.id, agent.title) for agent in known), *more]


def _registry(copy: Path) -> dict[str, str]:
    from sandbox_agent.agents.install.entries import NotARegistry, parse

    try:
        return {entry.id: entry.name for entry in parse(copy.read_bytes(), "file").entries.values()}
    except (OSError, NotARegistry):
        return {}


VALUES: Mapping[str, Values] = {"AGENT": agents}
"""By the metavar of what takes them."""
