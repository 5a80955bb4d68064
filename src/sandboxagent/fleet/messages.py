"""Define the messages that nodes and gateways exchange besides events, as MessagePack."""

from msgspec import Raw, Struct

PROTOCOL = 1
"""Version of this protocol."""
OLDEST = max(1, PROTOCOL - 1)
"""Oldest protocol version that a gateway supports, because gateways are upgraded first."""

LOG, BEAT, FACTS = "log", "beat", "facts"
"""The requests that a node sends to a gateway."""

SAFE_AT = b"x-sandbox-agent-safe-at"
"""Header of a node's answer that arrives before the events that it refers to are in the stream.

Its value is the node's position up to which the stream must come. The body has its announced length. After the body,
nothing follows if the stream got there, or otherwise the problem that prevents it.
"""


class GatewayAnnouncement(Struct, rename="camel"):
    """The announcement of a gateway, sent to all nodes once a second."""

    gateway: str
    oldest: int
    """The oldest protocol version that the gateway supports."""
    newest: int
    """The newest protocol version that the gateway supports."""


class OutgoingMessage(Struct):
    """A message of a node's log."""

    subject: str
    meta: str
    """The properties that all events of the message share, as JSON."""
    last: int
    """The node's own position of the last event that this message completes."""
    part: str
    """`2/5` for a part of a long line; otherwise empty."""
    body: bytes


class LogRequest(Struct):
    """A request to publish messages, all or none."""

    messages: list[OutgoingMessage]
    expected: dict[str, int]
    """The sequence of each subject's last message, as the node knows it; -1 if the node does not know it."""
    nonce: str = ""
    """Nonce of the lease under which the node publishes."""


class End(Struct):
    """The actual end of a subject."""

    sequence: int
    """Sequence of the last message."""
    last: int
    """The node's position of the last event on the subject; 0 if there is none."""
    owner: str
    """The node that owns the subject."""
    epoch: int


class LogReply(Struct, omit_defaults=True):
    """The outcome of a LogRequest. Exactly one field is set."""

    published: dict[str, int] | None = None
    """The sequence of each subject's last message, after publishing."""
    ends: dict[str, End] | None = None
    """The ends of subjects that are not where the node expects them. Nothing was published."""
    refused: str | None = None
    """Why nothing was published. A repetition will not help."""
    slow: str | None = None
    """Why nothing was published yet. The node repeats the request in a moment."""


class BeatRequest(Struct):
    """A request of a node to renew its lease, sent every two seconds."""

    nonce: str
    """Nonce of this run of the node. It tells the node from a clone."""
    revision: int
    """Revision of the node's lease, as the node knows it; 0 if it has none."""
    version: str
    labels: dict[str, str]
    agents: list[str]
    running: int
    """Number of turns that run."""
    since: str = ""
    """Time when this run of the node began: UTC, ISO 8601 with milliseconds."""
    waiting: int = 0
    """Number of bytes of the node's log that are not published yet."""
    started: list[str] = []
    """Agents whose shared process runs."""


class BeatReply(Struct, omit_defaults=True):
    """The outcome of a BeatRequest: the lease is renewed, or another node has this name."""

    revision: int = 0
    clash: str | None = None
    """Why the node has no lease."""
    failed: str | None = None
    """Why the lease could not be renewed this time."""


class Probe(Struct):
    """A gateway's question whether a run of a node is alive. The run answers with a message of any content."""

    gateway: str
    id: str
    """Id of the flow in which the answer is sent."""


class FactsRequest(Struct):
    """The facts about a node's sessions for lists."""

    sessions: dict[str, bytes | None]
    """The view of each session as JSON, by session id; None for a deleted session."""


class FactsReply(Struct, omit_defaults=True):
    """The outcome of a FactsRequest."""

    refused: dict[str, str] = {}
    """Why sessions were refused, by session id."""
    failed: str | None = None
    """Why the node must repeat the request."""


class Opening(Struct):
    """The first piece of a flow: an HTTP request that has passed the gateway's guard."""

    gateway: str
    nonce: str
    """Nonce of the intended node's lease, so that a clone does not answer."""
    method: str
    target: bytes
    """The path as it was sent, percent-encoded."""
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    more: bool
    """Whether more of the body follows in pieces."""
    joins: bool = False
    """Whether the gateway accepts the beginning of the answer's body together with its head."""


