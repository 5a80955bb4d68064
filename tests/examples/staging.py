"""Runs examples as their readers would: as programs, with an agent, in a directory of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sandboxagent.server.agents.install.tools import bundled_node
from tests.support.fork_server import fork_server
from tests.support.running import scripted

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TYPESCRIPT = ROOT / "sdks" / "typescript"
TIMEOUT = 240.0
"""Seconds for a program that starts a server that starts an agent, on a machine that has much else to do."""

ALLOW_OR_REJECT = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class Stage:
    """A project to work in, and a home without settings; the agent `scripted` plays its script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.project = directory / "project"
        config = directory / "config"
        for each in (self.project, config):
            each.mkdir()
        (config / "agents.toml").write_text(f"[agents.scripted]\n{scripted()}\n")
        registry = directory / "registry.json"
        registry.write_text('{"version": "1.0.0", "agents": []}')
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_AGENT_", "PG"))}
        self.environment = clean | {
            "MOCK_AGENT_STATE_DIR": str(directory / "mock"),
            "SANDBOX_AGENT_ACP_REGISTRY_URL": str(registry),
            "SANDBOX_AGENT_BIN": str(fork_server().programs / "sandbox-agent"),
            "SANDBOX_AGENT_CONFIG_DIR": str(config),
            "XDG_DATA_HOME": str(directory / "data"),
            "XDG_STATE_HOME": str(directory / "state"),
        }

    def run(
        self, command: list[str], *, says: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; `says` is what a person types."""
        return subprocess.run(
            command,
            cwd=self.project,
            env=self.environment | dict(environment or {}),
            input=says,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )

    def shows(
        self, command: list[str], *arguments: str, says: str = "", environment: Mapping[str, str] | None = None
    ) -> str:
        """What a program prints; it must end well, and say nothing of trouble."""
        done = self.run([*command, *arguments], says=says, environment=environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout


def python(example: str) -> list[str]:
    """The command that runs an example in Python."""
    return [sys.executable, "-W", "error", str(EXAMPLES / "python" / example)]


class TypeScript:
    """The examples in TypeScript, in a directory that has the SDK installed."""

    def __init__(self, directory: Path) -> None:
        assert (TYPESCRIPT / "dist" / "index.js").exists(), "the TypeScript SDK is not built; ./dev check does that"
        self.directory = directory / "typescript"
        shutil.copytree(EXAMPLES / "typescript", self.directory, ignore=shutil.ignore_patterns("node_modules", "dist"))
        packages = self.directory / "node_modules"
        packages.mkdir()
        (packages / "sandboxagent").symlink_to(TYPESCRIPT)
        for name in ("@types", "typescript"):
            (packages / name).symlink_to(TYPESCRIPT / "node_modules" / name)

    def command(self, example: str) -> list[str]:
        """The command that runs an example."""
        return [str(bundled_node().program), str(self.directory / example)]
