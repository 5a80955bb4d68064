"""Define what nodes and gateways send to each other besides events, as MessagePack."""

from msgspec import Raw, Struct

PROTOCOL = 1
"""Version of all this."""
OLDEST = max(1, PROTOCOL - 1)
"""A gateway speaks this one, too: gateways are upgraded first."""

LOG, BEAT, FACTS = "log", "beat", "facts"
"""What a node asks of a gateway."""

SAFE_AT = b"x-sandbox-agent-safe-at"
"""Header of a node's answer that comes before the stream has what the answer speaks of: the node's position up to which
the stream has to come. The body is as long as its head says; behind it comes nothing when the stream is there, or the
problem that keeps it from getting there."""


class GatewayAnnouncement(Struct, rename="camel"):
    """A gateway is there: once a second, to all nodes."""

    gateway: str
    oldest: int
    """Protocol versions that it speaks, from here …"""
    newest: int
    """… to here."""


class OutgoingMessage(Struct):
    """One message of a node's log."""

    subject: str
    meta: str
    """What the events have in common, as JSON."""
    last: int
    """The node's own position of the last event that is complete with this message."""
    part: str
    """`2/5` for a part of a long line; empty otherwise."""
    body: bytes


class LogRequest(Struct):
    """Publish these, all or none."""

    messages: list[OutgoingMessage]
    expected: dict[str, int]
    """For each subject the sequence of its last message, as the node knows it; -1 when it does not."""
    nonce: str = ""
    """Of the lease under which the node publishes."""


class End(Struct):
    """Where a subject really ends."""

    sequence: int
    last: int
    """Position at the node of the last event that is there; 0 when there is none."""
    owner: str
    """The node that it belongs to."""
    epoch: int


class LogReply(Struct, omit_defaults=True):
    """What became of a LogRequest. Exactly one of these is set."""

    published: dict[str, int] | None = None
    """Subject → sequence of its last message now."""
    ends: dict[str, End] | None = None
    """Nothing was published: subjects end elsewhere than the node thinks."""
    refused: str | None = None
    """Nothing was published, and asking again will not help."""
    slow: str | None = None
    """Nothing was published; ask again in a moment."""


class BeatRequest(Struct):
    """A node is there: every two seconds."""

    nonce: str
    """Of this run of the node: tells it from a clone."""
    revision: int
    """Of its lease, as it knows it; 0 when it has none."""
    version: str
    labels: dict[str, str]
    agents: list[str]
    running: int
    """Turns that run."""
    since: str = ""
    """When this run of the node began: UTC, ISO 8601 with milliseconds."""
    waiting: int = 0
    """Bytes of its log that are not published yet."""
    started: list[str] = []
    """Agents whose shared process runs."""


class BeatReply(Struct, omit_defaults=True):
    """Its lease is renewed, or another node has this name."""

    revision: int = 0
    clash: str | None = None
    """Why it has no lease."""
    failed: str | None = None
    """Why its lease could not be renewed this time."""


class Probe(Struct):
    """A gateway wants to know whether a run of a node is there; it answers with a message of any content."""

    gateway: str
    id: str
    """Of the flow that the answer goes into."""


class FactsRequest(Struct):
    """What lists show of a node's sessions."""

    sessions: dict[str, bytes | None]
    """Session id → its view as JSON; None for one that was deleted."""


class FactsReply(Struct, omit_defaults=True):
    """Which of them were not taken, and why."""

    refused: dict[str, str] = {}
    failed: str | None = None
    """Why it has to be asked again."""


class Opening(Struct):
    """The first piece of a flow: an HTTP request, which a gateway's guard has let through."""

    gateway: str
    nonce: str
    """Of the lease of the node that is meant: a clone of it does not answer."""
    method: str
    target: bytes
    """The path as it was sent, percent-encoded."""
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    more: bool
    """More of the body follows in pieces."""
    joins: bool = False
    """The gateway takes the beginning of the answer's body together with its head."""


