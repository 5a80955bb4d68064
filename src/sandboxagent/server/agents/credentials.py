"""Find which credentials of an agent are set on this machine, by name and path, never by value."""

import re
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from sandboxagent.protocol.views import Credential
from sandboxagent.server.agents.manifest import Agent

_VARIABLE = r"\$(\w+)"


def find_credentials(agent: Agent, environ: Mapping[str, str]) -> list[Credential]:
    """Return all credentials that the agent could use, and whether each is there.

    A file whose path names an unset variable is left out.
    """
    seen = ChainMap(dict(agent.env), cast("dict[str, str]", environ))
    found = [Credential("variable", name, bool(seen.get(name))) for name in agent.credentials]
    paths = {path: _expand(path, seen) for path in agent.credential_files}
    return found + [Credential("file", name, _is_file(path)) for name, path in paths.items() if path is not None]


def find_missing_credentials(agent: Agent, environ: Mapping[str, str]) -> list[str]:
    """Return the variables of which one would suffice, if none of the agent's credentials is there.

    Otherwise return an empty list.
    """
    return [] if has_credentials(agent, environ) else list(agent.credentials)


def has_credentials(agent: Agent, environ: Mapping[str, str]) -> bool:
    """Whether one of the agent's credentials is there, or it needs none."""
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
