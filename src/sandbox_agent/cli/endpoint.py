"""Which server a call is for, and the token that it gets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sandbox_agent.cli.flags import add_flags, settings_of
from sandbox_agent.cli.grammar import Arguments, Parser
from sandbox_agent.data_directory import read_notice
from sandbox_agent.errors import SettingsError
from sandbox_agent.settings import is_loopback
from sandbox_agent.settings.options import PREFIX

DEFAULT = "http://127.0.0.1:2468"
VARIABLE = f"{PREFIX}ENDPOINT"
ACCESS = """\
Give the token with --token or SANDBOX_AGENT_TOKEN, --token-file or SANDBOX_AGENT_TOKEN_FILE. For a
server on this machine, it is also read from config.toml and from the file token in the data
directory.
"""
"""For the help of commands with these flags."""
_WAYS = ("token", "token_file")


def add_endpoint_flags(parser: Parser) -> None:
    """Add the flags that select a server."""
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help=f"The server's address; else {VARIABLE}, else the one on the data directory, else {DEFAULT}.",
    )
    parser.add_argument("--token", metavar="TOKEN", help="The server's token.")
    parser.add_argument("--token-file", metavar="PATH", help="File that holds the token.")
    add_flags(parser, {"config_dir", "data_dir"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address without a slash at its end; `local` when it is on this machine."""

    url: str
    local: bool
    token: str | None = field(repr=False)


def endpoint(arguments: Arguments, environ: Mapping[str, str]) -> Endpoint:
    """What the arguments and the environment say; raises SettingsError."""
    flag, variable = arguments.word("endpoint"), environ.get(VARIABLE)
    url = (flag or variable or _running_here(arguments, environ) or DEFAULT).rstrip("/")
    parts = urlsplit(url) if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url) else None
    try:
        port = parts and (parts.port or (443 if parts.scheme == "https" else 80))
    except ValueError:
        port = None
    if parts is None or port is None or not parts.hostname:
        where = "--endpoint" if flag else VARIABLE
        raise SettingsError(f"{where}: expected an address such as {DEFAULT}, got {url!r:.100}")
    local = is_loopback(parts.hostname)
    return Endpoint(url, local, _token(arguments, environ, local=local, port=port))


def _running_here(arguments: Arguments, environ: Mapping[str, str]) -> str | None:
    """Where the server is that holds the data directory, whichever port it has."""
    found = read_notice(settings_of(arguments, environ, {"config_dir", "data_dir"}).data_dir)
    # A program's own server talks to that program alone.
    return None if found is None or found.embedded else found.url


def _token(arguments: Arguments, environ: Mapping[str, str], *, local: bool, port: int) -> str | None:
    given = any(arguments.word(way) or environ.get(PREFIX + way.upper()) for way in _WAYS)
    if not given and not local:
        return None  # What this machine's own server is configured with does not go to other machines.
    settings = settings_of(arguments, environ, {"config_dir", "data_dir", *_WAYS})
    return _left_in(settings.data_dir, port) if settings.token_generated else settings.token


def _left_in(directory: Path, port: int) -> str | None:
    """The token that a server made itself and left for us; one without a log has its port in the file's name."""
    for path in (directory / f"token-{port}", directory / "token"):
        try:
            return path.read_text().strip() or None
        except OSError:
            continue
    return None
