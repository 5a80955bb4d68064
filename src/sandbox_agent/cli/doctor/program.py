"""Checks of the program itself: its version, the tools that come with it, and what the system lets it do."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sandbox_agent import __version__
from sandbox_agent.cli.doctor.finding import Finding, Status, Subject
from sandbox_agent.errors import SandboxAgentError

RUN = 2.0
"""Seconds that a tool has to say its version."""

FEW_FILES = 1024
FEW_WATCHES, FEW_INSTANCES = 8192, 64
_ANEW = "Install sandbox-agent anew: this comes with it."


def version(subject: Subject) -> list[Finding]:
    """Which program this is, and whether it is the one that a shell would run."""
    python = f"Python {platform.python_version()} ({sys.executable})"
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}"
    found = [_found("version", "ok", f"sandbox-agent {__version__}, {python}, {machine}")]
    own, other = Path(sys.executable).parent, shutil.which("sandbox-agent", path=subject.environ.get("PATH"))
    if other is None:
        advice = f'Add its directory to PATH: export PATH="{own}:$PATH"'
        found.append(_found("path", "note", "sandbox-agent is not on PATH", advice))
    elif not _belongs(Path(other), own):
        advice = "Call this one by its path, or remove the other, if it is not the one that you mean."
        found.append(_found("path", "note", f"on PATH there is another sandbox-agent: {other}", advice))
    return found


def _belongs(program: Path, directory: Path) -> bool:
    """Whether a program starts the Python of that directory."""
    try:
        first = program.resolve().read_bytes()[:1024].split(b"\n", 1)[0]
    except OSError:
        return False
    return program.resolve().parent == directory.resolve() or os.fsencode(directory) in first


def node(subject: Subject) -> list[Finding]:
    """The Node that runs npm and most agents."""
    from sandbox_agent.agents.install.tools import bundled_node

    return _tool("node", "Node", lambda: str(bundled_node().program))


def uv(subject: Subject) -> list[Finding]:
    """What installs agents that are Python packages."""
    from uv import find_uv_bin

    return _tool("uv", "uv", find_uv_bin)


def ripgrep(subject: Subject) -> list[Finding]:
    """What searches files."""
    from sandbox_agent.host.search.ripgrep import find_program

    return _tool("ripgrep", "ripgrep", find_program)


def _tool(name: str, title: str, find: Callable[[], str]) -> list[Finding]:
    try:
        program = find()
    except (SandboxAgentError, FileNotFoundError) as missing:
        return [_found(name, "problem", f"{title} is missing: {missing}", _ANEW)]
    try:
        run = subprocess.run(
            [program, "--version"], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN
        )
    except OSError as error:
        return [_found(name, "problem", f"{title} cannot be started: {error.strerror}: {program}", _ANEW)]
    except subprocess.TimeoutExpired:
        return [_found(name, "warning", f"{title} did not say its version within {RUN:g} s: {program}")]
    told = run.stdout.strip().split("\n")[0].removeprefix(title.lower()).strip().removeprefix("v")
    if run.returncode != 0:
        return [_found(name, "problem", f"{title} does not run (exit code {run.returncode}): {program}", _ANEW)]
    return [_found(name, "ok", f"{title} {told} runs: {program}")]


# --- limits -----------------------------------------------------------------------------------------------------------


def open_files(subject: Subject) -> list[Finding]:
    """Each agent, terminal, client and watch needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        told = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
        return [_limit("open-files", "ok", f"a process may have {told} files open")]
    more = "4096" if hard == resource.RLIM_INFINITY or hard >= 4096 else str(hard)
    advice = f"Where the server is started: ulimit -n {more}"
    sentence = f"a process may have only {soft} files open: many clients or agents at once will not fit"
    return [_limit("open-files", "warning", sentence, advice)]


def watches(subject: Subject) -> list[Finding]:
    """What the kernel lets one user watch, where it is Linux."""
    least = {"max_user_watches": FEW_WATCHES, "max_user_instances": FEW_INSTANCES}
    limits = {name: _kernel(f"fs/inotify/{name}") for name in least}
    few = [name for name, value in limits.items() if value is not None and value < least[name]]
    if few:
        settings = " ".join(f"fs.inotify.{name}={least[name] * 8}" for name in few)
        sentence = f"large directories cannot be watched for changes: {_limits(limits)}"
        return [_limit("watches", "warning", sentence, f"As root: sysctl {settings}")]
    if None in limits.values():
        return []
    return [_limit("watches", "ok", f"directories can be watched: {_limits(limits)}")]


def _limits(limits: dict[str, int | None]) -> str:
    return ", ".join(f"fs.inotify.{name} is {value}" for name, value in limits.items())


def _kernel(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


def _found(name: str, status: Status, sentence: str, advice: str | None = None) -> Finding:
    return Finding(area="program", name=name, status=status, sentence=sentence, advice=advice)


def _limit(name: str, status: Status, sentence: str, advice: str | None = None) -> Finding:
    return Finding(area="limits", name=name, status=status, sentence=sentence, advice=advice)
