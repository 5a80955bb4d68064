"""Find the server to call: by name, by its record in the data directory, or on the usual port.

A server writes its address into a record, `server.json`. The record counts only while the server holds the lock of the
directory. This module only reads: it starts no server and calls none.
"""

import logging
import os
import re
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sandboxagent.core.data_directory import find_lock_owner, open_checked
from sandboxagent.core.process_id import ProcessId, read_process
from sandboxagent.core.settings import Settings, is_loopback, load
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE, PREFIX
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.protocol.json_bounds import read

RECORD = "server.json"
STAY_SIGNAL = signal.SIGUSR1
"""Tells a server with `idles` to run until it is stopped."""
USUAL_PORT = 2468
USUAL_URL = f"http://127.0.0.1:{USUAL_PORT}"
TOKEN_OPTIONS = ("token", "token_file")
SERVER_OPTIONS = ("config_dir", "data_dir", *TOKEN_OPTIONS)
"""The options that select a server and its token."""
CONFIG, DATA_DIRECTORY = "config.toml", "the data directory"
"""Names of token sources, beside flags and variables."""
_MAX_RECORD_BYTES = 1 << 16

logger = logging.getLogger(__name__)


# --- the record of a server -------------------------------------------------------------------------------------------


class ServerRecord(msgspec.Struct, rename="camel", frozen=True):
    """A record that a listening server writes about itself into `server.json`. It has no secrets."""

    pid: int
    process_start: int
    """The start of the server's process, in clock ticks since boot, because the pid may be reused."""
    url: str
    """The server's address, as seen from this machine."""
    version: str
    started_at: str
    token_file: str | None
    """The path of the file with the token, if there is one."""
    needs_token: bool
    embedded: bool = False
    """Whether the server is embedded in a program, and ends with it."""
    idles: bool = False
    """Whether the server stops after a while without work, unless it gets the signal `STAY_SIGNAL`."""

    @property
    def process(self) -> ProcessId | None:
        """The server's process; None if it has ended, or cannot be seen from here."""
        process = read_process(self.pid)
        return process if process is not None and process.start == self.process_start and process.alive else None

    def read_token(self) -> str | None:
        """Return the server's token, if it is in a file that this user can read."""
        if not self.needs_token or self.token_file is None:
            return None
        try:
            return Path(self.token_file).read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None


def read_server_record(directory: Path) -> ServerRecord | None:
    """Read the record of the server that has locked a data directory.

    None if no server has, or if it does not listen yet.
    """
    pid = find_lock_owner(directory)
    if pid is None:
        return None
    try:
        with open_checked(directory / RECORD) as file:
            owner = os.fstat(file.fileno()).st_uid
            found = read(file.read(_MAX_RECORD_BYTES).encode(), ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None
    found = _as_trusted(found, owner)
    if found is None:
        return None
    # A killed server leaves its record, and its successor may not have written one yet.
    return found if found.pid == pid and found.process is not None else None


def _as_trusted(found: ServerRecord, owner: int) -> ServerRecord | None:
    """Return the part of a record that its owner may decide.

    Records of this user count fully. Records of other users count only for root, or if root wrote them: with the
    address, and with a token file only if the owner of the record owns it. Otherwise a record could make this process
    send any secret that it can read to any address.
    """
    user = os.geteuid()
    if owner == user:
        return found
    if owner != 0 and user != 0:
        return None
    with suppress(OSError):
        if found.token_file is not None and Path(found.token_file).stat().st_uid == owner:
            return found
    return msgspec.structs.replace(found, token_file=None)


@contextmanager
def write_server_record(directory: Path, about: ServerRecord) -> Generator[None]:
    """Keep a server's record in `server.json`, readable by its user alone, while the block runs."""
    path = directory / RECORD
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(about) + b"\n")
        new.replace(path)
    except OSError as error:
        # The server works without the record too.
        logger.warning("server.json not written reason=%s", error.strerror)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


# --- the search for a server ------------------------------------------------------------------------------------------


class ServerAddress:
    """A server's address without a trailing slash. `local` is true if the server is on this machine."""

    __slots__ = ("local", "token", "url")

    def __init__(self, url: str, local: bool, token: str | None) -> None:
        self.url, self.local, self.token = url, local, token

    def fetch(self, path: str, timeout: float) -> tuple[int, bytes]:
        """Send a GET without the SDK and without a proxy. Returns the status and the body.

        Raises OSError or HTTPException.
        """
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


Source = Literal["flag", "environment", "record", "usual port"]


class Found(ServerAddress):
    """The server to call, and the source of that address."""

    __slots__ = ("source", "token_source")

    def __init__(
        self, url: str, *, local: bool, source: Source, token: str | None = None, token_source: str | None = None
    ) -> None:
        super().__init__(url, local, token)
        self.source: Source = source
        self.token_source = token_source
        """The flag, the variable or the place that the token is from; None without a token."""


