"""Sessions of a running server: finding them by the beginning of an id, printing them, noting facts, ending them."""

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.cli.arguments import Arguments
from sandbox_agent.cli.failures import EXIT_FAILED
from sandbox_agent.cli.output import one_line, print_facts, print_json, print_table
from sandbox_agent.cli.remote import Refused, Remote, calling, part, understood
from sandbox_agent.cli.rpc import Connection, connected
from sandbox_agent.client.inventory import SessionInfo
from sandbox_agent.envelope import Object, list_at, text_at
from sandbox_agent.errors import SettingsError

TITLES = ("id", "agent", "state", "title", "directory", "age")
STYLES = {"state": {"running": "green", "waiting": "yellow", "ended": "dim"}}
MOST_CANDIDATES = 10
_GONE = frozenset({"session-not-found", "removed", "not-found"})
"""What is answered for an id that is none; one with a slash leads to another route."""


class _Page(Struct, rename="camel"):
    sessions: list[Raw]
    next_cursor: str | None = None


class _Noted(Struct):
    metadata: Object


# --- finding ----------------------------------------------------------------------------------------------------------


def all_sessions(remote: Remote, cwd: str | None = None) -> Iterator[Raw]:
    """The JSON of each, newest first, page by page."""
    cursor = None
    while True:
        page = remote.json("GET", "/v1/sessions", _Page, {"cursor": cursor, "cwd": cwd})
        yield from page.sessions
        cursor = page.next_cursor
        if cursor is None:
            return


def find(remote: Remote, name: str) -> Raw:
    """The JSON of the session with this id or alias, or the only one whose id or alias begins so."""
    if name not in ("", ".", ".."):
        try:
            return Raw(remote.request("GET", f"/v1/sessions/{part(name)}").content)
        except Refused as refused:
            if refused.slug not in _GONE:
                raise
    found = [(read(each), each) for each in all_sessions(remote)] if name else []
    same = [raw for each, raw in found if name in (each.session_id, each.alias)]
    begin = [
        (each, raw) for each, raw in found if each.session_id.startswith(name) or (each.alias or "").startswith(name)
    ]
    if same or len(begin) == 1:
        return same[0] if same else begin[0][1]
    if not begin:
        raise Refused(f"there is no session {name!r}; try: sandbox-agent sessions list")
    listed = [each.session_id for each, _ in begin[:MOST_CANDIDATES]]
    more = f" and {len(begin) - len(listed)} more" if len(begin) > len(listed) else ""
    raise Refused(f"{name!r} is the beginning of {len(begin)} sessions: {', '.join(listed)}{more}")


def read(session: Raw) -> SessionInfo:
    """The facts of one."""
    return understood(session, SessionInfo)


# --- printing ---------------------------------------------------------------------------------------------------------


def print_sessions(arguments: Arguments) -> int:
    """All of them, or those that are asked for; gives the exit code."""
    agent, cwd = arguments.word("agent"), arguments.word("cwd")
    where = os.path.abspath(os.path.expanduser(cwd)) if cwd else None  # noqa: PTH100, PTH111 - no link is resolved

    def work(remote: Remote) -> int:
        known = ((read(each), each) for each in all_sessions(remote, where))
        wanted = islice(((each, raw) for each, raw in known if agent in (None, each.agent)), arguments.number("limit"))
        if arguments.switch("json"):
            print_json(msgspec.json.encode({"sessions": [raw for _, raw in wanted]}))
        else:
            print_table(TITLES, [_row(each) for each, _ in wanted], styles=STYLES)
        return 0

    return calling(arguments, work)


def print_session(arguments: Arguments) -> int:
    """One of them; gives the exit code."""

    def work(remote: Remote) -> int:
        found = find(remote, arguments.word("session") or "")
        if arguments.switch("json"):
            print_json(bytes(found))
        else:
            print_facts(_lines(read(found)))
        return 0

    return calling(arguments, work)


def state(session: SessionInfo) -> str:
    """What it does now, in a word."""
    if session.ended:
        return "ended"
    return "waiting" if session.pending else "running" if session.running else "idle"


