"""What a command line wants of a run: the prompt, wherever it comes from, and everything about its session."""

import os
import select
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.cli.output import complain
from sandbox_agent.cli.talk.view import Answering, has_keyboard
from sandbox_agent.errors import SettingsError

LONGEST = 16 * 1024 * 1024
"""Bytes that are read from stdin."""
PATIENCE = 3.0
"""Seconds that a pipe may say nothing when there is a prompt already: it may be one that nobody will ever close."""
_OF_A_NEW_SESSION = ("cwd", "permission_mode")


@dataclass(frozen=True, slots=True)
class Wish:
    """One run."""

    agent: str
    prompt: str | None
    """None: there is a person to talk to."""
    session: str | None
    cwd: str | None
    model: str | None
    mode: str | None
    permission_mode: str | None
    title: str | None
    files: list[str]
    answering: Answering
    as_json: bool
    quiet: bool


def wish(arguments: Arguments) -> Wish:
    """What the arguments say, and stdin. Raises SettingsError."""
    session = arguments.word("session")
    for name in _OF_A_NEW_SESSION:
        if session is not None and arguments.word(name) is not None:
            raise SettingsError(
                f"--{name.replace('_', '-')} is for a new session, and --session names one that is there"
            )
    if arguments.switch("yes") and arguments.switch("no"):
        raise SettingsError("--yes and --no exclude each other")
    prompt = _prompt(arguments.word("prompt"))
    if prompt is None and arguments.switch("json"):
        raise SettingsError("--json needs a prompt: an argument, or stdin")
    if prompt is not None and not prompt.strip():
        raise SettingsError("the prompt is empty; it is an argument, or comes from stdin")
    return Wish(
        agent=arguments.word("agent") or "",
        prompt=prompt,
        session=session,
        cwd=arguments.word("cwd"),
        model=arguments.word("model"),
        mode=arguments.word("mode"),
        permission_mode=arguments.word("permission_mode"),
        title=arguments.word("title"),
        files=arguments.words("attach_file"),
        answering="yes" if arguments.switch("yes") else "no" if arguments.switch("no") else "ask",
        as_json=arguments.switch("json"),
        quiet=arguments.switch("quiet"),
    )


def here(path: str) -> str:
    """A path of this machine, absolute. No link is resolved: the agent is where the user believes to be."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def directory(given: str | None, *, local: bool) -> str:
    """The directory of a new session. Raises SettingsError."""
    path = here(given or ".")
    if local and not Path(path).is_dir():
        raise SettingsError(f"--cwd: {path} is no directory")
    return path


def attached(files: list[str], *, local: bool) -> list[str]:
    """The files of a prompt. Raises SettingsError."""
    paths = [each if each.startswith("file://") else here(each) for each in files]
    missing = [path for path in paths if local and not path.startswith("file://") and not Path(path).exists()]
    if missing:
        raise SettingsError(f"--attach-file: there is no {missing[0]}")
    return paths


def _prompt(given: str | None) -> str | None:
    """The argument, and what comes through a pipe; None when there is neither and somebody can type."""
    if given == "-":
        return _stdin()
    if has_keyboard():
        return given
    if given is None:
        return _stdin()
    if not _may_speak():
        return given
    more = _stdin()
    return f"{given}\n\n{more}" if more.strip() else given


def _may_speak() -> bool:
    """Whether something comes from stdin, or its end, before we have waited for too long."""
    try:
        kind = os.fstat(0).st_mode
    except OSError:
        return False
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return stat.S_ISREG(kind)
    if select.select([0], [], [], PATIENCE)[0]:
        return True
    complain(f"nothing came from stdin in {PATIENCE:g} s, going on without it; < /dev/null says so at once")
    return False


def _stdin() -> str:
    keyboard: object = sys.stdin
    if keyboard is None:
        return ""
    data = sys.stdin.buffer.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise SettingsError(f"stdin has more than {LONGEST >> 20} MiB; --attach-file is for large files")
    return data.decode(errors="replace")