USUAL_SERVER = Found(USUAL_URL, local=True, source="usual port")
"""The address where a server may listen if nothing is known about one."""


def _ignore(_: str) -> None: ...


def is_named(flags: Mapping[str, object], environ: Mapping[str, str]) -> bool:
    """Return whether a flag or the environment names a server's address."""
    return bool(flags.get("endpoint") or environ.get(ENDPOINT_VARIABLE))


def find_server(
    flags: Mapping[str, object], environ: Mapping[str, str], warn: Callable[[str], None] = _ignore
) -> Found | None:
    """Find the server by a flag, the environment, its record in the data directory, or the usual port, in this order.

    The usual port counts if a token for a server there is known. The caller checks whether a server listens there.
    `flags` are by option name, and `endpoint`; `warn` gets the warnings about settings.

    Raises:
        SettingsError: the address or a setting is wrong.
    """
    if is_named(flags, environ):
        return _find_named(flags, environ, warn)
    settings = _load(flags, environ, warn)
    record = read_server_record(settings.data_dir)
    # An embedded server is only for the program that started it.
    if record is not None and not record.embedded:
        return found_by_record(record, flags, environ, settings)
    # Another user may listen on the usual port, so it must not get the token that the next server here will use.
    token, source = _given_token(flags, environ, settings)
    if source is None:
        token, source = _read_port_token(settings.data_dir, USUAL_PORT), DATA_DIRECTORY
        if token is None:
            return None
    return Found(USUAL_URL, local=True, source="usual port", token=token, token_source=source)


def found_by_record(
    record: ServerRecord, flags: Mapping[str, object], environ: Mapping[str, str], settings: Settings
) -> Found:
    """Return the server of a record, with the token of a flag, else the token that the server itself names.

    Tokens in the environment and in config.toml may belong to another start.
    """
    token, source = None, None
    if record.needs_token:
        token, source = _given_token(flags, environ, settings)
        if not any(flags.get(option) for option in TOKEN_OPTIONS) and (own := record.read_token()):
            token, source = own, DATA_DIRECTORY
    return Found(record.url, local=True, source="record", token=token, token_source=source)


def _find_named(flags: Mapping[str, object], environ: Mapping[str, str], warn: Callable[[str], None]) -> Found:
    flag, variable = flags.get("endpoint"), environ.get(ENDPOINT_VARIABLE)
    url = str(flag or variable).rstrip("/")
    parts = urlsplit(url) if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url) else None
    try:
        port = parts and (parts.port or (443 if parts.scheme == "https" else 80))
    except ValueError:
        port = None
    if parts is None or port is None or not parts.hostname:
        where = "--endpoint" if flag else ENDPOINT_VARIABLE
        raise SettingsError(f"{where}: expected an address such as {USUAL_URL}, got {url!r:.100}")
    named = Found(url, local=is_loopback(parts.hostname), source="flag" if flag else "environment")
    given = any(flags.get(option) or environ.get(PREFIX + option.upper()) for option in TOKEN_OPTIONS)
    if given or named.local:  # The settings of this machine's own server must not go to another machine.
        settings = _load(flags, environ, warn)
        named.token, named.token_source = _given_token(flags, environ, settings)
        if named.token_source is None and (token := _find_token_of(settings.data_dir, port)):
            named.token, named.token_source = token, DATA_DIRECTORY
    return named


def _load(flags: Mapping[str, object], environ: Mapping[str, str], warn: Callable[[str], None]) -> Settings:
    settings = load({name: flags.get(name) for name in SERVER_OPTIONS}, environ, SERVER_OPTIONS)
    for warning in settings.warnings:
        warn(warning)
    return settings


def _given_token(
    flags: Mapping[str, object], environ: Mapping[str, str], settings: Settings
) -> tuple[str | None, str | None]:
    """Return the token that a flag, a variable or config.toml gives, and its source; None twice if there is none."""
    if settings.token_generated:
        return None, None
    for option in TOKEN_OPTIONS:
        if flags.get(option):
            return settings.token, "--" + option.replace("_", "-")
    for option in TOKEN_OPTIONS:
        if environ.get(PREFIX + option.upper()):
            return settings.token, PREFIX + option.upper()
    return settings.token, CONFIG


def _find_token_of(directory: Path, port: int) -> str | None:
    """Return the token of a server on this port, from that server's record or from a file with the port in its name.

    The stored token alone is never used: another user may listen there while this user's server is stopped.
    """
    record = read_server_record(directory)
    if record is not None and urlsplit(record.url).port == port and (token := record.read_token()):
        return token
    return _read_port_token(directory, port)


def _read_port_token(directory: Path, port: int) -> str | None:
    try:
        return (directory / f"token-{port}").read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
