"""Read the parts of a view from envelopes: tool calls, requests, terminals, settings.

Agents may have written anything. A member of another type than expected counts as absent.
"""

from typing import cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from sandboxagent.client.view import (
    AttachedFile,
    Context,
    Cost,
    EventRange,
    FailureItem,
    Number,
    OpenCall,
    QueuedPrompt,
    RequestDecision,
    RequestItem,
    SessionEnd,
    SessionUsage,
    TerminalExit,
    TerminalView,
    TokenCounts,
    ToolCallItem,
    ToolCallKind,
    ToolCallState,
)
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, at, list_at, object_at, objects_at, text_at

BEGINNINGS = frozenset({methods.NEW, methods.LOAD, methods.RESUME, methods.FORK})
"""Requests of clients with which the log of a session begins."""
MAX_OUTPUT = 1 << 20
"""Maximum number of UTF-16 code units that are kept of the output of an agent's own terminal."""
_KINDS = frozenset(get_args(ToolCallKind))
_STATES = frozenset(get_args(ToolCallState))
_NOTHING: Object = {}


class Moment(Struct, frozen=True):
    """The position and the time of an event."""

    id: int
    at: str


# Members


def number_at(value: object, *path: str) -> Number | None:
    """Return the number at a path; None if there is none."""
    found = at(value, *path)
    if isinstance(found, float):
        return int(found) if found.is_integer() else found
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def objects_in(value: Object, name: str) -> tuple[Object, ...] | None:
    """Return the objects in a list, without its other items; None if there is no list."""
    return tuple(objects_at(value, name)) if isinstance(value.get(name), list) else None


def rpc_id(id: object) -> str | Number | None:
    """Return a JSON-RPC id; None for a value that can be none."""
    return id if isinstance(id, str) else number_at({"id": id}, "id")


def ours(params: Object) -> Object:
    """Return the server's own part of `_meta`."""
    return object_at(params, "_meta", META)


def is_text(block: Object) -> bool:
    """Return whether a content block is a text."""
    return block.get("type") == "text" and isinstance(block.get("text"), str)


# Tool calls


def new_tool_call(tool_call_id: str, moment: Moment) -> ToolCallItem:
    """Return a tool call of which nothing is known but its id."""
    return ToolCallItem(
        key=f"tool-{moment.id}",
        at=moment.at,
        events=EventRange.of(moment.id),
        tool_call_id=tool_call_id,
        title="",
        kind="other",
        status="pending",
        content=(),
        locations=(),
    )


def update_tool_call(call: ToolCallItem, update: Object, at: str, request_key: str | None) -> ToolCallItem:
    """Return a tool call after an update. What the update leaves out, or has as null, stays."""
    kind, status, title = text_at(update, "kind"), text_at(update, "status"), text_at(update, "title")
    state = cast("ToolCallState | None", status if status in _STATES else None)
    content, locations = objects_in(update, "content"), objects_in(update, "locations")
    raw_input, raw_output, meta = update.get("rawInput"), update.get("rawOutput"), object_at(update, "_meta")
    if state in ("completed", "failed"):
        ended_at = call.ended_at or at
    else:
        ended_at = call.ended_at if state is None else None
    return replace(
        call,
        title=call.title if title is None else title,
        kind=cast("ToolCallKind", kind) if kind in _KINDS else call.kind,
        status=state or call.status,
        content=call.content if content is None else content,
        locations=call.locations if locations is None else locations,
        raw_input=call.raw_input if raw_input is None else raw_input,
        raw_output=call.raw_output if raw_output is None else raw_output,
        meta={**(call.meta or {}), **meta} if meta else call.meta,
        ended_at=ended_at,
        request_key=request_key or call.request_key,
    )


# Terminals


def new_terminal(terminal_id: str, call: OpenCall | None = None) -> TerminalView:
    """Return a terminal of which nothing is known but the request that named it."""
    made = call.params if call is not None and call.method == methods.TERMINAL_CREATE else {}
    return TerminalView(
        terminal_id=terminal_id,
        command=text_at(made, "command") or "",
        args=tuple(each for each in list_at(made, "args") if isinstance(each, str)),
        cwd=text_at(made, "cwd"),
        output="",
        truncated=False,
        released=False,
        events=EventRange() if call is None else EventRange.of(call.event),
    )


