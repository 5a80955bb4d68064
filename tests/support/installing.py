"""The packages as others get them: built here, and installed where nothing else is.

What they depend on comes from a package index, or from the cache of one. Where there is neither, tests are skipped.
"""

import fcntl
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shutil import copy2

import pytest
from uv import find_uv_bin

from sandboxagent.server.agents.install.tools import bundled_node
from tools.release import CHECKSUMS, is_of_release

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "sdks" / "typescript"
SAID = "said.txt"
OFFLINE = {"UV_OFFLINE": "1", "npm_config_offline": "true"}
"""Variables with which uv and npm use no network."""
LONGEST = 300
"""Seconds, on a machine that is busy."""


def build_packages(factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, which one worker builds for all.

    `./dev pack` makes them where it can: then the folder has a whole release, and in `SAID` what it said.
    """
    own = factory.getbasetemp()
    everybodys = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    built = everybodys / "packages"
    with (everybodys / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            making = everybodys / "packages-unfinished"
            making.mkdir(exist_ok=True)
            if set_up_by_dev():
                said = run(sys.executable, "dev", "pack", cwd=ROOT)
                for file in filter(is_of_release, (ROOT / "dist").iterdir()):
                    copy2(file, making)
                copy2(ROOT / "dist" / CHECKSUMS, making)
                (making / SAID).write_text(said)
            else:
                targets = ["--target", "wheel", "--target", "sdist", "--directory", str(making)]
                run(sys.executable, "-m", "hatchling", "build", *targets, cwd=ROOT)
            making.rename(built)
    return built


def set_up_by_dev() -> bool:
    """Whether .venv is as ./dev wants it, so that it touches nothing there."""
    inputs = sha256((ROOT / "requirements.lock").read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = ROOT / ".venv" / ".dev-stamp"
    return stamp.exists() and stamp.read_text().endswith(f" in {ROOT}\n{inputs}")


def install_wheel(factory: pytest.TempPathFactory, directory: Path, extra: str = "", *flags: str) -> Path:
    """Install the wheel into an environment of its own; gives the folder of its programs."""
    (wheel,) = build_packages(factory).glob("*.whl")
    run(find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(directory / "venv"))
    programs = directory / "venv" / "bin"
    install = [find_uv_bin(), "--system-certs", "--quiet", "pip", "install", "--python", str(programs / "python")]
    install_or_skip([*install, *flags, f"{wheel}{extra}"], [*install, "--dry-run", "msgspec"], directory)
    return programs


def install_tarball(factory: pytest.TempPathFactory, directory: Path) -> Path:
    """Install the TypeScript SDK, as packed, into a project; gives the project's folder."""
    npm = [str(bundled_node().program), str(bundled_node().npm)]
    tarball = next(build_packages(factory).glob("*.tgz"), None)
    if tarball is None:
        run(*npm, "pack", "--ignore-scripts", "--pack-destination", str(directory), cwd=SDK)
        (tarball,) = directory.glob("*.tgz")
    (directory / "package.json").write_text('{"type": "module"}')
    quiet = ["--no-audit", "--no-fund", "--prefer-offline"]
    install_or_skip([*npm, "install", *quiet, str(tarball)], [*npm, "view", "zod", "version"], directory)
    return directory


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command prints, which must not fail."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def install_or_skip(command: list[str], probe: list[str], cwd: Path) -> None:
    """Install from what this machine has, else from a package index; when none can be reached, skip."""
    done = None
    for further in (OFFLINE, {}):
        environment = {**os.environ, **further}
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LONGEST)
        if done.returncode == 0:
            return
    assert done is not None
    index = subprocess.run(probe, cwd=cwd, capture_output=True, text=True, timeout=LONGEST)
    if index.returncode:
        pytest.skip("no package index is reachable, and the cache does not have what is needed")
    raise AssertionError(done.stderr)
