"""Flags that are settings, from the table of options; and which server a command calls, with its token."""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandbox_agent.cli.grammar import Arguments, Parser
from sandbox_agent.cli.output import complain
from sandbox_agent.protocol.errors import SettingsError
from sandbox_agent.settings import OPTIONS, Option, Settings, is_loopback, load
from sandbox_agent.settings.options import PREFIX

if TYPE_CHECKING:
    from sandbox_agent.data_directory import Notice

AGENTS = frozenset(
    {
        *("config_dir", "data_dir", "agents_dir", "agents_file", "acp_registry_url"),
        # What starting an agent to see that it works keeps to.
        *("install_timeout", "require_hashes", "request_timeout", "max_line", "stdin_limit", "stop_grace"),
    }
)
"""The options that count where agents are looked at, installed and removed."""


def add_flags(parser: Parser, names: Collection[str]) -> None:
    """Let a command take the flags of these options."""
    options = [each for each in OPTIONS if each.name in names]
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(each.group for each in options)}
    for option in options:
        text = _help(option).replace("%", "%%")
        if option.kind.switch:
            groups[option.group].add_argument(
                option.flag, dest=option.name, action="store_true", default=None, help=text
            )
        else:
            action = "append" if option.kind.many else "store"
            metavar = option.kind.metavar
            groups[option.group].add_argument(option.flag, dest=option.name, action=action, metavar=metavar, help=text)


def settings_of(arguments: Arguments, environ: Mapping[str, str], only: Collection[str] | None = None) -> Settings:
    """The settings by flags, environment and config.toml, all or `only` these; raises SettingsError."""
    names = {each.name for each in OPTIONS}
    flags = {name: value for name, value in arguments.values.items() if name in names}
    settings = load(flags, environ, only)
    for warning in settings.warnings:
        complain(f"warning: {warning}")
    return settings


def agent_settings(arguments: Arguments) -> Settings:
    """The settings for a command about agents, which reports its failures itself: nothing else goes to stderr."""
    import logging

    logging.getLogger("sandbox_agent").addHandler(logging.NullHandler())
    return settings_of(arguments, os.environ, AGENTS)


def _help(option: Option[object]) -> str:
    if option.kind.many:
        return f"{option.text} May be repeated."
    return option.text if option.kind.switch or option.default is None else f"{option.text} (default: {option.default})"


USUAL_PORT = 2468
DEFAULT = f"http://127.0.0.1:{USUAL_PORT}"
VARIABLE = f"{PREFIX}ENDPOINT"
ACCESS = """\
Give the token with --token or SANDBOX_AGENT_TOKEN, --token-file or SANDBOX_AGENT_TOKEN_FILE. For a
server on this machine, it is also read from config.toml and from the file token in the data
directory. Without --endpoint and SANDBOX_AGENT_ENDPOINT, the server is the one that runs on the data
directory; if there is none, one is started in the background, which stops after 30 minutes without
work.
"""
"""For the help of commands with these flags."""
WAYS = ("token", "token_file")


def add_endpoint_flags(parser: Parser) -> None:
    """Add the flags that select a server."""
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help=f"The server's address; else {VARIABLE}, else the one on the data directory.",
    )
    parser.add_argument("--token", metavar="TOKEN", help="The server's token.")
    parser.add_argument("--token-file", metavar="PATH", help="File that holds the token.")
    add_flags(parser, {"config_dir", "data_dir"})


def add_node_flag(parser: Parser, what: str) -> None:
    """Add the flag that says which node of a fleet is meant."""
    parser.add_argument("--node", metavar="NODE", help=f"At a gateway with several nodes: the one {what}.")


class ServerAddress:
    """A server's address without a slash at its end; `local` when it is on this machine."""

    __slots__ = ("local", "token", "url")

    def __init__(self, url: str, local: bool, token: str | None) -> None:
        self.url, self.local, self.token = url, local, token

    def fetch(self, path: str, timeout: float) -> tuple[int, bytes]:
        """The status and the body of a GET, without the SDK, past any proxy. Raises OSError or HTTPException."""
        from http.client import HTTPConnection, HTTPSConnection

        parts = urlsplit(self.url)
        connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        link = connect(parts.hostname or "", parts.port or connect.default_port, timeout=timeout)
        try:
            link.request(
                "GET", parts.path + path, headers={"Authorization": f"Bearer {self.token}"} if self.token else {}
            )
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()