def update_terminal(terminal: TerminalView, method: str, result: Object) -> TerminalView:
    """Return a terminal after the answer to a call."""
    match method:
        case methods.TERMINAL_OUTPUT:
            status = result.get("exitStatus")
            return replace(
                terminal,
                output=text_at(result, "output") or "",
                truncated=result.get("truncated") is True,
                exit=_exit(cast("Object", status)) if isinstance(status, dict) else terminal.exit,
            )
        case methods.TERMINAL_WAIT:
            return replace(terminal, exit=_exit(result))
        case methods.TERMINAL_RELEASE:
            return replace(terminal, released=True)
        case _:
            return terminal


def _exit(status: Object) -> TerminalExit:
    return TerminalExit(exit_code=number_at(status, "exitCode"), signal=text_at(status, "signal"))


class OwnTerminal(Struct, frozen=True):
    """The facts that an update of a tool call has about a terminal of the agent's own.

    Some agents run commands themselves. They say in `_meta` where (`terminal_info`), the new output
    (`terminal_output`), and how it ended (`terminal_exit`).
    """

    terminal_id: str
    cwd: str | None
    output: str
    exit: TerminalExit | None

    @classmethod
    def of(cls, update: Object) -> "OwnTerminal | None":
        """Read the facts of an update; None if it has none."""
        names = ("terminal_info", "terminal_output", "terminal_exit")
        info, output, exit = parts = [object_at(update, "_meta", name) for name in names]
        terminal_id = next((id for part in parts if (id := text_at(part, "terminal_id")) is not None), None)
        if terminal_id is None:
            return None
        end = TerminalExit(exit_code=number_at(exit, "exit_code"), signal=text_at(exit, "signal"))
        is_exit = "terminal_id" in exit
        return cls(terminal_id, text_at(info, "cwd"), text_at(output, "data") or "", end if is_exit else None)


def end_of_output(text: str) -> tuple[str, bool]:
    """Return the part of a terminal's output that is kept, and whether its beginning was cut."""
    units = text.encode("utf-16-le", "surrogatepass") if 2 * len(text) > MAX_OUTPUT and not text.isascii() else None
    if units is None:
        return text[-MAX_OUTPUT:], len(text) > MAX_OUTPUT
    if len(units) <= 2 * MAX_OUTPUT:
        return text, False
    end = units[-2 * MAX_OUTPUT :]
    # The cut may have left half of a character.
    return (end[2:] if 0xDC <= end[1] <= 0xDF else end).decode("utf-16-le", "surrogatepass"), True


# Failures, ends and tokens


def update_failure(item: FailureItem, error: Object) -> FailureItem:
    """Return a failure with the facts of one more error about it."""
    code, exit_code = number_at(error, "code"), number_at(error, "data", "exitCode")
    signal, stderr = text_at(error, "data", "signal"), at(error, "data", "stderr")
    return replace(
        item,
        code=item.code if code is None else code,
        exit_code=item.exit_code if exit_code is None else exit_code,
        signal=item.signal if signal is None else signal,
        stderr=cast("Object", stderr) if isinstance(stderr, dict) else item.stderr,
        data=error.get("data") if item.data is None else item.data,
    )


def read_session_end(params: Object, at: str) -> SessionEnd:
    """Read the end of a session from the server's notification."""
    stderr = params.get("stderr")
    return SessionEnd(
        reason=_or(text_at(params, "reason"), "unknown"),
        terminated_by=_or(text_at(params, "terminatedBy"), "unknown"),
        at=at,
        message=text_at(params, "message"),
        exit_code=number_at(params, "exitCode"),
        signal=text_at(params, "signal"),
        stderr=cast("Object", stderr) if isinstance(stderr, dict) else None,
    )


_ENDINGS = {
    "closed": "The session was closed",
    "deleted": "The session was deleted",
    "terminated": "The session was ended for good",
}