def age(moment: datetime) -> str:
    """How long ago something was, in its largest unit."""
    seconds = max(0, int((datetime.now(moment.tzinfo) - moment).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _when(moment: datetime | None) -> str:
    """A moment as the server writes it, and how long ago that is."""
    if moment is None:
        return ""
    return f"{moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} ({age(moment)} ago)"


def _row(session: SessionInfo) -> tuple[str, ...]:
    title, cwd = one_line(session.title or ""), one_line(session.cwd)
    since = age(session.created_at) if session.created_at else ""
    return one_line(session.session_id), session.agent, state(session), title, cwd, since


def _lines(session: SessionInfo) -> list[tuple[str, str]]:
    ended = session.termination_info or {}
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
        ("state", state(session) + (", and can be resumed" if session.ended and session.resumable else "")),
        ("ended", ", ".join(one_line(each) for each in how if each) if ended else ""),
        ("stderr", "\n".join(stderr)),
        ("title", one_line(session.title or "")),
        ("directory", one_line(session.cwd)),
        ("model", session.model or ""),
        ("mode", session.mode or ""),
        ("created", _when(session.created_at)),
        ("updated", _when(session.updated_at)),
        ("events", str(session.event_count)),
        ("pending", str(session.pending)),
        ("metadata", facts(session.metadata)),
    ]


def facts(metadata: Object) -> str:
    """Metadata, a line for each key: texts as they are, anything else as JSON."""
    return "\n".join(f"{one_line(key)} = {_fact(value)}" for key, value in metadata.items())


def _fact(value: object) -> str:
    return one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode())


# --- changing ---------------------------------------------------------------------------------------------------------


def read_facts(given: Sequence[str]) -> Object:
    """Facts as they are written on a command line; raises SettingsError."""
    found: Object = {}
    for each in given:
        key, sign, value = each.partition("=")
        if not sign or not key.removesuffix(":"):
            raise SettingsError(f"expected KEY=TEXT or KEY:=JSON, got {each!r:.100}")
        if not key.endswith(":"):
            found[key] = value
            continue
        try:
            found[key.removesuffix(":")] = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise SettingsError(
                f"{key}= is followed by JSON: {error}; a text is {key.removesuffix(':')}=TEXT"
            ) from None
    return found


def set_metadata(arguments: Arguments, metadata: Object) -> int:
    """Note facts about a session, and print all of them; gives the exit code."""

    def work(remote: Remote) -> int:
        session = read(find(remote, arguments.word("session") or ""))
        with connected(remote, session.agent) as connection:
            asked: Object = {"sessionId": session.session_id, "metadata": metadata}
            answer = connection.ask("_sandboxagent/session/set_metadata", asked)
        if arguments.switch("json"):
            print_json(answer)
        else:
            noted = understood(answer, _Noted).metadata
            print_facts([("session", one_line(session.session_id)), ("metadata", facts(noted))])
        return 0

    return calling(arguments, work)


def terminate(arguments: Arguments) -> int:
    """End sessions for good; gives the exit code."""
    return _each(arguments, "_sandboxagent/session/terminate", _terminated)


def delete(arguments: Arguments) -> int:
    """Delete sessions; gives the exit code."""
    return _each(arguments, "session/delete", lambda _: "is deleted")


def _terminated(answer: Object) -> str:
    return "had ended already" if answer.get("alreadyEnded") else "is terminated"


def _each(arguments: Arguments, method: str, told: Callable[[Object], str]) -> int:
    """Ask for every session, on one connection; what is refused for one does not keep the others from it."""

    def work(remote: Remote) -> int:
        sessions, failed = _found(remote, arguments.words("sessions"))
        outcomes: list[Object] = []
        if sessions:
            with connected(remote, sessions[0].agent) as connection:
                for session in sessions:
                    answer = _answer(connection, method, session)
                    failed |= answer is None
                    if answer is not None:
                        outcomes.append({"sessionId": session.session_id, **answer})
                        if not arguments.switch("json"):
                            print(f"{one_line(session.session_id)} {told(answer)}", flush=True)
        if arguments.switch("json"):
            print_json(msgspec.json.encode({"sessions": outcomes}))
        return EXIT_FAILED if failed else 0

    return calling(arguments, work)


def _found(remote: Remote, names: Sequence[str]) -> tuple[list[SessionInfo], bool]:
    """Those that there are, each once, and whether one is not; that is told."""
    found: dict[str, SessionInfo] = {}
    failed = False
    for name in names:
        try:
            session = read(find(remote, name))
            found[session.session_id] = session
        except Refused as refused:
            refused.tell()
            failed = True
    return list(found.values()), failed


def _answer(connection: Connection, method: str, session: SessionInfo) -> Object | None:
    try:
        return understood(connection.ask(method, {"sessionId": session.session_id}), Object)
    except Refused as refused:
        refused.tell(f"{session.session_id}: ")
        return None
