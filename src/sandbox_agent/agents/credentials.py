"""Which credentials of an agent are there. Says names and paths, never a value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox_agent.agents.manifest import Agent


@dataclass(frozen=True, slots=True)
class Credential:
    """One thing that would let an agent reach a model."""

    kind: Literal["variable", "file"]
    name: str
    found: bool


def credentials(agent: Agent, environ: Mapping[str, str]) -> list[Credential]:
    """All that the agent could use, and whether it is there. A file whose path names an unset variable is left out."""
    found = [Credential("variable", name, bool({**environ, **agent.env}.get(name))) for name in agent.credentials]
    paths = {path: _expanded(path, {**environ, **agent.env}) for path in agent.credential_files}
    return found + [Credential("file", name, path.is_file()) for name, path in paths.items() if path is not None]


def available(agent: Agent, environ: Mapping[str, str]) -> bool:
    """Whether one of them is there, or none is needed."""
    known = credentials(agent, environ)
    return not known or any(each.found for each in known)


def _expanded(path: str, environ: Mapping[str, str]) -> Path | None:
    names = re.findall(r"\$(\w+)", path)
    if any(not environ.get(name) for name in names):
        return None
    for name in names:
        path = path.replace(f"${name}", environ[name])
    if path.startswith("~/"):
        path = environ.get("HOME", str(Path.home())) + path[1:]
    return Path(path)
