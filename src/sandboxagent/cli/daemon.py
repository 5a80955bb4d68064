"""Start, find and stop a server in the background.

It finds any server on the data directory by its record there, however the server was started. It prints nothing.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import cast

import msgspec

from sandboxagent.cli.daemon_log import begin_log, read_since
from sandboxagent.cli.failures import ServerFailed, TokenMissing
from sandboxagent.cli.flags import forward, settings_of
from sandboxagent.cli.output import EXIT_FAILED, complain
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.core.data_directory import find_lock_owner
from sandboxagent.core.discovery import (
    CONFIG,
    SERVER_OPTIONS,
    STAY_SIGNAL,
    TOKEN_OPTIONS,
    USUAL_PORT,
    Found,
    ServerAddress,
    ServerRecord,
    find_server,
    found_by_record,
    is_named,
    read_server_record,
)
from sandboxagent.core.settings import OPTIONS, Settings
from sandboxagent.core.settings.options import PREFIX
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.protocol.views import Credential
from sandboxagent.server.server_log import log_file

START_TIMEOUT, STOP_TIMEOUT, SETTLE_TIMEOUT = 30.0, 10.0, 5.0
"""Seconds until a server must answer after its start, end after SIGTERM, and finish a start or a stop under way."""
POLL_INTERVAL = 0.02
"""Seconds between two checks of a server."""
HEALTH_TIMEOUT = 3.0
IDLE_EXIT = "30m"
"""Time without work after which a server that a command started stops."""
TRIES, RETRY_INTERVAL = 20, 0.05
"""Maximum number of checks of a server that drops connections, and the seconds between them."""
CONNECT_TIMEOUT = 1.0


class _Agent(msgspec.Struct, rename="camel"):
    id: str
    credentials: list[Credential] = []


class _Agents(msgspec.Struct):
    agents: list[_Agent]


@dataclass(frozen=True, slots=True)
class SeenCredentials:
    """The credentials of agents that a running server sees."""

    url: str
    agents: dict[str, list[Credential]]

    def of(self, agent: str) -> list[Credential] | None:
        return self.agents.get(agent)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server, by its record on the data directory."""

    record: ServerRecord
    data_dir: Path
    token: str | None = field(repr=False)
    """None if the server needs none, or if none was found."""

    @property
    def log_file(self) -> Path | None:
        """The file of its log, if it was started in the background."""
        path = log_file(self.data_dir)
        with suppress(OSError):
            return path if path.samefile(f"/proc/{self.record.pid}/fd/2") else None
        return None

    def health(self) -> Object:
        """Return the server's health. Raises as `get` does."""
        return self.get("/v1/health")

    def get(self, path: str) -> Object:
        """Return the JSON of a path. Raises ServerFailed if there is no good answer, TokenMissing for status 401."""
        try:
            status, body = ServerAddress(self.record.url, local=True, token=self.token).fetch(path, HEALTH_TIMEOUT)
            if status == HTTPStatus.UNAUTHORIZED:
                raise TokenMissing("it needs a token, and none was found")
            if status != HTTPStatus.OK:
                raise ServerFailed(f"it answers with status {status}")
            return cast("Object", json.loads(body))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise ServerFailed(f"it does not answer: {error}") from error


def ensure_server(arguments: ParsedArguments, say: Callable[[str], None]) -> Found:
    """Find the server that a command calls, or start one in the background. `say` reports a start.

    Raises:
        ServerFailed: no server runs and none starts.
        TokenMissing: a server runs, and its token was not found.
        SettingsError: the arguments, the environment or config.toml are invalid.
    """
    flags, environ = arguments.values, os.environ
    if is_named(flags, environ):
        found = find_server(flags, environ, complain)
        assert found is not None
        return found
    settings = settings_of(arguments, environ, SERVER_OPTIONS)
    for _ in range(TRIES):
        wait_until_settled(settings.data_dir)
        found = find_server(flags, environ)
        if found is not None and _is_there(found, arguments, settings):
            return found
        if found is None or found.source != "record":
            break
        time.sleep(RETRY_INTERVAL)
    return _start_for_command(arguments, say)


