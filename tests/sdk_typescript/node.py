"""Where the TypeScript SDK and its tools are, and how its programs are run."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

from sandboxagent.server.agents.install.tools import bundled_node
from tests.support.fleet_of_one import STAND_IN
from tests.support.fork_server import fork_server
from tests.support.running import SCRIPTED, THROUGH_GATEWAY

SDK = Path(__file__).resolve().parents[2] / "sdks" / "typescript"
LONGEST = 600.0
"""Seconds that a program may take."""


def node() -> str:
    return str(bundled_node().program)


def npm() -> list[str]:
    return [node(), str(bundled_node().npm)]


def tsc() -> str:
    return str(SDK / "node_modules" / "typescript" / "bin" / "tsc")


def build() -> None:
    """Build what has changed; at once when nothing has. Tests in other processes wait, and then read what is built."""
    assert (SDK / "node_modules").is_dir(), "sdks/typescript/node_modules is not there; ./dev check makes it"
    (SDK / ".build").mkdir(exist_ok=True)
    with (SDK / ".build" / "pytest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [node(), tsc(), "--build", SDK / "tests"], capture_output=True, text=True, timeout=LONGEST
        )
        assert done.returncode == 0, done.stdout
        built = SDK / "dist" / "browser.js"
        sources = [*(SDK / "dist").rglob("*.js"), SDK / "scripts" / "browser.mjs"]
        if not built.exists() or built.stat().st_mtime_ns <= max(
            path.stat().st_mtime_ns for path in sources if path != built
        ):
            done = subprocess.run(
                [node(), SDK / "scripts" / "browser.mjs"], capture_output=True, text=True, timeout=LONGEST
            )
            assert done.returncode == 0, done.stderr


def suites() -> list[str]:
    """The names of the suites, by their sources: what was built once and is gone is not run."""
    return sorted(path.name.removesuffix(".test.ts") for path in (SDK / "tests").glob("*.test.ts"))


def _program(*, gateway: bool) -> list[str]:
    """What is `sandbox-agent` for a suite."""
    if not gateway and THROUGH_GATEWAY not in os.environ:
        return fork_server().stand_in
    return [sys.executable, "-c", STAND_IN, str(SDK.parents[1])]


def run_suite(name: str, program: str | None = None, *, gateway: bool = False) -> subprocess.CompletedProcess[str]:
    """Run one suite in a process of its own, with its servers behind gateways if you like."""
    own = {
        "SANDBOX_AGENT_TEST_PYTHON": sys.executable,
        "SANDBOX_AGENT_TEST_PROGRAM": json.dumps(_program(gateway=gateway)),
        "SANDBOX_AGENT_TEST_SCRIPTED": str(SCRIPTED),
    }
    # A test that fails may leave something open; that is no reason to wait for it.
    # Without `--test`, which is for many files: it would start a second process for this one.
    flags = ["--test-force-exit", "--test-reporter=spec"]
    return subprocess.run(
        [program or node(), *flags, str(SDK / "dist-test" / f"{name}.test.js")],
        cwd=SDK,
        env={**os.environ, **own, "NO_COLOR": "1", "FORCE_COLOR": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
