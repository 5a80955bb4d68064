"""Run `sandbox-agent daemon …`, which manages a server in the background by its data directory."""

import os
import sys
from codecs import getincrementaldecoder
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

import msgspec

from sandboxagent.cli.daemon import (
    RunningServer,
    find,
    keep,
    read_start_record,
    start,
    stop,
    wait_until_settled,
)
from sandboxagent.cli.daemon_log import read_lines
from sandboxagent.cli.failures import ServerFailed
from sandboxagent.cli.flags import add_flags, forward, settings_of
from sandboxagent.cli.output import EXIT_FAILED, complain, confirm, describe_duration, harmless, print_facts, print_json
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand, natural
from sandboxagent.core.settings import OPTIONS, Settings
from sandboxagent.core.settings.options import PREFIX
from sandboxagent.protocol.envelope import Object, list_at, object_at, text_at
from sandboxagent.server.server_log import log_file

EXIT_NOT_RUNNING = 3
"""The same exit code as systemctl."""
_WHICH = ("config_dir", "data_dir", "token", "token_file")
_NOT_HERE = ("embedded", "no_persist", "quiet")
_NOT_AGAIN = ("rotate_token", "quiet")
"""Options that a restart does not repeat."""
_TOKENS = (f"{PREFIX}TOKEN", f"{PREFIX}TOKEN_FILE")
MAX_PAGES = 50
"""Maximum number of pages of sessions that are searched for running turns."""
LINES = 100
"""Default number of log lines to show."""

EXAMPLES = """\
  sandbox-agent daemon start
  sandbox-agent daemon status
  sandbox-agent daemon logs -f
  sandbox-agent daemon restart
  sandbox-agent daemon stop
"""

START = """\
Start a server in the background and wait until it answers. It keeps running when you close the
terminal; stop it with: sandbox-agent daemon stop. If a server already runs on the data directory, the
command shows that server and starts none. One that sandbox-agent run has started then stays until you
stop it, instead of stopping after a while without work. Takes all flags of sandbox-agent server except
--embedded and --no-persist.

The server's log is logs/server.log in the data directory; if it is larger than 1 MiB at a start, it
is renamed to server.log.1.
"""

START_EXAMPLES = """\
examples:
  sandbox-agent daemon start --port 3000
  sandbox-agent daemon start --json | jq -r .url
"""

STATUS = """\
Show whether a server runs on the data directory, however it was started, and its health. The exit
code is 0 if one runs, and 3 if none does.
"""

STATUS_EXAMPLES = """\
examples:
  sandbox-agent daemon status
  sandbox-agent daemon status --json | jq .agents
"""

STOP = """\
Stop the server that runs on the data directory, however it was started, and its agents, and wait
until it has ended. Running turns are cut off: the command asks you first, unless there is no terminal
or you give --yes. The exit code is 0 even if no server runs.
"""

STOP_EXAMPLES = """\
examples:
  sandbox-agent daemon stop
  sandbox-agent daemon stop --data-dir /srv/agents
"""


RESTART = """\
Stop the server that runs on the data directory, and start it again in the background. It keeps its
flags, port and token, so clients continue where they were. It gets the environment of your shell, such
as new API keys, but keeps its SANDBOX_AGENT_* variables unless your shell sets them. Running turns are
cut off: the command asks you first, unless there is no terminal or you give --yes. If no server runs,
it starts one.
"""

RESTART_EXAMPLES = """\
examples:
  sandbox-agent daemon restart
  ANTHROPIC_API_KEY=... sandbox-agent daemon restart
"""

LOGS = """\
Print the last lines of the log of the server in the background. The file is logs/server.log in the data
directory.
"""

LOGS_EXAMPLES = """\
examples:
  sandbox-agent daemon logs
  sandbox-agent daemon logs -f
      keep printing new lines until interrupted
  sandbox-agent daemon logs -n 1000 | grep WARNING
"""


def group() -> CommandGroup:
    """Make the group `daemon`."""
    words = {
        "start": Subcommand("start a server in the background", _start_command),
        "status": Subcommand("show whether a server runs, and its health", _status_command),
        "restart": Subcommand("stop the server and start it again", _restart_command),
        "stop": Subcommand("stop the server", _stop_command),
        "logs": Subcommand("show the log of the server", _logs_command),
    }
    return CommandGroup("sandbox-agent daemon", "Run a server in the background.", EXAMPLES, words)


