"""Values that are looked up when you press the tab key: agents here; sessions and files of a server that runs.

Whatever cannot be read, or does not come at once, is as good as not there.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from sandbox_agent.cli.completion.words import Pairs, Values
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.errors import SettingsError

PATIENCE = 0.5
"""Seconds for which you wait after pressing a key."""

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


def sessions(given: Mapping[str, str], current: str) -> Pairs:
    """The sessions of the server, newest first."""
    return [
        (str(each["sessionId"]), f"{each.get('agent')}: {each.get('title') or each.get('cwd')}")
        for each in _listed(given, "/v1/sessions", "sessions")
    ]


def remote_paths(given: Mapping[str, str], current: str) -> Pairs:
    """What the server has in the directory that is written so far; a directory ends with a slash."""
    from urllib.parse import urlencode

    directory, slash, name = current.rpartition("/")
    query = {"path": directory + slash or ".", "limit": "1000"}
    query |= {"sessionId": given["session"]} if given.get("session") else {}
    found = _listed(given, f"/v1/fs/entries?{urlencode(query)}", "entries")
    names = {str(each["name"]): each.get("entryType") == "directory" for each in found}
    return [
        (directory + slash + each + ("/" if folder else ""), "")
        for each, folder in names.items()
        if not each.startswith(".") or name.startswith(".")
    ]


def _listed(given: Mapping[str, str], path: str, key: str) -> list[dict[str, object]]:
    """A list that the server answers with."""
    import json
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    from sandbox_agent.cli.endpoint import endpoint

    try:
        server = endpoint(Arguments(given), os.environ)
        scheme, _, rest = server.url.partition("://")
        host, _, prefix = rest.partition("/")
        # No proxy: it takes longer than you would wait for a completion.
        connection = (HTTPSConnection if scheme == "https" else HTTPConnection)(host, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
        try:
            connection.request("GET", f"/{prefix}{path}" if prefix else path, headers=headers)
            return json.loads(connection.getresponse().read())[key]
        finally:
            connection.close()
    except (OSError, HTTPException, SettingsError, ValueError, KeyError):
        return []


VALUES: Mapping[str, Values] = {"AGENT": agents, "SESSION": sessions, "REMOTE": remote_paths}
"""By the metavar of what takes them."""
