"""Check this machine: the program, its tools, the system's limits, directories and settings."""

import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sandboxagent import __version__
from sandboxagent.cli.doctor import DoctorSubject, Finding, Status, join_words, size
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.core.data_directory import Untrusted, check_owner
from sandboxagent.core.settings import OPTIONS, Settings, load
from sandboxagent.core.settings.options import PREFIX
from sandboxagent.core.settings.sources import read_toml
from sandboxagent.protocol.errors import SandboxAgentError, SettingsError
from sandboxagent.server.log.damage import Damage

RUN_TIMEOUT = 2.0
"""Seconds for a tool to print its version."""

FEW_FILES = 1024
FEW_WATCHES, FEW_INSTANCES = 8192, 64
_ANEW = "Reinstall sandbox-agent: this comes with it."


def version(subject: DoctorSubject) -> list[Finding]:
    """Report the version of this program, and whether a shell would run this one."""
    python = f"Python {platform.python_version()} ({sys.executable})"
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}"
    found = [Finding("program", "version", "ok", f"sandbox-agent {__version__}, {python}, {machine}")]
    own, other = Path(sys.executable).parent, shutil.which("sandbox-agent", path=subject.environ.get("PATH"))
    if other is None:
        advice = f'Add its directory to PATH: export PATH="{own}:$PATH"'
        found.append(Finding("program", "path", "note", "sandbox-agent is not on PATH", advice))
    elif not _belongs(Path(other), own):
        advice = "If you mean this one, call it by its path, or remove the other."
        found.append(Finding("program", "path", "note", f"another sandbox-agent is on PATH: {other}", advice))
    return found


def _belongs(program: Path, directory: Path) -> bool:
    """Whether a program is in that directory, or starts the Python there."""
    try:
        first = program.resolve().read_bytes()[:1024].split(b"\n", 1)[0]
    except OSError:
        return False
    return program.resolve().parent == directory.resolve() or os.fsencode(directory) in first


def node(subject: DoctorSubject) -> list[Finding]:
    """Check the Node that runs npm and most agents."""
    from sandboxagent.server.agents.install.tools import bundled_node

    return _tool("node", "Node", lambda: str(bundled_node().program))


def uv(subject: DoctorSubject) -> list[Finding]:
    """Check uv, which installs agents that are Python packages."""
    from uv import find_uv_bin

    return _tool("uv", "uv", find_uv_bin)


def ripgrep(subject: DoctorSubject) -> list[Finding]:
    """Check ripgrep, which searches files."""
    from sandboxagent.server.files.search import find_ripgrep

    return _tool("ripgrep", "ripgrep", find_ripgrep)


