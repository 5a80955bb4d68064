"""The Inspector's own tests, which Vitest runs: those beside its code."""

import json
import subprocess
from pathlib import Path

from sandboxagent.server.agents.install.tools import bundled_node

INSPECTOR = Path(__file__).resolve().parents[2] / "inspector"
LONGEST = 600
"""Seconds, on a machine that is busy."""


def test_the_tests_beside_the_code_of_the_inspector_pass() -> None:
    vitest = INSPECTOR / "node_modules" / "vitest" / "vitest.mjs"
    assert vitest.exists(), "inspector/node_modules is not there; ./dev check makes it"
    # One process for all files: a new one for each, with a document of its own, costs four times as much.
    command = [bundled_node().program, vitest, "run", "--maxWorkers", "1", "--no-isolate"]
    done = subprocess.run(command, cwd=INSPECTOR, capture_output=True, text=True, timeout=LONGEST)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_has_a_hash_for_every_package_and_no_address_of_one() -> None:
    packages = json.loads((INSPECTOR / "package-lock.json").read_text())["packages"]

    assert [name for name, facts in packages.items() if name and not facts.get("integrity")] == []
    assert [name for name, facts in packages.items() if "resolved" in facts] == []
