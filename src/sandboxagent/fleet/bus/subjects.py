"""Name the bus's subjects, and say who may write and read each.

Pure: it uses no event loop, no clock and no files.

A node's credential lets it publish below `up.<node>`, and subscribe below `dn.<node>` and `all`. Everything else is for
gateways only.
"""

import base64
import hashlib
import re

EVENTS = "ev.>"
"""Pattern of all subjects in the stream of events."""
GATEWAY_ANNOUNCEMENTS = "all.gateway"
"""Subject on which gateways announce themselves."""

GATEWAY = "_"
"""Stands for all gateways in the place of a node's name. No node can have this name."""

_NAME = re.compile(r"[a-z0-9-]{1,40}")
_TAG = re.compile(r"g[a-z0-9]{8,40}")
_MAX_NAME = 100


def is_name(text: str) -> bool:
    """Return whether a node or a gateway may have this name.

    NATS accepts `*` as a name, but the rights of such a member would match those of all others.
    """
    return _NAME.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Return whether a text is the tag of a gateway's connection. A server's own connections have other tags (`c7`)."""
    return _TAG.fullmatch(text) is not None


def token(id: str) -> str:
    """Encode an id as one part of a subject: in base64url, or as `=` and its SHA-256 if it is long."""
    raw = id.encode()
    if len(raw) <= _MAX_NAME:
        return _encode(raw)
    return "=" + _encode(hashlib.sha256(raw).digest())


def _encode(raw: bytes) -> str:
    # A part of a subject must not be empty, even for an empty id.
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() or "="


def session_events(session_id: str) -> str:
    """Return the subject of a session's log."""
    return f"ev.s.{token(session_id)}"


def session_token(subject: str) -> str:
    """Return the session's token in the subject of its log."""
    return subject.removeprefix("ev.s.")


def is_session(subject: str) -> bool:
    """Return whether a subject is the log of a session."""
    return subject.startswith("ev.s.")


def connection_events(tag: str, source: str) -> str:
    """Return the subject of the events that a node, or a gateway (GATEWAY), sends to one connection alone."""
    return f"ev.c.{tag}.{source}"


def is_own(subject: str) -> bool:
    """Return whether a subject has events for one connection alone."""
    return subject.startswith("ev.c.")


def attachments(tag: str, source: str) -> str:
    """Return the subject of a connection's state at a source.

    For a node, it has the sessions that the connection is attached to, and since when. For GATEWAY, it has the gateway
    that holds the connection's stream.
    """
    return f"ev.w.{tag}.{source}"


def attachments_beside(subject: str) -> str:
    """Return the `attachments` subject for the connection and the source of a `connection_events` subject."""
    return f"ev.w.{subject.removeprefix('ev.c.')}"


def is_attachments(subject: str) -> bool:
    """Return whether a subject has a connection's state, instead of events for its client."""
    return subject.startswith("ev.w.")


def filter_of(subject: str) -> str:
    """Return the pattern with which a reader follows a subject.

    All subjects of one connection have the same pattern, so that readers have few filters.
    """
    kind, _, rest = subject.removeprefix("ev.").partition(".")
    return f"ev.*.{rest.partition('.')[0]}.*" if kind in ("c", "w") else subject


def remote_tag(subject: str, node: str) -> str | None:
    """Return the tag of the connection to which a node publishes on this subject; None for any other subject."""
    parts = subject.split(".")
    fits = len(parts) == 4 and parts[0] == "ev" and parts[1] in ("c", "w") and parts[3] == node
    return parts[2] if fits and is_tag(parts[2]) else None


def request_to_gateway(node: str, verb: str, gateway: str) -> str:
    """Return the subject on which a node sends a kind of request to one gateway."""
    return f"up.{node}.{verb}.{gateway}"


def requests_of_node(node: str, gateway: str) -> str:
    """Return the pattern of all requests of one node to one gateway."""
    return f"up.{node}.*.{gateway}"


def first_beats(gateway: str) -> str:
    """Return the pattern of the lease renewals of all nodes to one gateway. A gateway uses it for nodes new to it."""
    return f"up.*.beat.{gateway}"


def sender(subject: str) -> tuple[str, str]:
    """Return the node that sent a request, and the verb of the request.

    The NATS server does not let a node publish under another node's name.
    """
    _, node, verb, *_ = subject.split(".")
    return node, verb


def run_of_node(node: str, nonce: str) -> str:
    """Return the subject on which one run of a node gets probes."""
    return f"dn.{node}.run.{token(nonce)}"


def flow_to_node(node: str, flow: str) -> str:
    """Return the subject on which a gateway sends to a node in a flow; `*` for all flows of the node."""
    return f"dn.{node}.flow.{flow}"


def flow_to_gateway(node: str, gateway: str, flow: str) -> str:
    """Return the subject on which a node sends to a gateway in a flow.

    It has the node's name, so that no other node can use it.
    """
    return f"up.{node}.flow.{gateway}.{flow}"


def inbox_of_node(node: str) -> str:
    """Return the prefix of the only subjects on which a node gets answers."""
    return f"dn.{node}.in"


def inbox_of_gateway(gateway: str) -> str:
    """Return the prefix of the subjects on which a gateway gets answers."""
    return f"gw.{gateway}.in"


def rights_of_node(node: str) -> dict[str, object]:
    """Return the rights of a node's credential, in the form of a NATS server's configuration."""
    return {"publish": {"allow": [f"up.{node}.>"]}, "subscribe": {"allow": [f"dn.{node}.>", "all.>"]}}
