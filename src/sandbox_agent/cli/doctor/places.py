"""Checks of the directories that a server uses: are they there, whose are they, is there room."""

import os
import shutil
import stat
from pathlib import Path

from sandbox_agent.cli.doctor.finding import Finding, Status, Subject, size
from sandbox_agent.data_directory import Untrusted, check_owner
from sandbox_agent.log.damage import Damage

LITTLE, TOO_LITTLE = 1 << 30, 100 << 20
"""Bytes of free space; an agent with all its packages takes some hundred MiB."""


def data(subject: Subject) -> list[Finding]:
    """Where the session log is."""
    path = subject.settings.data_dir
    found = _writable("data", path) + _room("data", path)
    if _is_public(path):
        sentence = f"other users of this machine can look into the data directory, where the session log is: {path}"
        found.append(_found("data-private", "note", sentence, f"If that is not meant: chmod 700 {path}"))
    return found + _trusted(path) + _damaged(path)


def _trusted(path: Path) -> list[Finding]:
    try:
        check_owner(path)
    except Untrusted as reason:
        advice = "A server does not start there without --trust-data-dir."
        return [_found("data-trusted", "problem", f"the data directory is not safe to use: {reason}", advice)]
    except OSError:
        pass
    return []


def _damaged(path: Path) -> list[Finding]:
    """Damage that a server has found, and that is not acknowledged yet."""
    reason = Damage(path / "log.db").reason
    advice = "What could be read is served. The damaged files are kept there."
    return (
        [] if reason is None else [_found("log-damaged", "problem", f"the session log was damaged: {reason}", advice)]
    )


def agents(subject: Subject) -> list[Finding]:
    """Where agents are installed."""
    path, around = subject.settings.agents_dir, subject.settings.data_dir
    found = _writable("agents", path)
    here, there = _nearest(path), _nearest(around)
    if here.stat().st_dev != there.stat().st_dev:
        found += _room("agents", path)
    if os.statvfs(here).f_flag & getattr(os, "ST_NOEXEC", 0):
        sentence = f"the agents directory is on a file system where nothing may be run (noexec): {path}"
        found.append(_found("agents-noexec", "problem", sentence, "Choose another with --agents-dir."))
    return found


def config(subject: Subject) -> list[Finding]:
    """Where config.toml and its like are; no program writes there."""
    path = subject.settings.config_dir
    if not os.path.lexists(path):
        return [_found("config", "ok", f"there is no configuration directory, so the defaults count: {path}")]
    if not path.is_dir():
        return [_found("config", "problem", f"the configuration directory is no directory: {path}", "Move it away.")]
    if not os.access(path, os.R_OK | os.X_OK):
        sentence = f"the configuration directory cannot be read by {_user(os.geteuid())}: {path}"
        return [_found("config", "problem", sentence, f"Let {_user(os.geteuid())} read it, or use --config-dir.")]
    return [_found("config", "ok", f"the configuration directory can be read: {path}")]


def _writable(name: str, path: Path) -> list[Finding]:
    title, user = f"the {name} directory", _user(os.geteuid())
    other = f"Choose another with --{name}-dir"
    nearest = _nearest(path)
    if nearest != path:
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            sentence = f"{title} is not there, and {user} cannot make it in {nearest}: {path}"
            return [_found(name, "problem", sentence, f"{other}, or make it and give it to {user}.")]
        return [_found(name, "ok", f"{title} is not there yet; it is made when it is needed: {path}")]
    if not path.is_dir():
        return [_found(name, "problem", f"{title} is no directory: {path}", f"{other}, or move that away.")]
    owner = path.stat().st_uid
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        # What is installed in an image may be used all the same.
        status: Status = "problem" if name == "data" else "warning"
        sentence = f"{title} belongs to {_user(owner)} and cannot be written by {user}: {path}"
        return [_found(name, status, sentence, f"{other}, or give it to {user}: chown -R {user} {path}")]
    if owner != os.geteuid():
        sentence = f"{title} belongs to {_user(owner)}, and this is {user}: {path}"
        advice = f"Run sandbox-agent as {_user(owner)}: what {user} makes there, {_user(owner)} may be unable to use."
        return [_found(name, "warning", sentence, advice)]
    return [_found(name, "ok", f"{title} belongs to {user} and can be written: {path}")]


def _room(name: str, path: Path) -> list[Finding]:
    nearest = _nearest(path)
    free, about = shutil.disk_usage(nearest).free, os.statvfs(nearest)
    advice = "Make room, or choose another place with --data-dir or --agents-dir."
    if about.f_files and about.f_favail < 1000:
        sentence = f"there is room for {about.f_favail} more files only, where the {name} directory is"
        return [_found(f"{name}-room", "problem" if about.f_favail < 10 else "warning", sentence, advice)]
    status: Status = "problem" if free < TOO_LITTLE else "warning" if free < LITTLE else "ok"
    sentence = f"{size(free)} are free where the {name} directory is"
    return [_found(f"{name}-room", status, sentence, None if status == "ok" else advice)]


def _is_public(path: Path) -> bool:
    """Whether every user of this machine can list a directory."""
    try:
        return bool(path.stat().st_mode & stat.S_IRWXO) and all(
            each.stat().st_mode & stat.S_IXOTH for each in path.parents
        )
    except OSError:
        return False


def _nearest(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # Containers often run as a user that has no name.
        return f"user {number}"


def _found(name: str, status: Status, sentence: str, advice: str | None = None) -> Finding:
    return Finding(area="directories", name=name, status=status, sentence=sentence, advice=advice)