def describe_end(end: SessionEnd) -> str:
    """Describe the end of a session for people."""
    if end.message is not None:
        return end.message
    if end.reason == "error" and end.terminated_by == "agent":
        return "The agent's process ended"
    return _ENDINGS.get(end.reason, "The session has ended")


def read_tokens(usage: Object) -> TokenCounts | None:
    """Read the tokens of a turn; None if its agent does not count them."""
    total = number_at(usage, "totalTokens")
    if total is None:
        return None
    return TokenCounts(
        total=total,
        input=number_at(usage, "inputTokens") or 0,
        output=number_at(usage, "outputTokens") or 0,
        thought=number_at(usage, "thoughtTokens"),
        cache_read=number_at(usage, "cachedReadTokens"),
        cache_write=number_at(usage, "cachedWriteTokens"),
    )


def add_tokens(one: TokenCounts | None, other: TokenCounts) -> TokenCounts:
    """Return the tokens of two turns together."""
    if one is None:
        return other
    return TokenCounts(
        total=one.total + other.total,
        input=one.input + other.input,
        output=one.output + other.output,
        thought=_sum(one.thought, other.thought),
        cache_read=_sum(one.cache_read, other.cache_read),
        cache_write=_sum(one.cache_write, other.cache_write),
    )


def _sum(one: Number | None, other: Number | None) -> Number | None:
    return other if one is None else one if other is None else one + other


# Prompts and settings


def read_prompt(moment: Moment, params: Object) -> QueuedPrompt:
    """Read a prompt that a client sent."""
    text, blocks = text_at(params, "content"), objects_in(params, "prompt")
    if blocks is None:
        only: Object = {"type": "text", "text": text}
        blocks = () if text is None else (only,)
    return QueuedPrompt(
        key=f"turn-{moment.id}",
        event=moment.id,
        at=moment.at,
        prompt_id=text_at(ours(params), "promptId"),
        blocks=blocks,
        attachments=read_attachments(ours(params)),
    )


def read_attachments(facts: Object) -> tuple[AttachedFile, ...]:
    """Read the files that a prompt names."""
    return tuple(
        AttachedFile(path=path, mime=text_at(each, "mime"), filename=text_at(each, "filename"))
        for each in objects_at(facts, "attachments")
        if (path := text_at(each, "path")) is not None
    )


def read_modes(modes: Object) -> Object:
    """Read the modes that an agent offers."""
    available: Object = {"availableModes": objects_at(modes, "availableModes")}
    return {**modes, **available, "currentModeId": text_at(modes, "currentModeId") or ""}


def set_mode(modes: Object | None, mode_id: str) -> Object:
    """Return the modes after a change of the current one."""
    return {"availableModes": [], **(modes or {}), "currentModeId": mode_id}


def mode_name(modes: Object, mode_id: str) -> str:
    """Return the name of a mode, for people."""
    found = next((each for each in objects_at(modes, "availableModes") if each.get("id") == mode_id), _NOTHING)
    return _or(text_at(found, "name"), mode_id)


def describe_changes(before: tuple[Object, ...], options: tuple[Object, ...]) -> list[str]:
    """Describe the options whose values have changed, each as a line for people."""
    known = {id: _describe_value(option) for option in before if (id := text_at(option, "id")) is not None}
    changes: list[str] = []
    for option in options:
        id = text_at(option, "id")
        # A mode has an update of its own.
        if id is None or option.get("category") == "mode":
            continue
        was, value = known.get(id), _describe_value(option)
        if was is not None and value is not None and was != value:
            changes.append(f"{_or(text_at(option, 'name'), id)}: {value}")
    return changes


def _describe_value(option: Object) -> str | None:
    """Describe the current value of an option for people; None for a value of no known form."""
    value = option.get("currentValue")
    if isinstance(value, bool):
        return "On" if value else "Off"
    if not isinstance(value, str):
        return None
    values = [each for group in objects_at(option, "options") for each in (group, *objects_at(group, "options"))]
    found = next((each for each in values if each.get("value") == value), _NOTHING)
    return _or(text_at(found, "name"), value)


