"""Decisions: the outcome of an agent's request, who decided it and why, as written to the log and sent to clients."""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Raw

from sandbox_agent.envelope import Object, notification, objects_at, parse, text_at
from sandbox_agent.hub.pending import PendingRequest
from sandbox_agent.wire import methods

METHOD = methods.DECISION


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
    asked = pending.request.params()
    call = text_at(asked, "toolCall", "toolCallId") or text_at(asked, "toolCallId")
    chosen = None if answer is None else text_at(parse(answer).result(), "outcome", "optionId")
    kinds = [option.get("kind") for option in objects_at(asked, "options") if option.get("optionId") == chosen]
    further: Object = {
        "toolCallId": call,
        "outcome": pending.outcome,
        "optionId": chosen,
        "optionKind": kinds[0] if chosen is not None and kinds else None,
        "by": {"kind": by.kind, **by.facts},
        "reason": by.reason,
    }
    return notification(METHOD, params | {name: value for name, value in further.items() if value is not None})