def _start_command() -> Command:
    parser = Parser("sandbox-agent daemon start", START, START_EXAMPLES)
    _add_json(parser)
    add_flags(parser, {option.name for option in OPTIONS} - set(_NOT_HERE))
    return Command(parser, _start)


def _status_command() -> Command:
    parser = Parser("sandbox-agent daemon status", STATUS, STATUS_EXAMPLES)
    _add_json(parser)
    add_flags(parser, _WHICH)
    return Command(parser, _status)


def _stop_command() -> Command:
    parser = Parser("sandbox-agent daemon stop", STOP, STOP_EXAMPLES)
    _add_yes(parser)
    add_flags(parser, _WHICH)
    return Command(parser, _stop)


def _restart_command() -> Command:
    parser = Parser("sandbox-agent daemon restart", RESTART, RESTART_EXAMPLES)
    _add_json(parser)
    _add_yes(parser)
    add_flags(parser, ("config_dir", "data_dir"))
    return Command(parser, _restart)


def _logs_command() -> Command:
    parser = Parser("sandbox-agent daemon logs", LOGS, LOGS_EXAMPLES)
    parser.add_argument("-f", "--follow", action="store_true", help="Keep printing new lines until interrupted.")
    parser.add_argument(
        "-n", "--lines", metavar="NUMBER", type=natural, help=f"How many lines to show at first (default: {LINES})."
    )
    add_flags(parser, ("config_dir", "data_dir"))
    return Command(parser, _logs)


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def _add_yes(parser: Parser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="Cut off running turns without asking.")


def _start(arguments: ParsedArguments) -> int:
    settings = settings_of(arguments, os.environ)
    flags, environ = forward(arguments, os.environ)
    running, anew = start(settings, flags, environ)
    state = "started" if anew else "runs already"
    if not anew and "idle_exit" not in settings.given and keep(settings):
        state = "runs already, and now stays until you stop it"
    return _present(arguments, running, state)


def _check_files(settings: Settings) -> None:
    """Raise SettingsError for a mistake in agents.toml or in the permission rules."""
    from sandboxagent.server.agents.manifest import load_manifest
    from sandboxagent.server.permissions.file import load_rules

    load_manifest(settings.agents_file)
    load_rules(settings.permissions_file)


def _restart(arguments: ParsedArguments) -> int:
    which = settings_of(arguments, os.environ, _WHICH)
    wait_until_settled(which.data_dir)
    running = find(which)
    if running is None:
        return _start(arguments)
    again, environ = _read_start_options(running)
    settings = settings_of(again, environ)  # Find mistakes while the old server still runs.
    _check_files(settings)
    flags, environ = forward(again, environ)
    if not _may_cut_off(running, arguments):
        return EXIT_FAILED
    stop(settings)
    running, _ = start(settings, flags, environ)
    return _present(arguments, running, "restarted")


def _read_start_options(running: RunningServer) -> tuple[ParsedArguments, dict[str, str]]:
    """Return the flags and environment to start this server again. Raises ServerFailed."""
    from sandboxagent.cli.commands.server import server_command

    began = read_start_record(running.record.pid)
    # Its flags may have paths relative to this directory.
    try:
        os.chdir(began.directory)
    except OSError as error:
        raise ServerFailed(
            f"the server's directory {began.directory}: {error.strerror}; stop the server, and start it again"
        ) from error
    values = {
        name: value
        for name, value in server_command().parser.parse(began.flags).values.items()
        if name not in _NOT_AGAIN
    }
    values["data_dir"] = str(running.data_dir)
    kept = began.variables
    if any(os.environ.get(name) for name in _TOKENS):
        kept = {name: value for name, value in kept.items() if name not in _TOKENS}
    environ = {**kept, **os.environ}
    if settings_of(ParsedArguments(values), environ, {"port", "host"}).port == 0:
        values["port"] = str(urlsplit(running.record.url).port)
    return ParsedArguments(values), environ


def _logs(arguments: ParsedArguments) -> int:
    settings = settings_of(arguments, os.environ, _WHICH)
    path, count = log_file(settings.data_dir), arguments.number("lines")
    running = find(settings)
    if running is not None and running.log_file is None:
        complain(f"the server (process {running.record.pid}) was not started in the background, and logs elsewhere")
    decode = getincrementaldecoder("utf-8")("replace").decode
    try:
        with closing(read_lines(path, LINES if count is None else count, follow=arguments.switch("follow"))) as pieces:
            for piece in pieces:
                if sys.stdout.isatty():
                    sys.stdout.write(harmless(decode(piece)))
                    sys.stdout.flush()
                else:
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(f"no log at {path}: {error.strerror}")
        return EXIT_FAILED
    return 0


