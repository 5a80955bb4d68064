"""Print the log of a session, one line for each event."""

import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from sandboxagent.cli.call import CalledServer, call
from sandboxagent.cli.output import (
    complain,
    one_line,
    paint,
    write_json,
)
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.cli.session_lookup import find_session, read_session
from sandboxagent.client.errors import ClientError
from sandboxagent.protocol.envelope import Object, at, object_at, objects_at, text_at

if TYPE_CHECKING:
    from sandboxagent import Gap, LogEvent


MAX_LINE = 1000
"""Maximum number of characters of a line in a pipe. On a terminal, its width is the maximum."""

WHO = {"fromClient": "client", "fromAgent": "agent", "fromServer": "server"}
_SENDER_STYLES = {"client": "cyan", "agent": "green", "server": "dim"}
_TEXTS = frozenset({"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"})


def print_events(arguments: ParsedArguments) -> int:
    """Print the log of a session. Return the exit code."""
    after, as_json = arguments.number("after") or 0, arguments.switch("json")

    async def work(remote: CalledServer) -> int:
        session = read_session(await find_session(remote.api, arguments.word("session") or ""))
        async with remote.connected(session.agent) as client:
            log = (await client.sessions.attach(session.session_id)).log(after)
            follows = arguments.switch("follow")
            if not follows:
                log.close()
            async for event in log:
                _print(event, as_json=as_json)
                if follows:
                    sys.stdout.flush()
            if follows:
                raise ClientError("the session was terminated; no more events will come")
        return 0

    return call(arguments, work)


def _print(event: "LogEvent | Gap", *, as_json: bool) -> None:
    from sandboxagent import Gap

    if isinstance(event, Gap):
        complain(f"the events after {event.after} and before {event.resumes_at} were deleted from the log")
    elif as_json:
        write_json(msgspec.json.encode(event))
    else:
        print(line(event, _width()))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_LINE


def line(event: "LogEvent", width: int) -> str:
    """Format an event as one line."""
    who = WHO.get(event.direction, event.direction)
    head = f"{event.id:>6}  {_moment(event.at)}  "
    said = one_line(summary(event.envelope))
    room = max(20, width - len(head) - 8)
    said = said if len(said) <= room else said[: room - 1] + "…"
    return f"{paint(head, 'dim')}{paint(f'{who:<6}', _SENDER_STYLES.get(who, 'dim'))}  {said}"


def _moment(at: str) -> str:
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at


def summary(envelope: Object) -> str:
    """Describe an envelope in short."""
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
    """Return texts unchanged, and anything else as its type in brackets."""
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
