"""Checks of what people wrote: config.toml, agents.toml, permissions.toml, and variables of the environment."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sandbox_agent.cli.doctor.finding import Finding, Status, Subject, listed
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.errors import SettingsError
from sandbox_agent.settings import OPTIONS, Settings, load
from sandbox_agent.settings.files import read_toml
from sandbox_agent.settings.options import PREFIX

PLACES = ("config_dir", "data_dir", "agents_dir", "agents_file", "permissions_file", "acp_registry_url")
FLAGS = (*PLACES, "host", "port")
"""What may be said to the doctor about a server that is not running."""

_WRONG = "Correct it: until then, no server starts here."


def read_settings(arguments: Arguments, environ: Mapping[str, str]) -> tuple[Settings | None, list[Finding]]:
    """The settings that a server would have, or as much of them as is right; None when not even the places are."""
    flags = {name: value for name, value in arguments.values.items() if name in FLAGS}
    try:
        found = load(flags, environ)
    except SettingsError as mistake:
        told = [_found("settings", "problem", str(mistake), _WRONG)]
        for file in (True, False):
            try:
                return load(flags, environ, PLACES, file=file), told
            except SettingsError:
                continue
        return None, told
    missing = [str(root) for root in found.fs_root if not root.is_dir()]
    told = [_found("fs-root", "problem", f"--fs-root: there is no directory {root}", _WRONG) for root in missing]
    path = found.config_dir / "config.toml"
    told.append(_found("settings", "ok", f"{path} is in order" if path.exists() else f"there is no {path}"))
    return found, told


def secrets(subject: Subject) -> list[Finding]:
    """Files with a token in them that others can read."""
    path = subject.settings.config_dir / "config.toml"
    try:
        has_token = "token" in read_toml(path)[0]
    except SettingsError:
        has_token = False
    files = [path] if has_token else []
    files += [subject.settings.token_file] if subject.settings.token_file else []
    return [
        _found("token-private", "warning", f"other users of this machine can read the token in {each}", _private(each))
        for each in files
        if _mode(each) & (stat.S_IRGRP | stat.S_IROTH)
    ]


def variables(subject: Subject) -> list[Finding]:
    """Variables that look like settings: those that mean nothing, and those that count."""
    told = [
        _found("variable", "warning", warning, "Correct its name, or unset it.")
        for warning in subject.settings.warnings
    ]
    known = {option.variable for option in OPTIONS} | {f"{PREFIX}ENDPOINT"}
    names = sorted(name for name in subject.environ if name in known and subject.environ[name])
    if names:
        told.append(_found("variables", "ok", f"set by the environment: {listed(names, 12)}"))
    return told


def agents_file(subject: Subject) -> list[Finding]:
    """The user's own agents."""
    from sandbox_agent.agents.manifest import load_manifest

    path = subject.settings.agents_file
    try:
        load_manifest(path)
    except SettingsError as mistake:
        return [_found("agents-file", "problem", str(mistake), _WRONG)]
    return [_found("agents-file", "ok", f"{path} is in order")] if path.exists() else []


def permissions_file(subject: Subject) -> list[Finding]:
    """The permission rules, which decide before a client is asked."""
    from sandbox_agent.permissions.file import load_rules

    path = subject.settings.permissions_file
    try:
        count = len(load_rules(path))
    except SettingsError as mistake:
        return [_found("permissions-file", "problem", str(mistake), _WRONG)]
    rules = "1 rule" if count == 1 else f"{count} rules"
    return [_found("permissions-file", "ok", f"{path} is in order: {rules}")] if path.exists() else []


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _private(path: Path) -> str:
    return f"chmod 600 {path}" if os.access(path, os.W_OK) else f"Let its owner run: chmod 600 {path}"


def _found(name: str, status: Status, sentence: str, advice: str | None = None) -> Finding:
    return Finding(area="configuration", name=name, status=status, sentence=sentence, advice=advice)