def _present(arguments: ParsedArguments, running: RunningServer, state: str) -> int:
    if arguments.switch("json"):
        _print(_document(running))
    else:
        _show(_document(running), state)
    return 0


def _status(arguments: ParsedArguments) -> int:
    settings = settings_of(arguments, os.environ, _WHICH)
    running = find(settings)
    document = _absent(settings) if running is None else _document(running)
    if arguments.switch("json"):
        _print(document)
    else:
        state = (
            "does not run" if running is None else "runs for one program alone" if running.record.embedded else "runs"
        )
        _show(document, state)
    return EXIT_NOT_RUNNING if running is None else 0


def _stop(arguments: ParsedArguments) -> int:
    settings = settings_of(arguments, os.environ, _WHICH)
    wait_until_settled(settings.data_dir)
    running = find(settings)
    if running is not None and not _may_cut_off(running, arguments):
        return EXIT_FAILED
    stopped = stop(settings)
    print("no server runs" if stopped is None else f"stopped {stopped.record.url} (process {stopped.record.pid})")
    return 0


def _may_cut_off(running: RunningServer, arguments: ParsedArguments) -> bool:
    """Whether to cut off running turns: ask at a terminal, only report them elsewhere."""
    count = _count_turns(running)
    if count == 0 or arguments.switch("yes"):
        return True
    turns = "one turn is running, and is cut off" if count == 1 else f"{count} turns are running, and are cut off"
    return confirm(turns, "the server keeps running")


def _count_turns(running: RunningServer) -> int:
    """Return the number of running turns; 0 if the server does not show its sessions without its token."""
    count, cursor = 0, ""
    for _ in range(MAX_PAGES):
        try:
            page = running.get(f"/v1/sessions{cursor and '?' + urlencode({'cursor': cursor})}")
        except ServerFailed:
            return count
        count += sum(object_at(each).get("running") is True for each in list_at(page, "sessions"))
        cursor = text_at(page, "nextCursor") or ""
        if not cursor:
            break
    return count


def _document(running: RunningServer) -> Object:
    uptime = datetime.now(UTC) - datetime.fromisoformat(running.record.started_at)
    told: Object = {
        "running": True,
        "url": running.record.url,
        "pid": running.record.pid,
        "version": running.record.version,
        "startedAt": running.record.started_at,
        "uptimeMs": max(0, int(uptime.total_seconds() * 1000)),
        "dataDirectory": str(running.data_dir),
        "tokenFile": running.record.token_file,
        "logFile": None if running.log_file is None else str(running.log_file),
        "embedded": running.record.embedded,
    }
    try:
        health = running.health()
    except ServerFailed as failed:
        return told | {"health": "unknown", "detail": str(failed), "agents": None}
    agents = [object_at(each) for each in list_at(health, "agents")]
    known = {"health": health.get("status"), "agents": [each.get("agent") for each in agents if each.get("running")]}
    return told | known | ({"detail": health["detail"]} if "detail" in health else {})


def _absent(settings: Settings) -> Object:
    log = log_file(settings.data_dir)
    return {
        "running": False,
        "dataDirectory": str(settings.data_dir),
        "logFile": str(log) if log.exists() else None,
    }


def _print(document: Object) -> None:
    print_json(msgspec.json.encode(document))


def _show(document: Object, state: str) -> None:
    agents, uptime = document.get("agents"), document.get("uptimeMs")
    names = [str(agent) for agent in list_at(document, "agents")]
    health = " · ".join(str(document[name]) for name in ("health", "detail") if document.get(name))
    print_facts(
        [
            ("server", state),
            ("url", _text(document, "url")),
            ("process", _text(document, "pid")),
            ("version", _text(document, "version")),
            ("uptime", describe_duration(uptime / 1000) if isinstance(uptime, int) else ""),
            ("health", health),
            ("agents", "" if agents is None else ", ".join(names) or "none runs"),
            ("token", _text(document, "tokenFile")),
            ("data", _text(document, "dataDirectory")),
            ("log", _text(document, "logFile")),
        ]
    )


def _text(document: Object, name: str) -> str:
    value = document.get(name)
    return "" if value is None else str(value)