def is_named(arguments: Arguments, environ: Mapping[str, str]) -> bool:
    """Whether the arguments or the environment name a server's address."""
    return bool(arguments.word("endpoint") or environ.get(VARIABLE))


def find_address(arguments: Arguments, environ: Mapping[str, str]) -> ServerAddress:
    """What the arguments, the environment and the data directory say; starts nothing. Raises SettingsError."""
    if not is_named(arguments, environ):
        return _find_here(arguments, environ)
    flag, variable = arguments.word("endpoint"), environ.get(VARIABLE)
    url = (flag or variable or "").rstrip("/")
    parts = urlsplit(url) if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url) else None
    try:
        port = parts and (parts.port or (443 if parts.scheme == "https" else 80))
    except ValueError:
        port = None
    if parts is None or port is None or not parts.hostname:
        where = "--endpoint" if flag else VARIABLE
        raise SettingsError(f"{where}: expected an address such as {DEFAULT}, got {url!r:.100}")
    local = is_loopback(parts.hostname)
    return ServerAddress(url, local, _token(arguments, environ, local=local, port=port))


def _find_here(arguments: Arguments, environ: Mapping[str, str]) -> ServerAddress:
    """The server that holds the data directory, on any port; else the usual address."""
    from sandbox_agent.data_directory import read_notice

    settings = settings_of(arguments, environ, {"config_dir", "data_dir", *WAYS})
    found = read_notice(settings.data_dir)
    # A program's own server talks to that program alone.
    if found is not None and not found.embedded:
        return ServerAddress(found.url, local=True, token=token_for(found, arguments, settings))
    # Another user may listen at the usual address: it never gets the token that the next server here will use.
    token = _read_token(settings.data_dir / f"token-{USUAL_PORT}") if settings.token_generated else settings.token
    return ServerAddress(DEFAULT, local=True, token=token)


def token_for(found: "Notice", arguments: Arguments, settings: Settings) -> str | None:
    """The token of the server on the data directory: the one that a flag gives, else what that server says itself.

    What the environment and config.toml say may be about another start.
    """
    if not found.needs_token:
        return None
    given = None if settings.token_generated else settings.token
    if any(arguments.word(way) for way in WAYS):
        return given
    return found.read_token() or given


def _token(arguments: Arguments, environ: Mapping[str, str], *, local: bool, port: int) -> str | None:
    given = any(arguments.word(way) or environ.get(PREFIX + way.upper()) for way in WAYS)
    if not given and not local:
        return None  # What this machine's own server is configured with does not go to other machines.
    settings = settings_of(arguments, environ, {"config_dir", "data_dir", *WAYS})
    return _left_in(settings.data_dir, port) if settings.token_generated else settings.token


def _left_in(directory: Path, port: int) -> str | None:
    """The token of a server on this port: where that server says, or in a file with the port in its name.

    Never the kept token alone: another user may listen there while our server is stopped.
    """
    from sandbox_agent.data_directory import read_notice

    found = read_notice(directory)
    if found is not None and urlsplit(found.url).port == port and (token := found.read_token()):
        return token
    return _read_token(directory / f"token-{port}")


def _read_token(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def pass_on(arguments: Arguments, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The flags for a server, and its environment: that is where a token goes, for a command line can be read."""
    flags: list[str] = []
    for option in OPTIONS:
        value = arguments.values.get(option.name)
        if value is True:
            flags.append(option.flag)
        elif value is not None and option.name != "token":
            items = arguments.words(option.name) if option.kind.many else [value]
            flags += [f"{option.flag}={item}" for item in items]
    token = arguments.word("token")
    # A token that is given as a flag is meant to be the only one.
    given = {} if token is None else {f"{PREFIX}TOKEN": token, f"{PREFIX}TOKEN_FILE": ""}
    return flags, {**environ, **given}