class AnswerHead(Struct):
    """The first piece of the node's answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    """The beginning of the body, for a gateway that takes it here."""
    whole: bool = False
    """That is all of it: no piece follows."""


class AttachmentChange(Struct, rename="camel", omit_defaults=True):
    """In the stream, as JSON: a connection is attached to a session, or no longer."""

    session_id: str
    attached: bool
    deleted: bool = False
    """It is no longer attached because the session was deleted."""


class StreamOpened(Struct, rename="camel", tag_field="kind", tag="stream-opened"):
    """In the stream, as JSON: this gateway has the stream of a connection now."""

    gateway: str
    id: str = ""
    """By which the gateway knows its own word."""


class SentTo(Struct, rename="camel", tag_field="kind", tag="sent-to"):
    """In the stream, as JSON: a gateway sends a request of a connection to a node, or a node has accepted one."""

    id: str
    """Its id, as JSON."""
    node: str
    promised_by: str | None = None
    """The run of that node, by its nonce, that has accepted it and puts the response on the stream."""
    after: int = 0
    """The response comes after this position of the stream."""


class Attaches(Struct, rename="camel", tag_field="kind", tag="attaches"):
    """In the stream, as JSON: a connection asks to be attached to a session, and its node puts the response there.

    That names a position of the node's own, in the place of which gateways show one of the stream.
    """

    id: str
    """Of the request, as JSON."""


class Answered(Struct, rename="camel", tag_field="kind", tag="answered"):
    """In the stream, as JSON: a connection has answered what an agent asked."""

    id: str
    """Of the request, as JSON."""


class Gone(Struct, rename="camel", tag_field="kind", tag="gone"):
    """In the stream, as JSON: a session to which a connection was attached is no longer at its node."""

    session_id: str
    known_at: int = 0
    """Where the stream was when the node said so, 0 for here: what it has attached later is another session."""


class Visit(Struct, rename="camel"):
    """A connection in the fleet's table, as JSON."""

    digest: str
    """SHA-256 of its id, which no table has."""
    opened_at: int
    agent: str
    initialize: Raw
    """What its client said of itself."""
    home: str | None
    """The node that is asked what belongs to no session."""
    nodes: list[str]
    """Nodes to which it was introduced, in order."""


class Introduction(Struct, rename="camel"):
    """Makes a gateway's connection known to a node, as JSON."""

    connection_id: str
    """By which the gateways call for it at this node, and at no other."""
    tag: str
    initialize: Raw
    """What its client said of itself."""
    agent: str | None = None
    """For an `initialize` that names none."""
    greet: bool = False
    """Start the agent, and answer as it does."""


class Waiting(Struct, rename="camel"):
    """A gateway waits for a run of a node; with each sign of life, for a node that does not know what it waits for."""

    gateway: str
    nonce: str


class Introduced(Struct, rename="camel"):
    """The answer to an Introduction."""

    known: bool
    """The node knew it before: what it was attached to, it still is."""
    agent: str
    greeting: Raw = Raw(b"null")
    """The response to `initialize`, where one was wanted."""


class Opened(Struct, rename="camel"):
    """The client of a guest has the response that names a new session, as JSON: now the node may send its updates."""

    session_id: str


class Lease(Struct, rename="camel"):
    """What is known of a node while it is there."""

    node: str
    nonce: str
    version: str
    labels: dict[str, str]
    agents: list[str]
    running: int
    since: str = ""
    waiting: int = 0
    """Bytes of its log that are not published yet."""
    draining: bool = False
    """It gets no new sessions."""
    started: list[str] = []
    """Agents whose shared process runs."""
    limited: str = ""
    """What a gateway did not take of it lately, and why."""
    set_aside: str = ""
    """Why no gateway hears it for a while."""
    pinned: bool = False
    """Its labels are an operator's word, and it has no agents but those that the operator lets it have."""
    allowed: list[str] | None = None
    """Agents that it may have; None for any."""


class Pin(Struct, rename="camel"):
    """What an operator says of a node, whatever the node says of itself; as JSON."""

    labels: dict[str, str] = {}
    agents: list[str] | None = None
    """Agents that it may have; None for any."""


class Listed(Struct, rename="camel"):
    """A session in the fleet's list."""

    node: str
    session: Raw
    """Its view, as the node has it."""
