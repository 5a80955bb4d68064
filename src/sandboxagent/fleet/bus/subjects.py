"""Name the bus's subjects, and say who may write and read each.

Pure.

A node's credential lets it publish below `up.<node>` and subscribe below `dn.<node>` and `all`. Everything else belongs
to gateways.
"""

import base64
import hashlib
import re

EVENTS = "ev.>"
"""Everything that the stream of events takes."""
BEACON = "all.gateway"
"""Where gateways say that they are there."""

GATEWAY = "_"
"""Stands for all gateways where a node's name would stand; no node can have it."""

_NAME = re.compile(r"[a-z0-9-]{1,40}")
_TAG = re.compile(r"g[a-z0-9]{8,40}")
_MAX_NAME = 100


def is_name(text: str) -> bool:
    """Whether a node or a gateway may have this name. NATS takes `*` for one, and its rights would match all others."""
    return _NAME.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Whether it is the tag of a gateway's connection. Those of a server's own connections look otherwise (`c7`)."""
    return _TAG.fullmatch(text) is not None


def token(id: str) -> str:
    """An id as one part of a subject: base64url, or `=` and its SHA-256 when it is long."""
    raw = id.encode()
    if len(raw) <= _MAX_NAME:
        return _encode(raw)
    return "=" + _encode(hashlib.sha256(raw).digest())


def _encode(raw: bytes) -> str:
    # An empty id has to be a part of a subject, too.
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() or "="


def session_events(session_id: str) -> str:
    """The log of one session."""
    return f"ev.s.{token(session_id)}"


def session_token(subject: str) -> str:
    """The token of the session whose log this is."""
    return subject.removeprefix("ev.s.")


def is_session(subject: str) -> bool:
    """Whether it is the log of a session."""
    return subject.startswith("ev.s.")


def connection_events(tag: str, source: str) -> str:
    """What one connection alone is sent by a node, or by a gateway (GATEWAY)."""
    return f"ev.c.{tag}.{source}"


def is_own(subject: str) -> bool:
    """Whether it is what one connection alone is sent."""
    return subject.startswith("ev.c.")


def attachments(tag: str, source: str) -> str:
    """Which sessions of a node a connection is attached to, and from when; which gateway has its stream (GATEWAY)."""
    return f"ev.w.{tag}.{source}"


def attachments_beside(subject: str) -> str:
    """The same of the connection and the source that `connection_events` names."""
    return f"ev.w.{subject.removeprefix('ev.c.')}"


def is_attachments(subject: str) -> bool:
    """Whether it is about a connection, not to its client."""
    return subject.startswith("ev.w.")


def filter_of(subject: str) -> str:
    """What a reader of a subject asks for: everything of a connection at once, so that readers have few filters."""
    kind, _, rest = subject.removeprefix("ev.").partition(".")
    return f"ev.*.{rest.partition('.')[0]}.*" if kind in ("c", "w") else subject


def remote_tag(subject: str, node: str) -> str | None:
    """The tag of the connection that a node says something to under this subject; None when it is another subject."""
    parts = subject.split(".")
    fits = len(parts) == 4 and parts[0] == "ev" and parts[1] in ("c", "w") and parts[3] == node
    return parts[2] if fits and is_tag(parts[2]) else None


def request_to_gateway(node: str, verb: str, gateway: str) -> str:
    """What a node asks of one gateway."""
    return f"up.{node}.{verb}.{gateway}"


def requests_of_node(node: str, gateway: str) -> str:
    """All that one node asks of one gateway."""
    return f"up.{node}.*.{gateway}"


def first_beats(gateway: str) -> str:
    """What nodes say first to one gateway: it has heard nothing of them."""
    return f"up.*.beat.{gateway}"


def sender(subject: str) -> tuple[str, str]:
    """Which node asks, and for what: the server lets no node publish under another one's name."""
    _, node, verb, *_ = subject.split(".")
    return node, verb


def run_of_node(node: str, nonce: str) -> str:
    """Where one run of a node hears whether it is there."""
    return f"dn.{node}.run.{token(nonce)}"


def flow_to_node(node: str, flow: str) -> str:
    """What a gateway sends into a flow; `*` for all of a node's flows."""
    return f"dn.{node}.flow.{flow}"


def flow_to_gateway(node: str, gateway: str, flow: str) -> str:
    """What a node sends into a flow. Its name is in it, so that no other node can."""
    return f"up.{node}.flow.{gateway}.{flow}"


def inbox_of_node(node: str) -> str:
    """Below this a node gets answers, and nowhere else."""
    return f"dn.{node}.in"


def inbox_of_gateway(gateway: str) -> str:
    """Below this a gateway gets answers."""
    return f"gw.{gateway}.in"


def rights_of_node(node: str) -> dict[str, object]:
    """What a node's credential allows, as the configuration of a NATS server says it."""
    return {"publish": {"allow": [f"up.{node}.>"]}, "subscribe": {"allow": [f"dn.{node}.>", "all.>"]}}
