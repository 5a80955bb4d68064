"""Name who settled an agent's request, and write the decision for clients."""

from typing import Literal

from msgspec import Raw, Struct, field

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    META,
    Envelope,
    Object,
    notification,
    objects_at,
    parse,
    text_at,
)
from sandboxagent.server.sessions.pending import Outcome, PendingRequest

METHOD = methods.DECISION
MAX_REASON_CHARACTERS = 4096
"""Maximum characters that are kept of a person's reason."""


class Decider(Struct, frozen=True):
    """The person, rule or condition that settled a request."""

    kind: Literal["rule", "client", "timeout", "cancel", "agent", "limit"]
    facts: Object = field(default_factory=dict[str, object])
    """Further facts about the decider, such as a client's name or a rule's number."""
    reason: str | None = None


AGENT = Decider("agent", reason="the agent no longer waits for it")
CANCEL = Decider("cancel", reason="the turn was cancelled")
TIMEOUT = Decider("timeout", reason="no answer came in time")


def make_decision(pending: PendingRequest, by: Decider, answer: bytes | None) -> bytes | None:
    """Return the decision's notification for attached clients.

    None for requests that no person answers, or that have no session.
    """
    if pending.session is None or pending.kind == "request":
        return None
    params: Object = {
        "sessionId": pending.session.id,
        "requestId": Raw(pending.id),
        "agentRequestId": Raw(pending.agent_id),
        "kind": pending.kind,
    }
    asked, result = pending.read(), {} if answer is None else parse(answer).result()
    chosen = text_at(result, "outcome", "optionId")
    further: Object = {
        "questionId": pending.question_id,
        "toolCallId": text_at(asked, "toolCall", "toolCallId") or text_at(asked, "toolCallId"),
        "outcome": pending.outcome,
        "optionId": chosen,
        "optionKind": None if chosen is None else _kind_of(asked, chosen),
        "answers": result.get("answers") if pending.kind == "question" else None,
        "content": result.get("content") if pending.kind == "elicitation" else None,
        "by": {"kind": by.kind, **by.facts},
        "reason": by.reason,
    }
    return notification(METHOD, params | {name: value for name, value in further.items() if value is not None})


def make_withdrawal(pending: PendingRequest, who: Object) -> bytes:
    """Return the notification for a client that was asked and need not answer; `who` names the one that did."""
    about = {"outcome": pending.outcome, "answeredBy": pending.answered_by}
    return notification(methods.CANCEL_REQUEST, {"requestId": Raw(pending.id), "_meta": {META: about | who}})


def read_reason(answer: Envelope) -> str | None:
    """Return a person's reason for an answer: `_meta["sandboxagent.dev"].reason` of the result."""
    reason = text_at(answer.result(), "_meta", META, "reason")
    return reason[:MAX_REASON_CHARACTERS] if reason and not reason.isspace() else None


def write_refusal(pending: PendingRequest, answer: bytes, reason: str) -> str | None:
    """Return a text for the agent about a request that a person refused with a reason; None if not refused."""
    chosen = text_at(parse(answer).result(), "outcome", "optionId")
    allowed = chosen is not None and not (_kind_of(pending.read(), chosen) or "").startswith("reject")
    if allowed or (pending.kind != "permission" and pending.outcome is Outcome.ANSWERED):
        return None
    asked = pending.read()
    about = text_at(asked, "toolCall", "title") or text_at(asked, "prompt") or text_at(asked, "message")
    return f"The user refused your request{f' ({about})' if about else ''} and says why: {reason}"


def _kind_of(asked: Object, option: str) -> str | None:
    return next(
        (text_at(each, "kind") for each in objects_at(asked, "options") if each.get("optionId") == option), None
    )
