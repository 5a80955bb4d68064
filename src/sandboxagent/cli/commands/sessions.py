"""Run `sandbox-agent sessions …`: show, name and end sessions."""

import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from sandboxagent.cli.call import CalledServer, attempt, call
from sandboxagent.cli.commands.session_log import print_events
from sandboxagent.cli.flags import ACCESS, add_endpoint_flags
from sandboxagent.cli.output import (
    EXIT_FAILED,
    confirm,
    one_line,
    print_facts,
    print_json,
    print_table,
)
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand, natural
from sandboxagent.cli.session_lookup import find_session, last_use, list_sessions, read_session
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, list_at, text_at
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.protocol.json_bounds import read

if TYPE_CHECKING:
    from sandboxagent import SandboxAgent, SessionInfo


TITLES = ("id", "agent", "state", "title", "directory", "used")
STYLES = {"state": {"running": "green", "waiting": "yellow", "ended": "dim"}}

EXAMPLES = """\
  sandbox-agent sessions list
      all sessions, last used first
  sandbox-agent sessions events 0198c2
      the log of the session whose id begins with 0198c2
  sandbox-agent sessions terminate 0198c2
      end it for good; its log stays
"""
_ID = "Its id or alias, or a unique beginning of one."


def group() -> CommandGroup:
    """Make the group `sessions`."""
    return CommandGroup(
        "sandbox-agent sessions",
        "See, name and end the sessions of a running server.",
        EXAMPLES,
        {
            "list": Subcommand("all sessions, last used first", _list),
            "show": Subcommand("details of one session", _show),
            "events": Subcommand("the log of a session", _events),
            "rename": Subcommand("give a session another title", _rename),
            "set": Subcommand("set metadata of a session", _set),
            "terminate": Subcommand("end sessions for good; their logs stay", _terminate),
            "delete": Subcommand("end sessions and delete them with their logs", _delete),
        },
    )


def _list() -> Command:
    parser = _parser(
        "list",
        "",
        "List the sessions. A session is running (a turn is under way), waiting (its agent waits for an answer\n"
        "to a request), idle, or ended. A prompt resumes an idle session, also after its agent or the server has\n"
        "stopped; one that has ended takes no more prompts.",
        "  sandbox-agent sessions list --cwd . --agent claude\n"
        "  sandbox-agent sessions list --json | jq -r '.sessions[] | select(.pending > 0) | .sessionId'\n",
    )
    parser.add_argument("--cwd", metavar="PATH", help="Only sessions in this directory.")
    parser.add_argument("--agent", metavar="AGENT", help="Only sessions of this agent.")
    parser.add_argument("--limit", metavar="NUMBER", type=natural, help="Show at most this many, last used first.")
    return _command(parser, print_sessions)