class AnswerHead(Struct):
    """The first piece of the node's answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    """The beginning of the body, for a gateway that accepts it together with the head."""
    whole: bool = False
    """Whether `body` is the whole body, so that no piece follows."""


class AttachmentChange(Struct, rename="camel", omit_defaults=True):
    """A record in the stream, as JSON: a connection was attached to a session, or detached from it."""

    session_id: str
    attached: bool
    deleted: bool = False
    """Whether the connection was detached because the session was deleted."""


class StreamOpened(Struct, rename="camel", tag_field="kind", tag="stream-opened"):
    """A record in the stream, as JSON: a gateway has opened the stream of a connection."""

    gateway: str
    id: str = ""
    """Id by which the gateway recognizes its own record."""


class SentTo(Struct, rename="camel", tag_field="kind", tag="sent-to"):
    """A record in the stream, as JSON: a gateway sends a connection's request to a node, or a node has accepted it."""

    id: str
    """The request's id, as JSON."""
    node: str
    promised_by: str | None = None
    """Nonce of the node's run that has accepted the request and puts the response on the stream."""
    after: int = 0
    """Position of the stream after which the response comes."""


class Attaches(Struct, rename="camel", tag_field="kind", tag="attaches"):
    """A record in the stream, as JSON: a connection's request to attach, whose response its node puts on the stream.

    The response has a position of the node. Gateways replace it by a position of the stream.
    """

    id: str
    """The request's id, as JSON."""


class Answered(Struct, rename="camel", tag_field="kind", tag="answered"):
    """A record in the stream, as JSON: a connection has answered an agent's request."""

    id: str
    """The request's id, as JSON."""


class Gone(Struct, rename="camel", tag_field="kind", tag="gone"):
    """A record in the stream, as JSON: a session that a connection was attached to is not at its node any more."""

    session_id: str
    known_at: int = 0
    """Position of the stream when the node reported this; 0 for the position of this record. A session of this id that
    the connection attaches to later is another one."""


class ConnectionRecord(Struct, rename="camel"):
    """A connection in the fleet's table, as JSON."""

    digest: str
    """SHA-256 of the connection's id. The id itself is in no table."""
    opened_at: int
    agent: str
    initialize: Raw
    """The client's `initialize`."""
    home: str | None
    """The node that gets requests without a session."""
    nodes: list[str]
    """Nodes to which the connection was introduced, in order."""


class Introduction(Struct, rename="camel"):
    """A request that makes a gateway's connection known to a node, as JSON."""

    connection_id: str
    """Id of the connection at this node alone."""
    tag: str
    initialize: Raw
    """The client's `initialize`."""
    agent: str | None = None
    """Agent for an `initialize` that names none."""
    greet: bool = False
    """Whether to start the agent, and to answer with its response to `initialize`."""


class Waiting(Struct, rename="camel"):
    """The content of a gateway's keep-alive, which waits for a run of a node.

    It is for a node that does not know the flow.
    """

    gateway: str
    nonce: str


class IntroductionReply(Struct, rename="camel"):
    """The answer to an Introduction."""

    known: bool
    """Whether the node knew the connection before. Its attachments then still exist."""
    agent: str
    greeting: Raw = Raw(b"null")
    """The response to `initialize`, if `greet` was set."""


class Opened(Struct, rename="camel"):
    """A report, as JSON: a client has the response with its new session, so its updates may be sent."""

    session_id: str


class Lease(Struct, rename="camel"):
    """The facts about a connected node."""

    node: str
    nonce: str
    version: str
    labels: dict[str, str]
    agents: list[str]
    running: int
    since: str = ""
    waiting: int = 0
    """Number of bytes of the node's log that are not published yet."""
    draining: bool = False
    """Whether the node gets no new sessions."""
    started: list[str] = []
    """Agents whose shared process runs."""
    limited: str = ""
    """What a gateway has refused from the node lately, and why."""
    set_aside: str = ""
    """Why all gateways ignore the node for a while."""
    pinned: bool = False
    """Whether an operator has set the labels, and which agents the node may have."""
    allowed: list[str] | None = None
    """Agents that the node may have; None for any."""


class Pin(Struct, rename="camel"):
    """An operator's settings for a node, which override the node's own report; as JSON."""

    labels: dict[str, str] = {}
    agents: list[str] | None = None
    """Agents that the node may have; None for any."""


class Listed(Struct, rename="camel"):
    """A session in the fleet's list."""

    node: str
    session: Raw
    """The session's view, as its node reports it."""
