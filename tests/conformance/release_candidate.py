"""The newest release candidate of the Python SDK, in an environment of its own beside ours."""

import subprocess
import sys
from pathlib import Path

import pytest

WANTED = "agent-client-protocol[http]==1.0.0rc3"
LONGEST = 300.0


def release_candidate() -> Path:
    """Its interpreter; made on first use. Skips the test where it cannot be fetched."""
    place = Path(sys.prefix) / "conformance" / WANTED.partition("==")[2]
    program = place / "bin" / "python"
    ready = place / "ready"
    if ready.exists():
        return program
    uv = [sys.executable, "-m", "uv"]
    steps = (
        [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(place)],
        [*uv, "pip", "install", "--quiet", "--python", str(program), WANTED],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, timeout=LONGEST)
        if done.returncode:
            pytest.skip(f"the release candidate cannot be installed here: {done.stderr.strip()[-300:]}")
    ready.touch()
    return program
