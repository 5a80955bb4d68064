"""Decisions: the outcome of an agent's request, who decided it and why, as written to the log and sent to clients."""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Raw

from sandbox_agent.envelope import META, Envelope, Object, notification, objects_at, parse, text_at
from sandbox_agent.hub.pending import Outcome, PendingRequest
from sandbox_agent.wire import methods

METHOD = methods.DECISION
REASON_CHARACTERS = 4096
"""What is kept of the reason that a person gives."""


@dataclass(frozen=True, slots=True)
class Decider:
    """Who or what settled a request."""

    kind: Literal["rule", "client", "timeout", "cancel", "agent", "limit"]
    facts: Object = field(default_factory=dict[str, object])
    """What else is known of them."""
    reason: str | None = None


AGENT = Decider("agent", reason="the agent no longer waits for it")
CANCEL = Decider("cancel", reason="the turn was cancelled")
TIMEOUT = Decider("timeout", reason="no answer came in time")


def decision(pending: PendingRequest, by: Decider, answer: bytes | None) -> bytes | None:
    """The notification for all attached clients; None for requests that no human answers, or without a session."""
    if pending.session is None or pending.kind == "request":
        return None
    params: Object = {"sessionId": pending.session.id, "requestId": Raw(pending.agent_id), "kind": pending.kind}
    asked, result = pending.request.params(), {} if answer is None else parse(answer).result()
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


def reason_in(answer: Envelope) -> str | None:
    """Why a person answered so: `_meta["sandboxagent.dev"].reason` of the result."""
    reason = text_at(answer.result(), "_meta", META, "reason")
    return reason[:REASON_CHARACTERS] if reason and not reason.isspace() else None


def refusal(pending: PendingRequest, answer: bytes, reason: str) -> str | None:
    """What to say to the agent of a request that a person refused for a reason; None when it was not refused."""
    chosen = text_at(parse(answer).result(), "outcome", "optionId")
    allowed = chosen is not None and not (_kind_of(pending.request.params(), chosen) or "").startswith("reject")
    if allowed or (pending.kind != "permission" and pending.outcome is Outcome.ANSWERED):
        return None
    asked = pending.request.params()
    about = text_at(asked, "toolCall", "title") or text_at(asked, "prompt") or text_at(asked, "message")
    return f"The user refused your request{f' ({about})' if about else ''} and says why: {reason}"


def _kind_of(asked: Object, option: str) -> str | None:
    return next((text_at(each, "kind") for each in objects_at(asked, "options") if each.get("optionId") == option), None)
