"""Open the server's socket and token, and publish its address to programs.

Its later log messages go to stderr, as text or JSON: a constant phrase, then key=value.
"""

import json
import logging
import os
import resource
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from ipaddress import ip_address

from sandboxagent import __version__
from sandboxagent.core.data_directory import keep_token
from sandboxagent.core.discovery import ServerRecord, write_server_record
from sandboxagent.core.process_id import read_process
from sandboxagent.core.settings import Settings
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.http.app import BaseApp
from sandboxagent.server.http.http1 import HttpServer
from sandboxagent.server.http.sockets import SocketLimits, Sockets
from sandboxagent.server.server_log import ReportHandler, log_file

TOKEN, PORT = "token", "port"
"""Names of files in the data directory."""
MAX_KEEPALIVE_PROBES = 3
"""Maximum number of unanswered probes before a silent socket is closed."""


def open_listener(settings: Settings) -> socket.socket:
    """Open a listening socket. With port 0, prefer the port of the last start, so that clients find the server again.

    Raises OSError.
    """
    if settings.port == 0 and _is_remembered(settings):
        with suppress(OSError, ValueError):
            return _bind(settings, int((settings.data_dir / PORT).read_text()[:5]))
    return _bind(settings, settings.port)


def _is_remembered(settings: Settings) -> bool:
    return not settings.no_persist and not settings.temporary and not settings.embedded


def _bind(settings: Settings, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    address = socket.getaddrinfo(settings.host, port, family, socket.SOCK_STREAM)[0]
    listener = socket.socket(address[0], socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _notice_dead_peers(listener, settings.peer_timeout)
    try:
        listener.bind(address[4])
        # Two servers may bind one port until one of them listens. Listen at once, to fail before the server starts.
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _notice_dead_peers(listener: socket.socket, seconds: float) -> None:
    """Make the system close sockets whose other end has vanished. Accepted sockets inherit the options."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = max(1, round(seconds / 2))
    wanted = {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPINTVL": max(1, idle // MAX_KEEPALIVE_PROBES),
        "TCP_KEEPCNT": MAX_KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": max(1, round(seconds * 1000)),
    }
    for name, value in wanted.items():
        # If the system does not know an option or refuses its value, the system's own limits apply.
        with suppress(AttributeError, OSError):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def publish(settings: Settings, listener: socket.socket) -> AbstractContextManager[None]:
    """Let programs with the same data directory find this server, while the block runs."""
    if settings.no_persist:
        return nullcontext()
    if _is_remembered(settings):
        with suppress(OSError):
            (settings.data_dir / PORT).write_text(f"{listener.getsockname()[1]}\n")
    pid = os.getpid()
    process = read_process(pid)
    where = settings.token_file
    record = ServerRecord(
        pid=pid,
        process_start=process.start if process else 0,
        url=find_addresses(listener)[1],
        version=__version__,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        token_file=None if where is None else str(where),
        needs_token=settings.token is not None,
        embedded=settings.embedded,
        idles=settings.idle_exit is not None,
    )
    return write_server_record(settings.data_dir, record)


def find_addresses(listener: socket.socket) -> tuple[str, str]:
    """Return the address on which the server listens, and its address for this machine."""
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return url, f"http://127.0.0.1:{port}" if ip_address(host).is_unspecified else url


@contextmanager
def provide_token(settings: Settings, listener: socket.socket) -> Generator[Settings]:
    """Yield the settings with the generated token, which is in a file that only this user can read.

    The file is deleted at the end if the sessions are not kept either.
    """
    if settings.token is None or not settings.token_generated:
        yield settings
        return
    # Without a log, several servers may share the directory.
    name = f"token-{listener.getsockname()[1]}" if settings.no_persist else TOKEN
    path = settings.data_dir / name
    rotate = settings.rotate_token or settings.no_persist
    try:
        token = keep_token(path, settings.token, rotate=rotate)
    except OSError as error:
        raise SettingsError(f"--data-dir {settings.data_dir}: no token can be kept: {error.strerror}") from error
    try:
        yield settings.changed(token=token, token_file=path)
    finally:
        if settings.no_persist:
            path.unlink(missing_ok=True)


def make_server(app: BaseApp, settings: Settings) -> HttpServer:
    """Make a server that only needs its listener. The caller runs the clock of its sockets."""
    limits = _limits(settings)
    return HttpServer(app, Sockets(limits), app.read_post, max(limits.anonymous, 64))


def _limits(settings: Settings) -> SocketLimits:
    """Limit anonymous sockets to a quarter of the descriptors, so that clients and agents have enough in a burst."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    anonymous = settings.anonymous_sockets
    if descriptors != resource.RLIM_INFINITY:
        anonymous = max(min(anonymous, descriptors // 4), 1)
    return SocketLimits(
        anonymous, settings.head_timeout, settings.body_timeout, settings.idle_timeout, settings.pong_timeout
    )


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as JSON."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        report = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            report["traceback"] = self.formatException(record.exc_info)
        return json.dumps(report, ensure_ascii=False)


def set_up_logging(settings: Settings) -> None:
    """Send the server's log messages to stderr."""
    level, form = settings.log_level, settings.log_format
    handler = ReportHandler(log_file(settings.data_dir), settings.server_log_bytes)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The server logs requests itself, and never with their query. Other messages of httpx are of no use here.
    logging.getLogger("httpx").setLevel(logging.WARNING)
