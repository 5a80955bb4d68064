"""What a node may say to one client alone: it asks under its own name, and speaks of its own sessions. Pure."""

from collections.abc import Iterable

import msgspec

from sandbox_agent.envelope import Kind, param, parse
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.wire import methods

LONGEST_ID = 256
"""Bytes of a request's id; those that nodes make have some 80."""
LONGEST_SESSION_ID = 1024


class Forged(Exception):
    """A node says what only another one could, or what no honest one would."""


def asker(id: bytes) -> str | None:
    """The node in the id of a request: `"<node>.<run>.<guest>.<number>"`."""
    return _parts(id)[0]


def run_of(id: bytes) -> str | None:
    """The run of that node, by its nonce."""
    return _parts(id)[1]


def _parts(id: bytes) -> tuple[str | None, str | None]:
    try:
        text = msgspec.json.decode(id)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, None
    if not isinstance(text, str):
        return None, None
    node, _, rest = text.partition(".")
    return node, rest.partition(".")[0]


def sessions_named(node: str, lines: Iterable[bytes]) -> set[str]:
    """The sessions that lines are about: the node must have all of them. Raises Forged for what no node may say."""
    named: set[str] = set()
    for line in lines:
        try:
            envelope = parse(line)
        except NotAnEnvelope as error:
            raise Forged(f"not an envelope: {error}") from error
        asked = envelope.id if envelope.kind is Kind.REQUEST else None
        if envelope.method == methods.CANCEL_REQUEST:
            asked = param(line, "requestId") or b"null"
        if asked is not None and len(asked) > LONGEST_ID:
            raise Forged("the id of a request is too long")
        if asked is not None and asker(asked) != node:
            raise Forged("the id of a request names another node")
        if envelope.session_id is not None:
            if len(envelope.session_id) > LONGEST_SESSION_ID:
                raise Forged("the id of a session is too long")
            named.add(envelope.session_id)
    return named