def _show() -> Command:
    parser = _parser(
        "show",
        "SESSION",
        "Show details of one session.",
        "  sandbox-agent sessions show 0198c2\n  sandbox-agent sessions show 0198c2 --json | jq .metadata\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    return _command(parser, print_session)


def _events() -> Command:
    parser = _parser(
        "events",
        "SESSION",
        "Show the log of a session: messages of clients, its agent and the server, one per line. A line has the\n"
        "event's number, time and sender; lines that are too long for the terminal are cut.\n"
        "With --json each line is an object with id, at, direction and envelope.",
        "  sandbox-agent sessions events 0198c2 --follow\n"
        "  sandbox-agent sessions events 0198c2 --after 120\n"
        "  sandbox-agent sessions events 0198c2 --json | jq 'select(.direction == \"fromClient\").envelope'\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    parser.add_argument("--after", metavar="ID", type=natural, help="Only events after this one.")
    parser.add_argument("-f", "--follow", action="store_true", help="Keep printing new events until interrupted.")
    return _command(parser, print_events, json="Print JSON lines.")


def _rename() -> Command:
    parser = _parser(
        "rename",
        "SESSION TITLE",
        "Give a session another title. Its agent may change it again.",
        "  sandbox-agent sessions rename 0198c2 'Fix the build'\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    parser.add_argument("title", metavar="TITLE", help="The title.")
    return _command(parser, _rename_session)


def _set() -> Command:
    parser = _parser(
        "set",
        "SESSION KEY=TEXT...",
        "Set metadata of a session; other keys stay. Prints all of it.",
        "  sandbox-agent sessions set 0198c2 ticket=A-1 owner='Ada L.'\n"
        '  sandbox-agent sessions set 0198c2 priority:=3 \'labels:=["a", "b"]\'\n'
        "      numbers, lists and so on, as JSON\n"
        "  sandbox-agent sessions set 0198c2 ticket:=null\n"
        "      remove a key\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    parser.add_argument("facts", metavar="KEY=TEXT", nargs="+", help="A text value; use KEY:=JSON for anything else.")
    return _command(parser, _note_facts)


def _terminate() -> Command:
    parser = _parser(
        "terminate",
        "SESSION...",
        "End sessions for good: the turn is cancelled, and the session cannot be resumed. Its log stays.",
        "  sandbox-agent sessions terminate 0198c2 0198c3\n",
    )
    parser.add_argument("sessions", metavar="SESSION", nargs="+", help=_ID)
    return _command(parser, _terminate_sessions)


def _delete() -> Command:
    parser = _parser(
        "delete",
        "SESSION...",
        "End sessions for good and delete them with their logs, also at their agents. Where a turn runs, a terminal\n"
        "asks first.",
        "  sandbox-agent sessions delete 0198c2\n  sandbox-agent sessions delete 0198c2 0198c3 --yes\n",
    )
    parser.add_argument("sessions", metavar="SESSION", nargs="+", help=_ID)
    parser.add_argument("-y", "--yes", action="store_true", help="Do not ask about running turns.")
    return _command(parser, _delete_sessions)


def _parser(name: str, words: str, description: str, examples: str) -> Parser:
    return Parser(f"sandbox-agent sessions {name}", description, f"{ACCESS}\nexamples:\n{examples}", words)


def _command(parser: Parser, act: Callable[[ParsedArguments], int], json: str = "Print JSON.") -> Command:
    parser.add_argument("--json", action="store_true", help=json)
    add_endpoint_flags(parser)
    return Command(parser, act)


# --- showing ----------------------------------------------------------------------------------------------------------


def print_sessions(arguments: ParsedArguments) -> int:
    """Print all sessions, or those that the flags select. Return the exit code."""
    agent, cwd, limit = arguments.word("agent"), arguments.word("cwd"), arguments.number("limit")
    where = os.path.abspath(os.path.expanduser(cwd)) if cwd else None  # noqa: PTH100, PTH111 - no link is resolved

    async def work(remote: CalledServer) -> int:
        wanted: list[tuple[SessionInfo, Raw]] = []
        async for raw in list_sessions(remote.api, where):
            session = read_session(raw)
            if agent in (None, session.agent):
                wanted.append((session, raw))
        wanted.sort(key=lambda each: last_use(each[0]), reverse=True)
        del wanted[len(wanted) if limit is None else limit :]
        if arguments.switch("json"):
            print_json(msgspec.json.encode({"sessions": [raw for _, raw in wanted]}))
        else:
            _print_rows([session for session, _ in wanted])
        return 0

    return call(arguments, work)


def print_session(arguments: ParsedArguments) -> int:
    """Print one session. Return the exit code."""

    async def work(remote: CalledServer) -> int:
        found = await find_session(remote.api, arguments.word("session") or "")
        if arguments.switch("json"):
            print_json(bytes(found))
        else:
            print_facts(_lines(read_session(found)))
        return 0

    return call(arguments, work)


def state(session: "SessionInfo") -> str:
    """Return a session's state in one word. Without an agent process, it is idle if a prompt resumes it."""
    if session.ended:
        return "idle" if session.resumable else "ended"
    return "waiting" if session.pending else "running" if session.running else "idle"


def age(moment: datetime) -> str:
    """Return the time since a moment, in its largest unit."""
    seconds = max(0, int((datetime.now(moment.tzinfo) - moment).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _when(moment: datetime | None) -> str:
    """Format a moment as the server writes it, with the time since then."""
    if moment is None:
        return ""
    return f"{moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} ({age(moment)} ago)"


def _print_rows(sessions: "Sequence[SessionInfo]") -> None:
    """Print sessions as a table; at a gateway, with their nodes."""
    nodes = [session.node or "" for session in sessions]
    rows = [_row(session) for session in sessions]
    if not any(nodes):
        print_table(TITLES, rows, styles=STYLES)
        return
    # The column is last, so that the others have the same place as without a gateway.
    print_table((*TITLES, "node"), [(*row, node) for row, node in zip(rows, nodes, strict=True)], styles=STYLES)


def _row(session: "SessionInfo") -> tuple[str, ...]:
    title, cwd = one_line(session.title or ""), one_line(session.cwd)
    moment = session.updated_at or session.created_at
    return one_line(session.session_id), session.agent, state(session), title, cwd, age(moment) if moment else ""


def _lines(session: "SessionInfo") -> list[tuple[str, str]]:
    ended, stopped = session.termination_info or {}, session.ended and session.resumable
    stderr = [str(line) for name in ("head", "tail") for line in list_at(ended, "stderr", name)]
    how = [
        text_at(ended, "reason"),
        "by the " + (text_at(ended, "terminatedBy") or "server"),
        text_at(ended, "message"),
    ]
    return [
        ("session", one_line(session.session_id)),
        ("alias", one_line(session.alias or "")),
        ("agent", session.agent),
        ("node", session.node or ""),
        ("state", state(session) + ("; a prompt resumes it" if stopped else "")),
        ("stopped" if stopped else "ended", ", ".join(one_line(each) for each in how if each) if ended else ""),
        ("stderr", "\n".join(stderr)),
        ("title", one_line(session.title or "")),
        ("directory", one_line(session.cwd)),
        ("model", session.model or ""),
        ("mode", session.mode or ""),
        ("created", _when(session.created_at)),
        ("updated", _when(session.updated_at)),
        ("events", str(session.event_count)),
        ("pending", str(session.pending)),
        ("metadata", _facts(session.metadata)),
    ]


def _facts(metadata: Object) -> str:
    """Format metadata, one line for each key: texts unchanged, anything else as JSON."""
    return "\n".join(f"{one_line(key)} = {_fact(value)}" for key, value in metadata.items())


def _fact(value: object) -> str:
    return one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode())


# --- changing ---------------------------------------------------------------------------------------------------------


def _rename_session(arguments: ParsedArguments) -> int:
    return _set_metadata(arguments, {"title": arguments.word("title")})


def _note_facts(arguments: ParsedArguments) -> int:
    return _set_metadata(arguments, read_facts(arguments.words("facts")))


def read_facts(given: Sequence[str]) -> Object:
    """Parse arguments of the form KEY=TEXT or KEY:=JSON. Raises SettingsError."""
    found: Object = {}
    for each in given:
        key, sign, value = each.partition("=")
        if not sign or not key.removesuffix(":"):
            raise SettingsError(f"expected KEY=TEXT or KEY:=JSON, got {each!r:.100}")
        if not key.endswith(":"):
            found[key] = value
            continue
        try:
            found[key.removesuffix(":")] = read(value.encode(errors="surrogateescape"), object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{key}= expects JSON: {error}; for a text, write {key.removesuffix(':')}=TEXT"
            ) from None
    return found


def _set_metadata(arguments: ParsedArguments, metadata: Object) -> int:
    """Set metadata of a session and print all of its metadata. Return the exit code."""

    async def work(remote: CalledServer) -> int:
        session = read_session(await find_session(remote.api, arguments.word("session") or ""))
        async with remote.connected(session.agent) as client:
            asked: Object = {"sessionId": session.session_id, "metadata": metadata}
            answer = await attempt(remote, client.request("_sandboxagent/session/set_metadata", asked))
        if answer is None:
            return EXIT_FAILED
        if arguments.switch("json"):
            print_json(msgspec.json.encode(answer))
        else:
            noted = msgspec.convert(answer.get("metadata") or {}, Object)
            print_facts([("session", one_line(session.session_id)), ("metadata", _facts(noted))])
        return 0

    return call(arguments, work)


def _terminate_sessions(arguments: ParsedArguments) -> int:
    def describe_end(answer: Object) -> str:
        return "had ended already" if answer.get("alreadyEnded") else "is terminated"

    return _end_each(arguments, lambda client, session: client.sessions.terminate(session.session_id), describe_end)


def _delete_sessions(arguments: ParsedArguments) -> int:
    async def delete(client: "SandboxAgent", session: "SessionInfo") -> Object:
        # Agents that cannot delete sessions keep their own copies. Only a terminated session is deleted all the same.
        await client.sessions.terminate(session.session_id)
        answer = await client.request(methods.DELETE, {"sessionId": session.session_id})
        warnings = [str(each) for each in list_at(answer, "_meta", META, "warnings")]
        return {"warnings": warnings} if warnings else {}

    def describe_end(answer: Object) -> str:
        return f"is deleted{''.join(f'; {one_line(str(each))}' for each in list_at(answer, 'warnings'))}"

    return _end_each(arguments, delete, describe_end, lambda session: _may_delete(arguments, session))


def _may_delete(arguments: ParsedArguments, session: "SessionInfo") -> bool:
    """Whether to delete a session: ask about it if a turn runs there."""
    if not session.running or arguments.switch("yes"):
        return True
    title = f" ({one_line(session.title)})" if session.title else ""
    warning = f"{one_line(session.session_id)}{title}: a turn is running, and is cut off"
    return confirm(warning, "the session is kept")


def _end_each(
    arguments: ParsedArguments,
    end: "Callable[[SandboxAgent, SessionInfo], Awaitable[Object]]",
    describe_end: Callable[[Object], str],
    may_end: "Callable[[SessionInfo], bool]" = lambda _: True,
) -> int:
    """End every session, on one connection, also after one was refused. Return the exit code."""

    async def work(remote: CalledServer) -> int:
        found = [await attempt(remote, find_session(remote.api, name)) for name in arguments.words("sessions")]
        named = {each.session_id: each for each in (read_session(raw) for raw in found if raw is not None)}
        sessions = [each for each in named.values() if may_end(each)]
        failed, outcomes = None in found or len(sessions) < len(named), list[Object]()
        if sessions:
            async with remote.connected(sessions[0].agent) as client:
                for session in sessions:
                    id = session.session_id
                    answer = await attempt(remote, end(client, session), f"{id}: ")
                    failed |= answer is None
                    if answer is not None:
                        outcomes.append({"sessionId": id, **answer})
                        if not arguments.switch("json"):
                            print(f"{one_line(id)} {describe_end(answer)}", flush=True)
        if arguments.switch("json"):
            print_json(msgspec.json.encode({"sessions": outcomes}))
        return EXIT_FAILED if failed else 0

    return call(arguments, work)
