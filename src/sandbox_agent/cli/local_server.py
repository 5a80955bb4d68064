"""The server that a command calls: the one you name, the one on the data directory, or one that is started there."""

import os
import socket
import time
from collections.abc import Callable

from sandbox_agent.cli.background import RunningServer, ServerFailed, TokenMissing, find_settled, start
from sandbox_agent.cli.flags import USUAL_PORT, WAYS, ServerAddress, find_address, is_named, pass_on, settings_of
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.data_directory import find_lock_owner
from sandbox_agent.settings import Settings
from sandbox_agent.settings.options import PREFIX

IDLE_EXIT = "30m"
"""How long a server that was started here stays without work."""
TRIES, PAUSE = 20, 0.05
"""How often a server that drops connections is looked at, and the seconds between."""
CONNECT = 1.0
WHICH = ("config_dir", "data_dir", *WAYS)
"""The options that say which server is meant, and its token."""

Say = Callable[[str], None]


def reach_server(arguments: Arguments, say: Say) -> ServerAddress:
    """The server to call; `say` reports that one was started for it.

    Raises:
        Failed: there is none and none starts, or its token was not found.
        SettingsError: what the arguments, the environment or config.toml say makes no sense.
    """
    if is_named(arguments, os.environ):
        return find_address(arguments, os.environ)
    settings = settings_of(arguments, os.environ, WHICH)
    if find_lock_owner(settings.data_dir) is None and _is_unkept_server(arguments, settings):
        return find_address(arguments, os.environ)
    running = _use_running(arguments, settings) or _start(arguments, say)
    return ServerAddress(running.url, local=True, token=settings.token if _has_flag(arguments) else running.token)


def _has_flag(arguments: Arguments) -> bool:
    return any(arguments.word(way) for way in WAYS)


def _is_unkept_server(arguments: Arguments, settings: Settings) -> bool:
    """Whether a server that keeps no log listens at the usual address, and we have the token for it."""
    given = _has_flag(arguments) or any(os.environ.get(PREFIX + way.upper()) for way in WAYS)
    if not given and not (settings.data_dir / f"token-{USUAL_PORT}").exists():
        return False
    try:
        with socket.create_connection(("127.0.0.1", USUAL_PORT), CONNECT):
            return True
    except OSError:
        return False


def _use_running(arguments: Arguments, settings: Settings) -> RunningServer | None:
    """The server on the data directory; None when there is none, or it has just ended."""
    for _ in range(TRIES):
        running = find_settled(settings)
        if running is None:
            return None
        try:
            running.health()
        except TokenMissing as refused:
            if _has_flag(arguments):
                return running  # The call itself says so, too; and perhaps the flag is right.
            raise ServerFailed(_without_token(running, settings)) from refused
        except ServerFailed as failed:
            if isinstance(failed.__cause__, ConnectionError):
                time.sleep(PAUSE)
                continue  # It is ending, or was killed a moment ago.
            # It may only be slow.
        return running
    return None


def _without_token(running: RunningServer, settings: Settings) -> str:
    files = [str(settings.config_dir / "config.toml")]
    if running.token_file is not None:
        files.append(str(running.token_file))
    return (
        f"the server at {running.url} (process {running.pid}) needs a token that was not found; it was looked for in "
        f"--token, --token-file, {PREFIX}TOKEN, {PREFIX}TOKEN_FILE and {' and '.join(files)}"
    )


def _start(arguments: Arguments, say: Say) -> RunningServer:
    """A server in the background as `sandbox-agent daemon start` has it, but for what the user has not set."""
    which = Arguments({name: arguments.values.get(name) for name in WHICH})
    settings = settings_of(which, os.environ)
    flags, environ = pass_on(which, os.environ)
    if "idle_exit" not in settings.given:
        flags.append(f"--idle-exit={IDLE_EXIT}")
    if "port" not in settings.given:
        flags.append("--port=0")
    running, is_new = start(settings, flags, environ)
    if is_new:
        idle = IDLE_EXIT if settings.idle_exit is None else f"{settings.idle_exit:g} s"
        say(f"started a server in the background; it stops after {idle} without work (sandbox-agent daemon status)")
    return running
