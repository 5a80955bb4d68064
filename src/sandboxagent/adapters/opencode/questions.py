"""Translate agents' requests to OpenCode's permissions and questions, and the replies back.

Pure.
"""

import hashlib

import msgspec
from msgspec import UNSET

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.ids import make_id, milliseconds, tick_of
from sandboxagent.adapters.opencode.objects import (
    PermissionRequest,
    QuestionInfo,
    QuestionOption,
    QuestionRequest,
    Reply,
    ToolRef,
)
from sandboxagent.adapters.opencode.tools import ToolCall
from sandboxagent.protocol.envelope import META, Object, list_at, object_at, objects_at, text_at
from sandboxagent.server.sessions.forms import takes_own_answers
from sandboxagent.server.sessions.pending import PendingRequest

REPLIES: dict[str, Reply] = {"once": "once", "always": "always", "reject": "reject", "allow": "once", "deny": "reject"}
"""Replies by their names in requests, with the names that older programs use."""
_KINDS: dict[Reply, tuple[str, ...]] = {
    "once": ("allow_once",),
    "always": ("allow_always", "allow_once"),
    "reject": ("reject_once", "reject_always"),
}
"""Kinds of an agent's options that match a reply, best first."""
_FILES = ("edit", "write", "read", "list", "delete", "move")
"""Tools that need permission for each file that they name."""
_PASSING = ("toolCallId", "status")
"""Members that differ between two tool calls that do the same."""
_PERMISSIONS = {"write": "edit", "delete": "edit", "move": "edit", "glob": "grep"}
MAX_HEADER = 30


def request_id(pending: PendingRequest) -> str:
    """Return OpenCode's id of a request. Ids ascend in the order of the requests."""
    prefix = "per" if pending.kind == "permission" else "que"
    # The position distinguishes requests of the same millisecond, and keeps their order.
    tick = tick_of(milliseconds(pending.asked_at)) + (pending.key & 0xFFF)
    return make_id(prefix, tick, pending.id)


# Permissions


def make_permission(pending: PendingRequest, session_id: str, message_id: str | None) -> PermissionRequest:
    """Return a request for permission, with the real command, file and change."""
    call = _read_call(pending)
    permission = _PERMISSIONS.get(call.tool, call.tool)
    patterns = _find_patterns(call) or [call.title or "*"]
    metadata: Object = dict(call.input)
    if call.diffs:
        metadata |= {"diff": call.diff}
    if call.path and permission in ("edit", "read"):
        metadata["filepath"] = call.path
    if call.title:
        metadata.setdefault("title", call.title)
    tool = UNSET if message_id is None else ToolRef(message_id=message_id, call_id=call.call_id)
    return PermissionRequest(
        id=request_id(pending),
        session_id=session_id,
        permission=permission,
        patterns=patterns,
        metadata=metadata,
        always=patterns,
        tool=tool,
    )


def _read_call(pending: PendingRequest) -> ToolCall:
    asked = object_at(pending.request.params(), "toolCall")
    call = ToolCall(text_at(asked, "toolCallId") or "", 0)
    call.update(asked, 0)
    return call


def _find_patterns(call: ToolCall) -> list[str]:
    given, tool = call.input, call.tool
    if tool in _FILES and call.paths:
        return call.paths
    names = ("command",) if tool == "bash" else ("filePath", "pattern", "url", "query", "path")
    return [text for name in names if (text := text_at(given, name))][:1]


def read_reply(said: str) -> Reply:
    """Return the reply for its name in a request. Raises BridgeError."""
    reply = REPLIES.get(said)
    if reply is None:
        raise BridgeError(400, f"a permission is answered by once, always or reject, not by {said[:40]!r}")
    return reply


def answer_permission(pending: PendingRequest, reply: Reply, message: str | None) -> Object:
    """Return the result for the agent: one of its own options. Raises BridgeError if no option matches the reply."""
    options = objects_at(pending.request.params(), "options")
    for kind in _KINDS[reply]:
        for option in options:
            if option.get("kind") == kind and (id := text_at(option, "optionId")) is not None:
                return _with_reason({"outcome": {"outcome": "selected", "optionId": id}}, message)
    if reply == "reject":
        return _with_reason({"outcome": {"outcome": "cancelled"}}, message)
    offered = ", ".join(str(option.get("kind")) for option in options)
    raise BridgeError(400, f"the agent offers no option for {reply!r}; it offers: {offered}")