def _is_there(found: Found, arguments: ParsedArguments, settings: Settings) -> bool:
    """Whether the found server answers. False when it has just ended, or when nothing listens on the usual port.

    Raises TokenMissing when its token was not found.
    """
    if found.source != "record":
        return found.token_source != CONFIG and _is_usual_port_open()
    running = find(settings)
    if running is None:
        return False
    try:
        running.health()
    except TokenMissing as refused:
        # With a token flag, the call itself reports a refused token; or the server accepts the flag's token.
        if not _has_token_flag(arguments):
            raise TokenMissing(_without_token(running, settings)) from refused
    except ServerFailed as failed:
        # A refused connection: the server is ending or was just killed. Any other failure: it may only be slow.
        return not isinstance(failed.__cause__, ConnectionError)
    return True


def _has_token_flag(arguments: ParsedArguments) -> bool:
    return any(arguments.word(option) for option in TOKEN_OPTIONS)


def _is_usual_port_open() -> bool:
    """Whether a server listens on the usual port. It has no record, so it keeps no log."""
    try:
        with socket.create_connection(("127.0.0.1", USUAL_PORT), CONNECT_TIMEOUT):
            return True
    except OSError:
        return False


def _without_token(running: RunningServer, settings: Settings) -> str:
    files = [str(settings.config_dir / "config.toml")]
    if running.record.token_file is not None:
        files.append(running.record.token_file)
    return (
        f"the server at {running.record.url} (process {running.record.pid}) needs a token that was not found; it was "
        f"looked for in --token, --token-file, {PREFIX}TOKEN, {PREFIX}TOKEN_FILE and {' and '.join(files)}"
    )


def _start_for_command(arguments: ParsedArguments, say: Callable[[str], None]) -> Found:
    """Start a server as `sandbox-agent daemon start` does, with other defaults for --idle-exit and --port."""
    which = ParsedArguments({name: arguments.values.get(name) for name in SERVER_OPTIONS})
    settings = settings_of(which, os.environ)
    flags, environ = forward(which, os.environ)
    if "idle_exit" not in settings.given:
        flags.append(f"--idle-exit={IDLE_EXIT}")
    if "port" not in settings.given:
        flags.append("--port=0")
    running, is_new = start(settings, flags, environ)
    if is_new:
        idle = IDLE_EXIT if settings.idle_exit is None else f"{settings.idle_exit:g} s"
        say(f"started a server in the background; it stops after {idle} without work (sandbox-agent daemon status)")
    return found_by_record(running.record, arguments.values, os.environ, settings)


def find(settings: Settings) -> RunningServer | None:
    """Return the server that runs on the data directory; None when none listens."""
    record = read_server_record(settings.data_dir)
    return None if record is None else _running(record, settings)


def wait_until_settled(directory: Path) -> None:
    """Wait until a server on the data directory has finished its start or its stop.

    Raises ServerFailed when that takes too long, or when the server belongs to one program alone.
    """
    if not _eventually(
        lambda: read_server_record(directory) is not None or find_lock_owner(directory) is None, SETTLE_TIMEOUT
    ):
        raise ServerFailed(
            f"process {find_lock_owner(directory) or 'unknown'} holds the data directory {directory}, "
            "but does not say where it listens; if it runs in another container, give its address with --endpoint"
        )
    record = read_server_record(directory)
    if record is not None and record.embedded:
        raise ServerFailed(
            f"process {record.pid} holds the data directory {directory} for one program alone: sandbox-agent run "
            "--no-daemon, or an SDK's start(); wait until that ends, or choose another with --data-dir"
        )


def find_seen_credentials(settings: Settings) -> SeenCredentials | None:
    """Return the credentials that the server on the data directory sees; None when no server answers there."""
    running = find(settings)
    if running is None:
        return None
    try:
        answer = msgspec.convert(running.get("/v1/agents"), _Agents)
    except (ServerFailed, msgspec.ValidationError):
        return None
    return SeenCredentials(running.record.url, {agent.id: agent.credentials for agent in answer.agents})


@dataclass(frozen=True, slots=True)
class StartRecord:
    """The flags, settings and directory with which a server was started."""

    flags: list[str]
    variables: dict[str, str] = field(repr=False)
    """Environment variables of settings; other variables are left out."""
    directory: Path


def read_start_record(pid: int) -> StartRecord:
    """Read from /proc how a server was started. Raises ServerFailed."""
    process = Path(f"/proc/{pid}")
    try:
        words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
        pairs = [os.fsdecode(each).partition("=") for each in (process / "environ").read_bytes().split(b"\0")]
        flags = words[words.index("server") + 1 :]
        directory = (process / "cwd").readlink()
    except (OSError, ValueError) as error:
        raise ServerFailed(
            f"cannot read how the server (process {pid}) was started; stop it, and start it again with its flags"
        ) from error
    settings = {option.variable for option in OPTIONS}
    return StartRecord(flags, {name: value for name, _, value in pairs if name in settings}, directory)


