"""The TypeScript SDK's own tests, which Node runs against servers that they start: sdks/typescript/tests."""

import shutil
import subprocess

import pytest

from tests.sdk_typescript.node import LONGEST, run_suite, suites
from tests.support.nats import PROGRAM

OLDEST = "v20."


@pytest.mark.parametrize("name", suites())
def test_the_suite_passes(name: str) -> None:
    done = run_suite(name)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr


def test_the_suite_passes_at_a_gateway() -> None:
    """All of them do, with `--gateway`; this one in every run."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")

    done = run_suite("following", gateway=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_expected_suites_exist() -> None:
    assert {"turns", "asking", "reconnecting", "embedded", "protocol"} <= set(suites())


@pytest.mark.parametrize("name", ["turns", "raw"])
def test_the_suite_passes_with_the_oldest_node(name: str) -> None:
    program = shutil.which("node")
    if program is None or not _version(program).startswith(OLDEST):
        pytest.skip("there is no Node 20 on this machine")

    done = run_suite(name, program)

    assert done.returncode == 0, done.stdout + done.stderr


def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=LONGEST).stdout