def _tool(name: str, title: str, find: Callable[[], str]) -> list[Finding]:
    try:
        program = find()
    except (SandboxAgentError, FileNotFoundError) as missing:
        return [Finding("program", name, "problem", f"{title} is missing: {missing}", _ANEW)]
    try:
        run = subprocess.run(
            [program, "--version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
        )
    except OSError as error:
        return [Finding("program", name, "problem", f"{title} cannot be started: {error.strerror}: {program}", _ANEW)]
    except subprocess.TimeoutExpired:
        return [Finding("program", name, "warning", f"{title} printed no version within {RUN_TIMEOUT:g} s: {program}")]
    told = run.stdout.strip().split("\n")[0].removeprefix(title.lower()).strip().removeprefix("v")
    if run.returncode != 0:
        return [
            Finding("program", name, "problem", f"{title} does not run (exit code {run.returncode}): {program}", _ANEW)
        ]
    return [Finding("program", name, "ok", f"{title} {told} runs: {program}")]


# --- limits -----------------------------------------------------------------------------------------------------------


def open_files(subject: DoctorSubject) -> list[Finding]:
    """Check the limit of open files. Each agent, terminal, client and watch needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        told = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
        return [Finding("limits", "open-files", "ok", f"a process may have {told} files open")]
    more = "4096" if hard == resource.RLIM_INFINITY or hard >= 4096 else str(hard)
    advice = f"Where the server is started: ulimit -n {more}"
    sentence = f"a process may have only {soft} files open, too few for many clients or agents at once"
    return [Finding("limits", "open-files", "warning", sentence, advice)]


def watches(subject: DoctorSubject) -> list[Finding]:
    """Check how many files and directories the kernel lets one user watch, if it is Linux."""
    least = {"max_user_watches": FEW_WATCHES, "max_user_instances": FEW_INSTANCES}
    limits = {name: _kernel(f"fs/inotify/{name}") for name in least}
    few = [name for name, value in limits.items() if value is not None and value < least[name]]
    if few:
        settings = " ".join(f"fs.inotify.{name}={least[name] * 8}" for name in few)
        sentence = f"large directories cannot be watched for changes: {_limits(limits)}"
        return [Finding("limits", "watches", "warning", sentence, f"As root: sysctl {settings}")]
    if None in limits.values():
        return []
    return [Finding("limits", "watches", "ok", f"directories can be watched: {_limits(limits)}")]


def _limits(limits: dict[str, int | None]) -> str:
    return ", ".join(f"fs.inotify.{name} is {value}" for name, value in limits.items())


def _kernel(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


LOW_SPACE_BYTES, MIN_SPACE_BYTES = 1 << 30, 100 << 20
"""Bytes of free space; an agent with all its packages takes some hundred MiB."""


def data(subject: DoctorSubject) -> list[Finding]:
    """Check the data directory, which has the session log."""
    path = subject.settings.data_dir
    found = _writable("data", path) + _room("data", path)
    if _is_public(path):
        sentence = f"other users of this machine can look into the data directory, where the session log is: {path}"
        found.append(
            Finding("directories", "data-private", "note", sentence, f"If that is not meant: chmod 700 {path}")
        )
    return found + _check_trust(path) + _check_damage(path)


def _check_trust(path: Path) -> list[Finding]:
    try:
        check_owner(path)
    except Untrusted as reason:
        advice = "A server does not start there without --trust-data-dir."
        return [
            Finding(
                "directories", "data-trusted", "problem", f"the data directory is not safe to use: {reason}", advice
            )
        ]
    except OSError:
        pass
    return []


def _check_damage(path: Path) -> list[Finding]:
    """Report damage of the log that a server has found and nobody has acknowledged."""
    reason = Damage(path / "log.db").reason
    advice = "The server serves all that it could read, and keeps the damaged files there."
    return (
        []
        if reason is None
        else [Finding("directories", "log-damaged", "problem", f"the session log was damaged: {reason}", advice)]
    )


def agents(subject: DoctorSubject) -> list[Finding]:
    """Check the directory where agents are installed."""
    path, around = subject.settings.agents_dir, subject.settings.data_dir
    found = _writable("agents", path)
    here, there = _nearest(path), _nearest(around)
    if here.stat().st_dev != there.stat().st_dev:
        found += _room("agents", path)
    if os.statvfs(here).f_flag & getattr(os, "ST_NOEXEC", 0):
        sentence = f"the agents directory is on a file system where nothing may be run (noexec): {path}"
        found.append(Finding("directories", "agents-noexec", "problem", sentence, "Choose another with --agents-dir."))
    return found


def config(subject: DoctorSubject) -> list[Finding]:
    """Check the directory of config.toml and the other configuration. No program writes there."""
    path = subject.settings.config_dir
    if not os.path.lexists(path):
        return [
            Finding(
                "directories", "config", "ok", f"there is no configuration directory, so the defaults apply: {path}"
            )
        ]
    if not path.is_dir():
        return [
            Finding(
                "directories",
                "config",
                "problem",
                f"the configuration directory is not a directory: {path}",
                "Move it away.",
            )
        ]
    if not os.access(path, os.R_OK | os.X_OK):
        sentence = f"the configuration directory cannot be read by {_user(os.geteuid())}: {path}"
        return [
            Finding(
                "directories", "config", "problem", sentence, f"Let {_user(os.geteuid())} read it, or use --config-dir."
            )
        ]
    return [Finding("directories", "config", "ok", f"the configuration directory can be read: {path}")]


def _writable(name: str, path: Path) -> list[Finding]:
    title, user = f"the {name} directory", _user(os.geteuid())
    other = f"Choose another with --{name}-dir"
    nearest = _nearest(path)
    if nearest != path:
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            sentence = f"{title} does not exist, and {user} cannot create it in {nearest}: {path}"
            return [Finding("directories", name, "problem", sentence, f"{other}, or create it and give it to {user}.")]
        return [Finding("directories", name, "ok", f"{title} does not exist yet; it is created when needed: {path}")]
    if not path.is_dir():
        return [
            Finding("directories", name, "problem", f"{title} is not a directory: {path}", f"{other}, or move it away.")
        ]
    owner = path.stat().st_uid
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        # Agents installed in an image can be used without the right to write there.
        status: Status = "problem" if name == "data" else "warning"
        sentence = f"{title} belongs to {_user(owner)} and cannot be written by {user}: {path}"
        return [
            Finding("directories", name, status, sentence, f"{other}, or give it to {user}: chown -R {user} {path}")
        ]
    if owner != os.geteuid():
        sentence = f"{title} belongs to {_user(owner)}, and this is {user}: {path}"
        advice = f"Run sandbox-agent as {_user(owner)}, who may be unable to use files that {user} creates there."
        return [Finding("directories", name, "warning", sentence, advice)]
    return [Finding("directories", name, "ok", f"{title} belongs to {user} and can be written: {path}")]


def _room(name: str, path: Path) -> list[Finding]:
    nearest = _nearest(path)
    free, about = shutil.disk_usage(nearest).free, os.statvfs(nearest)
    advice = "Make room, or choose another place with --data-dir or --agents-dir."
    if about.f_files and about.f_favail < 1000:
        sentence = f"there is room for only {about.f_favail} more files where the {name} directory is"
        return [
            Finding("directories", f"{name}-room", "problem" if about.f_favail < 10 else "warning", sentence, advice)
        ]
    status: Status = "problem" if free < MIN_SPACE_BYTES else "warning" if free < LOW_SPACE_BYTES else "ok"
    sentence = f"{size(free)} are free where the {name} directory is"
    return [Finding("directories", f"{name}-room", status, sentence, None if status == "ok" else advice)]


def _is_public(path: Path) -> bool:
    """Whether every user of this machine can list a directory."""
    try:
        return bool(path.stat().st_mode & stat.S_IRWXO) and all(
            each.stat().st_mode & stat.S_IXOTH for each in path.parents
        )
    except OSError:
        return False


def _nearest(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # Containers often run as a user that has no name.
        return f"user {number}"


PLACES = ("config_dir", "data_dir", "agents_dir", "agents_file", "permissions_file", "acp_registry_url")
FLAGS = (*PLACES, "host", "port")
"""Options that the doctor accepts, to check a server that does not run."""

_WRONG = "Correct it: until then, no server starts here."


def read_settings(arguments: ParsedArguments, environ: Mapping[str, str]) -> tuple[Settings | None, list[Finding]]:
    """Load a server's settings and report mistakes. With a mistake, load only `PLACES`; None if that fails, too."""
    flags = {name: value for name, value in arguments.values.items() if name in FLAGS}
    try:
        found = load(flags, environ)
    except SettingsError as mistake:
        told = [Finding("configuration", "settings", "problem", str(mistake), _WRONG)]
        for file in (True, False):
            try:
                return load(flags, environ, PLACES, file=file), told
            except SettingsError:
                continue
        return None, told
    missing = [str(root) for root in found.fs_root if not root.is_dir()]
    told = [
        Finding("configuration", "fs-root", "problem", f"--fs-root: there is no directory {root}", _WRONG)
        for root in missing
    ]
    path = found.config_dir / "config.toml"
    told.append(
        Finding("configuration", "settings", "ok", f"{path} is in order" if path.exists() else f"there is no {path}")
    )
    return found, told


def secrets(subject: DoctorSubject) -> list[Finding]:
    """Report files with a token that other users can read."""
    path = subject.settings.config_dir / "config.toml"
    try:
        has_token = "token" in read_toml(path)[0]
    except SettingsError:
        has_token = False
    files = [path] if has_token else []
    files += [subject.settings.token_file] if subject.settings.token_file else []
    return [
        Finding(
            "configuration",
            "token-private",
            "warning",
            f"other users of this machine can read the token in {each}",
            _private(each),
        )
        for each in files
        if _mode(each) & (stat.S_IRGRP | stat.S_IROTH)
    ]


def variables(subject: DoctorSubject) -> list[Finding]:
    """Report environment variables that look like settings: the unknown and the known ones."""
    told = [
        Finding("configuration", "variable", "warning", warning, "Correct its name, or unset it.")
        for warning in subject.settings.warnings
    ]
    known = {option.variable for option in OPTIONS} | {f"{PREFIX}ENDPOINT"}
    names = sorted(name for name in subject.environ if name in known and subject.environ[name])
    if names:
        told.append(Finding("configuration", "variables", "ok", f"set by the environment: {join_words(names, 12)}"))
    return told


def agents_file(subject: DoctorSubject) -> list[Finding]:
    """Check agents.toml, the user's own agents."""
    from sandboxagent.server.agents.manifest import load_manifest

    path = subject.settings.agents_file
    try:
        load_manifest(path)
    except SettingsError as mistake:
        return [Finding("configuration", "agents-file", "problem", str(mistake), _WRONG)]
    return [Finding("configuration", "agents-file", "ok", f"{path} is in order")] if path.exists() else []


def permissions_file(subject: DoctorSubject) -> list[Finding]:
    """Check the permission rules, which decide before people are asked."""
    from sandboxagent.server.permissions.file import load_rules

    path = subject.settings.permissions_file
    try:
        count = len(load_rules(path))
    except SettingsError as mistake:
        return [Finding("configuration", "permissions-file", "problem", str(mistake), _WRONG)]
    rules = "1 rule" if count == 1 else f"{count} rules"
    return [Finding("configuration", "permissions-file", "ok", f"{path} is in order: {rules}")] if path.exists() else []


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _private(path: Path) -> str:
    return f"chmod 600 {path}" if os.access(path, os.W_OK) else f"Let its owner run: chmod 600 {path}"