def start(
    settings: Settings, flags: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[RunningServer, bool]:
    """Start a server on the data directory unless one runs there. It outlives this program.

    Returns the running server, and whether this call started it. `flags` and `environ` go to the server process and
    must be those that `settings` were loaded from. Without `environ`, the process inherits this program's environment.

    Raises:
        ServerFailed: the server did not start; has its stderr.
        SettingsError: nothing could find a server with these settings again.
    """
    for name in ("no_persist", "embedded"):
        if getattr(settings, name):
            raise SettingsError(
                f"--{name.replace('_', '-')} cannot be used in the background; "
                "use: sandbox-agent server, or sandbox-agent run --no-daemon"
            )
    wait_until_settled(settings.data_dir)
    running = find(settings)
    if running is not None:
        return running, False
    log, begin = begin_log(settings.data_dir, settings.server_log_bytes)
    places = [f"--config-dir={settings.config_dir}", f"--data-dir={settings.data_dir}"]
    command = [sys.executable, "-P", "-m", "sandboxagent", "server", "--quiet", *flags, *places]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
        )
    finally:
        os.close(log)
    try:
        running = _wait_until_started(process, settings)
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
        process.kill()
        process.wait()
        raise
    if running is not None:
        process.returncode = 0  # The server outlives this program: Popen must not wait for it.
        return running, True
    # Another process may have been faster.
    wait_until_settled(settings.data_dir)
    running = find(settings)
    if running is not None:
        return running, False
    raise _not_started(process.returncode, read_since(settings.data_dir, begin))


def keep(settings: Settings) -> bool:
    """Make the server on the data directory run until it is stopped. Return whether it needed and got a signal."""
    found = read_server_record(settings.data_dir)
    if found is None or not found.idles:
        return False
    with suppress(PermissionError):
        _send(found, STAY_SIGNAL)
        return True
    return False


def stop(settings: Settings) -> RunningServer | None:
    """End the server on the data directory and wait until it is gone. Return it; None when none ran.

    Raises ServerFailed.
    """
    wait_until_settled(settings.data_dir)
    running = find(settings)
    if running is None:
        return None
    found = running.record
    try:
        _send(found, signal.SIGTERM)
    except PermissionError as error:
        raise ServerFailed(f"the server (process {found.pid}) belongs to another user, who has to stop it") from error
    if not _eventually(lambda: found.process is None and find_lock_owner(settings.data_dir) != found.pid, STOP_TIMEOUT):
        raise ServerFailed(f"the server (process {found.pid}) does not end; look into its log, or: kill -9 {found.pid}")
    return running


def _running(record: ServerRecord, settings: Settings) -> RunningServer:
    # The server's own token comes before the token of our settings, which may be those of another start.
    return RunningServer(record, settings.data_dir, found_by_record(record, {}, os.environ, settings).token)


def _wait_until_started(process: "subprocess.Popen[bytes]", settings: Settings) -> RunningServer | None:
    """Wait for the server and return it once it answers; None when the process has ended."""

    def answers() -> bool:
        if process.poll() is not None:
            return True
        running = find(settings)
        if running is None or running.record.pid != process.pid:
            return False
        try:
            running.health()
        except TokenMissing:
            return True
        except ServerFailed:
            return False
        return True

    if not _eventually(answers, START_TIMEOUT):
        raise ServerFailed(
            f"the server did not answer within {START_TIMEOUT:g} s; its log is {log_file(settings.data_dir)}"
        )
    return find(settings) if process.poll() is None else None


def _not_started(code: int, said: str) -> ServerFailed:
    """Return the error of a server that ended: its last message if that explains a user's mistake, else its stderr."""
    *_, last = said.splitlines() or [""]
    if last.startswith("sandbox-agent: "):
        return ServerFailed(last.removeprefix("sandbox-agent: "), exit_code=max(code, EXIT_FAILED))
    return ServerFailed(f"the server ended with exit code {code} before it answered", stderr=said)


def _send(found: ServerRecord, number: signal.Signals) -> None:
    """Send a signal to this process, and never to another one that reuses its pid."""
    try:
        descriptor = os.pidfd_open(found.pid)
    except OSError:
        # The process is gone, or the kernel has no pidfd.
        if found.process is not None:
            os.kill(found.pid, number)
        return
    try:
        if found.process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _eventually(condition: Callable[[], bool], timeout: float) -> bool:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_INTERVAL)
    return True
