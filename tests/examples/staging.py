"""Runs examples as their readers would: as programs, with an agent, in a directory of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.running import scripted

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 30.0
"""Seconds for a program that starts a server that starts an agent, on a machine that has much else to do."""

ALLOW_OR_REJECT = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class Stage:
    """A project to work in, and a home without anybody's settings; the agent `scripted` plays what it is told."""

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
            "SANDBOX_AGENT_CONFIG_DIR": str(config),
            "XDG_DATA_HOME": str(directory / "data"),
            "XDG_STATE_HOME": str(directory / "state"),
        }

    def run(
        self, command: list[str], *, says: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; `says` is what somebody types."""
        return subprocess.run(
            command,
            cwd=self.project,
            env=self.environment | dict(environment or {}),
            input=says,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def python(
        self, example: str, *arguments: str, says: str = "", environment: Mapping[str, str] | None = None
    ) -> str:
        """What an example in Python prints; it must end well, and say nothing of trouble."""
        done = self.run([*python(example), *arguments], says=says, environment=environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout


def python(example: str) -> list[str]:
    """The command that runs an example in Python."""
    return [sys.executable, "-W", "error", str(EXAMPLES / "python" / example)]
