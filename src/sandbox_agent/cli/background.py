"""A server in the background: finding it by its data directory, and what it sees; starting it, ending it; its log.

Finds any server on the data directory, however it was started, by what `data_directory.py` keeps. Prints nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from sandbox_agent.cli.flags import ServerAddress
from sandbox_agent.cli.output import EXIT_FAILED
from sandbox_agent.data_directory import STAY, Notice, find_lock_owner, read_notice
from sandbox_agent.envelope import Object
from sandbox_agent.protocol.errors import SettingsError
from sandbox_agent.server_log import log_file, open_log
from sandbox_agent.settings import OPTIONS, Settings
from sandbox_agent.wire.views import Credential

START_PATIENCE, STOP_PATIENCE, SETTLE_PATIENCE = 30.0, 10.0, 5.0
"""Seconds to answer after a start; to be gone after SIGTERM; for one that starts or ends already to have done so."""
INTERVAL, LOG_INTERVAL = 0.02, 0.1
"""Seconds between two looks at a server, and at its log."""
HEALTH_TIMEOUT = 3.0
SHOWN = 1 << 14
"""Bytes that are read of the log of a server that did not start."""
BLOCK = 1 << 16


class ServerFailed(Exception):
    """The command failed; the text is for people, `stderr` is the server's, `code` the exit code."""

    def __init__(self, sentence: str, *, stderr: str = "", code: int = EXIT_FAILED) -> None:
        super().__init__(sentence)
        self.stderr = stderr
        self.code = code


class TokenMissing(ServerFailed):
    """It answers, but needs a token that was not found."""


class _Agent(msgspec.Struct, rename="camel"):
    id: str
    credentials: list[Credential] = []


class _Agents(msgspec.Struct):
    agents: list[_Agent]


@dataclass(frozen=True, slots=True)
class SeenCredentials:
    """Which credentials of agents a running server sees."""

    url: str
    agents: dict[str, list[Credential]]

    def of(self, agent: str) -> list[Credential] | None:
        return self.agents.get(agent)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs."""

    pid: int
    url: str
    version: str
    started_at: str
    data_dir: Path
    token_file: Path | None
    """Where its token is, if it is in a file."""
    token: str | None = field(repr=False)
    """None if the server needs none, or if none was found."""
    embedded: bool = False
    """It serves one program alone, and ends with that."""
    idles: bool = False
    """It stops after a while without work."""

    @property
    def log_file(self) -> Path | None:
        """Where its log goes, if it was started in the background."""
        path = log_file(self.data_dir)
        with suppress(OSError):
            return path if path.samefile(f"/proc/{self.pid}/fd/2") else None
        return None

    def health(self) -> Object:
        """Its health; raises as `get` does."""
        return self.get("/v1/health")

    def get(self, path: str) -> Object:
        """What it answers; raises ServerFailed if it does not answer, TokenMissing if it refuses the token."""
        try:
            status, body = ServerAddress(self.url, local=True, token=self.token).fetch(path, HEALTH_TIMEOUT)
            if status == HTTPStatus.UNAUTHORIZED:
                raise TokenMissing("it needs a token, and none was found")
            if status != HTTPStatus.OK:
                raise ServerFailed(f"it answers with status {status}")
            return cast("Object", json.loads(body))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise ServerFailed(f"it does not answer: {error}") from error


def find(settings: Settings) -> RunningServer | None:
    """The server that runs on the data directory; None when there is none that listens."""
    found = read_notice(settings.data_dir)
    return None if found is None else _running(found, settings)


def find_settled(settings: Settings) -> RunningServer | None:
    """The same, after waiting for one that starts or stops. Raises Failed when the directory cannot be used."""
    found = _find_settled(settings.data_dir)
    return None if found is None else _running(found, settings)


def find_seen_credentials(settings: Settings) -> SeenCredentials | None:
    """What the server of the data directory sees; None when none runs there, or it does not answer."""
    running = find(settings)
    if running is None:
        return None
    try:
        answer = msgspec.convert(running.get("/v1/agents"), _Agents)
    except (ServerFailed, msgspec.ValidationError):
        return None
    return SeenCredentials(running.url, {agent.id: agent.credentials for agent in answer.agents})


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a server was started."""

    flags: list[str]
    variables: dict[str, str] = field(repr=False)
    """Those that are settings."""
    directory: Path


