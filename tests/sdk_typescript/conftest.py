"""The TypeScript SDK, built; and Node to run it."""

import fcntl
import subprocess

import pytest

from tests.sdk_typescript.node import LONGEST, SDK, node, tsc


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build what has changed; at once when nothing has. Tests in other processes wait, and then read what is built."""
    assert (SDK / "node_modules").is_dir(), "sdks/typescript/node_modules is not there; ./dev check makes it"
    (SDK / ".build").mkdir(exist_ok=True)
    with (SDK / ".build" / "pytest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [node(), tsc(), "--build", SDK / "tests"], capture_output=True, text=True, timeout=LONGEST
        )
        assert done.returncode == 0, done.stdout