def find_rule(pending: PendingRequest) -> tuple[str, ...] | None:
    """Return the rule for a permission that is given for good: a digest of the whole request in its session.

    None if the request does not contain the tool's input, or names neither a command nor a file. Two such requests may
    look alike and do different things.
    """
    call = _read_call(pending)
    if pending.session is None or not call.raw_input or not (call.command or call.paths):
        return None
    params = pending.request.params()
    asked = {name: value for name, value in object_at(params, "toolCall").items() if name not in _PASSING}
    whole = [pending.session.id, params | {"sessionId": None, "toolCall": asked}]
    digest = hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()
    return _PERMISSIONS.get(call.tool, call.tool), digest


def is_remembered_by_agent(pending: PendingRequest) -> bool:
    """Return whether the agent itself offers to remember a permission."""
    return any(option.get("kind") == "allow_always" for option in objects_at(pending.request.params(), "options"))


def read_kind(decision: Object) -> Reply:
    """Return the reply that corresponds to a decision of a person or a rule."""
    kind = text_at(decision, "optionKind") or ""
    if decision.get("outcome") != "answered" or not kind.startswith("allow"):
        return "reject"
    return "always" if kind == "allow_always" else "once"


def _with_reason(result: Object, message: str | None) -> Object:
    return result | {"_meta": {META: {"reason": message}}} if message else result


# Questions


def make_question(params: Object, pending: PendingRequest, session_id: str, message_id: str | None) -> QuestionRequest:
    """Return a request with questions. `params` are those that the hub sends to clients."""
    own = takes_own_answers(pending.request)
    questions = read_questions(params)
    call_id = text_at(params, "toolCallId")
    tool = UNSET if message_id is None or call_id is None else ToolRef(message_id=message_id, call_id=call_id)
    infos = [
        QuestionInfo(
            question=text_at(each, "question") or text_at(params, "prompt") or "",
            header=(text_at(each, "header") or text_at(each, "question") or "Question")[:MAX_HEADER],
            options=[
                QuestionOption(label=_label(option), description=text_at(option, "description") or "")
                for option in objects_at(each, "options")
            ],
            multiple=each.get("multiSelect") is True,
            custom=own[number] if number < len(own) else True,
        )
        for number, each in enumerate(questions)
    ]
    return QuestionRequest(id=request_id(pending), session_id=session_id, questions=infos, tool=tool)


def read_questions(params: Object) -> list[Object]:
    """Return all questions of a request; the short form counts as one question."""
    several = objects_at(params, "questions")
    if several:
        return several
    pairs = [
        [part for part in list_at({"pair": each}, "pair") if isinstance(part, str)]
        for each in list_at(params, "options")
    ]
    options = [{"id": pair[0], "label": pair[-1]} for pair in pairs if pair]
    return [{"question": text_at(params, "prompt") or "", "options": options, "multiSelect": False}]


def answer_question(params: Object, answers: list[list[str]]) -> Object:
    """Return the result for the hub, with labels replaced by the ids of their options; other texts are unchanged."""
    questions = read_questions(params)
    chosen: list[list[str]] = []
    for number, labels in enumerate(answers):
        options = objects_at(questions[number], "options") if number < len(questions) else []
        ids = {_label(option): id for option in options if (id := text_at(option, "id")) is not None}
        chosen.append([ids.get(label, label) for label in labels])
    # Add empty answers for questions that the program left out.
    chosen += [[] for _ in questions[len(chosen) :]]
    return {"status": "answered", "answers": chosen}


def label_answers(params: Object, answers: list[object]) -> list[list[str]]:
    """Return answers with the ids of options replaced by their labels."""
    questions = read_questions(params)
    found: list[list[str]] = []
    for number, given in enumerate(answers):
        options = objects_at(questions[number], "options") if number < len(questions) else []
        labels = {text_at(option, "id"): _label(option) for option in options}
        found.append([labels.get(id, id) for id in list_at({"given": given}, "given") if isinstance(id, str)])
    return found


def _label(option: Object) -> str:
    return text_at(option, "label") or text_at(option, "id") or ""