def update_usage(usage: SessionUsage, update: Object) -> SessionUsage:
    """Return the usage after a report of the agent."""
    used, size = number_at(update, "used"), number_at(update, "size")
    amount, currency = number_at(update, "cost", "amount"), text_at(update, "cost", "currency")
    context = usage.context if used is None or size is None else Context(used=used, size=size)
    cost = usage.cost if amount is None or currency is None else Cost(amount=amount, currency=currency)
    return replace(usage, context=context, cost=cost)


def _or(text: str | None, otherwise: str) -> str:
    return otherwise if text is None else text


# Requests


def read_request(method: str, params: Object, item: RequestItem) -> RequestItem | None:
    """Return a request with its contents; None for a method that asks people nothing."""
    match method:
        case methods.REQUEST_PERMISSION:
            options = objects_in(params, "options") or ()
            return replace(item, kind="permission", tool_call=object_at(params, "toolCall"), options=options)
        case methods.REQUEST_QUESTION:
            return replace(
                item,
                kind="question",
                prompt=text_at(params, "prompt") or "",
                question_id=text_at(params, "questionId"),
                tool_call_id=text_at(params, "toolCallId"),
                questions=read_questions(params),
            )
        case methods.ELICITATION:
            return replace(
                item,
                kind="elicitation",
                message=text_at(params, "message") or "",
                mode=_or(text_at(params, "mode"), "form"),
                schema=object_at(params, "requestedSchema") if "requestedSchema" in params else None,
                url=text_at(params, "url"),
            )
        case _:
            return None


def read_questions(params: Object) -> tuple[Object, ...]:
    """Read the questions of a request: several, or in the short form one prompt with options as pairs."""
    questions = objects_in(params, "questions")
    if questions is not None:
        return tuple(map(_question, questions))
    pairs = [cast("list[object]", pair) for pair in list_at(params, "options") if isinstance(pair, list)]
    options = [
        {"id": pair[0], "label": pair[1]}
        for pair in pairs
        if len(pair) > 1 and isinstance(pair[0], str) and isinstance(pair[1], str)
    ]
    return ({"question": text_at(params, "prompt") or "", "options": options, "multiSelect": False},)


def _question(written: Object) -> Object:
    header = text_at(written, "header")
    return {
        **({} if header is None else {"header": header}),
        "question": text_at(written, "question") or "",
        "options": objects_at(written, "options"),
        "multiSelect": written.get("multiSelect") is True,
    }


def read_answer(request: RequestItem, envelope: Object, at: str) -> RequestDecision:
    """Read an answer on its way to the agent. The server's decision tells later who gave it."""
    result = object_at(envelope, "result")
    match request.kind:
        case "permission":
            option_id = text_at(result, "outcome", "optionId")
            if option_id is None:
                return RequestDecision(outcome="cancelled", at=at)
            option = next((each for each in request.options or () if each.get("optionId") == option_id), _NOTHING)
            kind = text_at(option, "kind")
            return RequestDecision(outcome="answered", at=at, option_id=option_id, option_kind=kind)
        case "question":
            answers = _answers(result)
            return RequestDecision(outcome="rejected" if answers is None else "answered", at=at, answers=answers)
        case "elicitation":
            if result.get("action") == "accept":
                return RequestDecision(outcome="answered", at=at, content=object_at(result, "content"))
            outcome = "rejected" if result.get("action") == "decline" else "cancelled"
            return RequestDecision(outcome=outcome, at=at)


def read_decision(params: Object, at: str) -> RequestDecision:
    """Read the server's notification of a decision."""
    by = object_at(params, "by")
    return RequestDecision(
        outcome=_or(text_at(params, "outcome"), "unknown"),
        at=at,
        option_id=text_at(params, "optionId"),
        option_kind=text_at(params, "optionKind"),
        answers=_answers(params),
        content=object_at(params, "content") if "content" in params else None,
        reason=text_at(params, "reason"),
        by=by if isinstance(by.get("kind"), str) else None,
    )


def _answers(value: Object) -> tuple[object, ...] | None:
    answers = value.get("answers")
    return tuple(cast("list[object]", answers)) if isinstance(answers, list) else None
