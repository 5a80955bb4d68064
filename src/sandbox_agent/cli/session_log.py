"""The log of a session: a line for each event, for people or as JSON, and what comes from now on."""

import shutil
import sys
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.cli.arguments import Arguments, complain
from sandbox_agent.cli.output import one_line, paint, write_json
from sandbox_agent.cli.remote import Refused, Remote, calling, understood
from sandbox_agent.cli.rpc import Connection, connected
from sandbox_agent.cli.session_calls import find, read
from sandbox_agent.envelope import Object, at, object_at, objects_at, text_at

PAGE = 1000
LONGEST = 1000
"""Characters of a line in a pipe; on a terminal it is as wide as that."""

WHO = {"fromClient": "client", "fromAgent": "agent", "fromServer": "server"}
STYLES = {"client": "cyan", "agent": "green", "server": "dim"}
_TEXTS = frozenset({"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"})


class Event(Struct):
    """An envelope with its place in the log."""

    id: int
    at: str
    direction: str
    envelope: Object


class _Gap(Struct, rename="camel"):
    after: int = 0
    resumes_at: int = 0


class _Page(Struct):
    events: list[Raw]
    next: int | None = None
    gap: _Gap | None = None


class _Place(Struct):
    id: int


class _Attached(Struct):
    position: int


def print_events(arguments: Arguments) -> int:
    """Print the log of a session; gives the exit code."""

    def work(remote: Remote) -> int:
        session = read(find(remote, arguments.word("session") or ""))
        with connected(remote, session.agent) as connection:
            log = _Log(connection, session.session_id, arguments.number("after") or 0, as_json=arguments.switch("json"))
            if arguments.switch("follow"):
                log.follow()
            else:
                log.read_on()
        return 0

    return calling(arguments, work)


class _Log:
    """Reads a session's log and prints it; `at` is the last event that was printed."""

    def __init__(self, connection: Connection, session: str, after: int, *, as_json: bool) -> None:
        self._connection = connection
        self._session = session
        self._at = after
        self._as_json = as_json

    def read_on(self) -> None:
        """Print what there is by now."""
        while True:
            asked: Object = {"sessionId": self._session, "after": self._at, "limit": PAGE}
            answer = self._connection.ask("_sandboxagent/session/events", asked)
            page = understood(answer, _Page)
            self._print(page)
            if page.next is None:
                return

    def follow(self) -> None:
        """Print what there is, and what comes. The stream says when there is something; the log says what."""
        asked: Object = {"sessionId": self._session}
        start = understood(self._connection.ask("_sandboxagent/session/attach", asked), _Attached)
        self.read_on()
        for event in self._connection.stream(start.position):
            if event.id.isdigit() and int(event.id) > self._at:
                self.read_on()
                # What came meanwhile for this connection alone is in no log.
                self._at = max(self._at, int(event.id))
        raise Refused("the server has ended the stream")

    def _print(self, page: _Page) -> None:
        if page.gap is not None:
            complain(f"what came after {page.gap.after} and before {page.gap.resumes_at} is no longer kept")
        for raw in page.events:
            if self._as_json:
                self._at = understood(raw, _Place).id
                write_json(bytes(raw))
            else:
                event = understood(raw, Event)
                self._at = event.id
                print(line(event, _width()))
        sys.stdout.flush()


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else LONGEST


def line(event: Event, width: int) -> str:
    """An event on one line."""
    who = WHO.get(event.direction, event.direction)
    head = f"{event.id:>6}  {_moment(event.at)}  "
    said = one_line(summary(event.envelope))
    room = max(20, width - len(head) - 8)
    said = said if len(said) <= room else said[: room - 1] + "…"
    return f"{paint(head, 'dim')}{paint(f'{who:<6}', STYLES.get(who, 'dim'))}  {said}"


def _moment(at: str) -> str:
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at


def summary(envelope: Object) -> str:
    """What an envelope says, in short."""
    method, id = text_at(envelope, "method"), envelope.get("id")
    params = object_at(envelope, "params")
    if method is None:
        return _response(envelope, id)
    match method:
        case "session/update":
            return _update(object_at(params, "update"))
        case "session/prompt":
            return f"prompt: {_content(params.get('prompt') or params.get('content'))}"
        case "_sandboxagent/session/turn":
            return f"turn {params.get('state')}{_because(params)}"
        case "_sandboxagent/session/ended":
            return f"session ended ({params.get('reason')}){_because(params)}"
        case "session/request_permission":
            return f"asks permission #{_id(id)}: {text_at(params, 'toolCall', 'title') or ''}"
        case _:
            name = method if id is None else f"{method} #{_id(id)}"
            rest = {key: value for key, value in params.items() if key != "sessionId"}
            return f"{name} {_json(rest)}" if rest else name


def _update(update: Object) -> str:
    kind = text_at(update, "sessionUpdate") or "update"
    if kind in _TEXTS:
        return f"{kind.removesuffix('_chunk')}: {_content(update.get('content'))}"
    if kind in ("tool_call", "tool_call_update"):
        facts = [text_at(update, name) for name in ("toolCallId", "status", "title")]
        return f"{kind}: {', '.join(fact for fact in facts if fact)}"
    if kind == "plan":
        entries = [text_at(entry, "content") or "" for entry in objects_at(update, "entries")]
        return f"plan: {'; '.join(entries)}"
    rest = {key: value for key, value in update.items() if key != "sessionUpdate"}
    return f"{kind} {_json(rest)}"


def _content(content: object) -> str:
    """Texts as they are; anything else by its kind."""
    if isinstance(content, str):
        return content
    blocks = objects_at({"": content}, "") or [object_at(content)]
    return " ".join(text_at(block, "text") or f"[{text_at(block, 'type')}]" for block in blocks)


def _response(envelope: Object, id: object) -> str:
    error = at(envelope, "error")
    if error is not None:
        return f"error to #{_id(id)}: {text_at(error, 'message')} ({at(error, 'code')})"
    return f"answer to #{_id(id)}: {_json(envelope.get('result'))}"


def _because(params: Object) -> str:
    why = text_at(params, "stopReason") or text_at(params, "error", "message") or text_at(params, "message")
    return f": {why}" if why else ""


def _id(id: object) -> str:
    return id if isinstance(id, str) else _json(id)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