def read_beginning(pid: int) -> Beginning:
    """How this server was started. Raises Failed."""
    process = Path(f"/proc/{pid}")
    try:
        words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
        pairs = [os.fsdecode(each).partition("=") for each in (process / "environ").read_bytes().split(b"\0")]
        flags = words[words.index("server") + 1 :]
        directory = (process / "cwd").readlink()
    except (OSError, ValueError) as error:
        raise ServerFailed(
            f"how the server (process {pid}) was started cannot be read; stop it, and start it with its flags"
        ) from error
    settings = {option.variable for option in OPTIONS}
    return Beginning(flags, {name: value for name, _, value in pairs if name in settings}, directory)


def start(
    settings: Settings, flags: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[RunningServer, bool]:
    """The server that runs on the data directory, and whether it was started now. It outlives this program.

    `flags` and `environ` are for the server, and must be what `settings` were made of; without `environ`, our own.

    Raises:
        Failed: it did not start; with what it said.
        SettingsError: a server with these settings would not be found again.
    """
    for name in ("no_persist", "embedded"):
        if getattr(settings, name):
            raise SettingsError(
                f"--{name.replace('_', '-')} cannot be used in the background; "
                "use: sandbox-agent server, or sandbox-agent run --no-daemon"
            )
    found = _find_settled(settings.data_dir)
    if found is not None:
        return _running(found, settings), False
    log, begin = begin_log(settings.data_dir, settings.server_log_bytes)
    places = [f"--config-dir={settings.config_dir}", f"--data-dir={settings.data_dir}"]
    command = [sys.executable, "-P", "-m", "sandbox_agent", "server", "--quiet", *flags, *places]
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
            process.wait(STOP_PATIENCE)
        process.kill()
        process.wait()
        raise
    if running is not None:
        process.returncode = 0  # It is not our child: do not wait for it.
        return running, True
    # Another process may have been faster.
    found = _find_settled(settings.data_dir)
    if found is not None:
        return _running(found, settings), False
    raise _not_started(process.returncode, read_since(settings.data_dir, begin))


def keep(settings: Settings) -> bool:
    """Have the server on the data directory run until it is stopped; False when it does that anyway."""
    found = read_notice(settings.data_dir)
    if found is None or not found.idles:
        return False
    with suppress(PermissionError):
        _send(found, STAY)
        return True
    return False


def stop(settings: Settings) -> RunningServer | None:
    """End the server that runs on the data directory, and wait until it is gone; None when there was none.

    Raises Failed.
    """
    found = _find_settled(settings.data_dir)
    if found is None:
        return None
    running = _running(found, settings)
    try:
        _send(found, signal.SIGTERM)
    except PermissionError as error:
        raise ServerFailed(f"the server (process {found.pid}) is another user's; it is theirs to stop") from error
    if not _eventually(
        lambda: found.process is None and find_lock_owner(settings.data_dir) != found.pid, STOP_PATIENCE
    ):
        raise ServerFailed(f"the server (process {found.pid}) does not end; look into its log, or: kill -9 {found.pid}")
    return running


def _running(found: Notice, settings: Settings) -> RunningServer:
    path = None if found.token_file is None else Path(found.token_file)
    token = None
    if found.needs_token:
        # What it says itself is right; what the settings say may be about another start.
        token = found.read_token() or (None if settings.token_generated else settings.token)
    return RunningServer(
        found.pid,
        found.url,
        found.version,
        found.started_at,
        settings.data_dir,
        path,
        token,
        found.embedded,
        found.idles,
    )


def _find_settled(directory: Path) -> Notice | None:
    """The server that listens, or None; waits for one that is starting or stopping."""
    if not _eventually(
        lambda: read_notice(directory) is not None or find_lock_owner(directory) is None, SETTLE_PATIENCE
    ):
        raise ServerFailed(
            f"process {find_lock_owner(directory) or 'unknown'} holds the data directory {directory}, "
            "but does not say where it listens; if it runs in another container, give its address with --endpoint"
        )
    found = read_notice(directory)
    if found is not None and found.embedded:
        raise ServerFailed(
            f"process {found.pid} holds the data directory {directory} for one program alone: sandbox-agent run "
            "--no-daemon, or an SDK's start(); wait until that ends, or choose another with --data-dir"
        )
    return found


def _wait_until_started(process: "subprocess.Popen[bytes]", settings: Settings) -> RunningServer | None:
    """The server once it answers; None when it has ended."""

    def answers() -> bool:
        if process.poll() is not None:
            return True
        running = find(settings)
        if running is None or running.pid != process.pid:
            return False
        try:
            running.health()
        except TokenMissing:
            return True
        except ServerFailed:
            return False
        return True

    if not _eventually(answers, START_PATIENCE):
        raise ServerFailed(
            f"the server did not answer within {START_PATIENCE:g} s; its log is {log_file(settings.data_dir)}"
        )
    return find(settings) if process.poll() is None else None


def _not_started(code: int, said: str) -> ServerFailed:
    """The server's last message explains a configuration mistake that made it exit."""
    *_, last = said.splitlines() or [""]
    if last.startswith("sandbox-agent: "):
        return ServerFailed(last.removeprefix("sandbox-agent: "), code=max(code, EXIT_FAILED))
    return ServerFailed(f"the server ended with exit code {code} before it answered", stderr=said)


def _send(found: Notice, number: signal.Signals) -> None:
    """Send a signal to this process, and never to another that reuses its id."""
    try:
        descriptor = os.pidfd_open(found.pid)
    except OSError:
        # It is gone, or the kernel has no pidfd.
        if found.process is not None:
            os.kill(found.pid, number)
        return
    try:
        if found.process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _eventually(condition: Callable[[], bool], patience: float) -> bool:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(INTERVAL)
    return True


def begin_log(directory: Path, largest: int) -> tuple[int, int]:
    """The log, to be written at its end, and where that is. Raises SettingsError."""
    path = log_file(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        descriptor = open_log(path, largest)
    except OSError as error:
        raise SettingsError(f"--data-dir {directory}: {error.strerror}") from error
    return descriptor, os.fstat(descriptor).st_size


def read_since(directory: Path, begin: int) -> str:
    """The end of what was written into the log since then."""
    with log_file(directory).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - SHOWN))
        return file.read().decode(errors="replace")


def read_lines(path: Path, count: int, *, follow: bool) -> Generator[bytes]:
    """The last lines, in pieces; with `follow`, everything that is added, also after the log was replaced.

    Raises OSError.
    """
    file = path.open("rb")
    try:
        file.seek(_beginning(file, count))
        while True:
            while piece := file.read(BLOCK):
                yield piece
            if not follow:
                return
            if _is_replaced(path, file):
                file.close()
                file = path.open("rb")
            else:
                time.sleep(LOG_INTERVAL)
    finally:
        file.close()


def _beginning(file: BinaryIO, count: int) -> int:
    """Where the last lines begin. The file is read backwards: it may be large."""
    size = end = file.seek(0, os.SEEK_END)
    wanted = count
    while end > 0 and wanted > 0:
        begin = max(0, end - BLOCK)
        file.seek(begin)
        block = file.read(end - begin)
        at = len(block)
        if end == size and block.endswith(b"\n"):
            at -= 1  # It ends the last line, and begins none.
        while wanted > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return begin + at + 1
        end = begin
    return size if count == 0 else 0


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    """Whether another file has its name now, of which nothing was read yet."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
