"""Define servers, nodes, agents, installs and sessions as clients see them."""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from sandboxagent.protocol.envelope import Object


class AgentHealth(Struct):
    """One agent, in short."""

    agent: str
    """Its id."""
    installed: bool
    """It could be started now."""
    running: bool
    """Its shared process runs."""


class HealthView(Struct, rename="camel"):
    """How the server is doing."""

    status: Literal["ok", "degraded"]
    """`degraded` while the session log cannot be written, or was damaged and that is not acknowledged yet,
    or does not reach the fleet."""
    version: str
    """Of sandbox-agent."""
    uptime_ms: int
    """Since the server started."""
    agents: list[AgentHealth]
    detail: str | UnsetType = UNSET
    """Why it is degraded."""


class GatewayHealth(Struct, rename="camel"):
    """How the gateway is doing, and what it sees of the fleet."""

    status: Literal["ok", "degraded"]
    """`degraded` while NATS cannot be reached, or no node is there."""
    version: str
    """Of sandbox-agent."""
    uptime_ms: int
    """Since the gateway started."""
    gateway: str
    """Its name, a new one each time it starts."""
    nodes: int
    """That are there."""
    sessions: int
    """In the list, those of nodes that are away included."""
    running: int
    """Turns that run."""
    agents: list[AgentHealth]
    """Those that are installed on any node; `running` where any node runs them. `GET /v1/agents?node=` has more."""
    detail: str | UnsetType = UNSET
    """Why it is degraded."""


class NodeView(Struct, rename="camel"):
    """A node that is there."""

    node: str
    version: str
    """Of sandbox-agent."""
    labels: dict[str, str]
    agents: list[str]
    """That are installed there."""
    running: int
    """Turns that run."""
    sessions: int
    """That belong to it."""
    since: str
    """When it was started, by its own clock: UTC, ISO 8601 with milliseconds."""
    draining: bool = False
    """It gets no new sessions."""
    pinned: bool = False
    """`labels` are an operator's word, and `agents` has none but those that the operator lets it have. Otherwise both
    are the node's own word."""
    limited: str | UnsetType = UNSET
    """What this fleet did not take of the node lately, and why."""
    set_aside: str | UnsetType = UNSET
    """Why no gateway hears the node for a while: it floods."""


class NodesView(Struct):
    """All nodes that are there."""

    nodes: list[NodeView]


Source = Literal["bundled", "path", "registry", "fallback"]
"""Where its program comes from: with us, named by the user, by the ACP registry, or pinned in the manifest."""


Attaching = Literal["link", "file-link", "text-link", "text"]
"""What an agent gets links to: all attachments, files, short text files, or nothing; the rest is named in the text."""


class Features(Struct, frozen=True, forbid_unknown_fields=True):
    """What people and clients should know before they choose an agent."""

    permissions: Literal["always", "mode", "configured", "never"]
    """When it asks: `always`, in some of its modes (`mode`), when its own configuration says so (`configured`), or
    `never`."""
    questions: Literal["form", "extension", "none"]
    """How its questions arrive: as elicitation (`form`), as our `extension`, or not at all (`none`)."""
    attachments: Attaching = "link"
    """What it gets links to: everything (`link`), files (`file-link`), short text files (`text-link`), or nothing
    (`text`)."""
    uris: Literal["encoded", "plain"] = "encoded"
    """Whether it understands a percent-encoded `file://` URI; else the path stands in it as it is."""
    images: bool = False
    """Whether it takes images."""
    mixes: bool = True
    """Whether a prompt may hold images and links; else the links make it drop the images."""


class Artifact(Struct, rename="camel", kw_only=True, frozen=True):
    """One program that an agent needs."""

    kind: Literal["agent_process", "native"]
    """What speaks ACP, or the agent behind it."""
    name: str
    version: str | None
    """`null` when unknown."""
    path: str | None
    """Where it is on this machine. In a record, with `{folder}` in it as in the command."""
    source: str
    """As that of the install."""
    sha256: str | UnsetType = UNSET
    """Of what was fetched, where it is known."""
    integrity: str | UnsetType = UNSET
    """What npm checked the package against."""
    unverified: bool | UnsetType = UNSET
    """True when there was no hash to check it against."""


Stage = Literal["waiting", "resolving", "fetching", "unpacking", "verifying", "done"]


class Progress(Struct, rename="camel", frozen=True):
    """One state of an install."""

    stage: Stage
    message: str
    """What is being done, for people."""
    bytes: int | UnsetType = UNSET
    """Fetched so far."""
    total_bytes: int | UnsetType = UNSET
    """To be fetched, where that is known."""


class Credential(Struct, frozen=True):
    """One thing that would let an agent reach a model."""

    kind: Literal["variable", "file"]
    name: str
    """Of the variable, or the path of the file; never a value."""
    found: bool
    """It is there."""


class InstallFacts(Struct, rename="camel", kw_only=True):
    """Where an agent comes from."""

    source: Source
    """Where it comes from; `path` is `agents.toml`, `fallback` are the manifest's pins."""
    non_registry: bool
    """It does not come from the ACP registry."""
    verified: bool
    """It answered a handshake when it was installed, or runs now."""
    artifacts: list[Artifact]
    registry_slug: str | UnsetType = UNSET
    """Its name in the ACP registry."""
    package: str | UnsetType = UNSET
    """The package it comes from, or would."""
    folder: str | UnsetType = UNSET
    """Where it is installed."""
    installed_at: str | UnsetType = UNSET
    verified_at: str | UnsetType = UNSET
    verification_error: str | UnsetType = UNSET
    """Why the last install failed; absent after one that did not."""
    platform: str | UnsetType = UNSET
    """The machine it was installed for."""
    node: str | UnsetType = UNSET
    """The Node it was installed with."""
    note: str | UnsetType = UNSET
    """A note about its source."""
    progress: Progress | UnsetType = UNSET
    """While it is being installed."""


class AgentFacts(Struct, rename="camel", kw_only=True):
    """One agent."""

    id: str
    """By which it is named everywhere."""
    title: str
    description: str
    supported: bool
    """Whether it can be had at all."""
    installed: bool
    """It could be started now."""
    credentials_available: bool
    """One of the variables or files that let it reach a model is there, or it needs none."""
    credentials: list[Credential]
    """All it could use, by name; empty when none is needed."""
    install: InstallFacts
    instructions: str
    """How to install it and what it needs, for people."""
    capabilities: Object
    """As it advertised them in ACP, when it was installed or by now."""
    unsupported_reason: str | UnsetType = UNSET
    """Why not."""
    version: str | UnsetType = UNSET
    """Of the program that speaks ACP."""
    native_version: str | UnsetType = UNSET
    """Of the agent behind it, where that is another."""
    path: str | UnsetType = UNSET
    """The program that would be started."""
    agent_info: Object | UnsetType = UNSET
    """What it said of itself when it was installed."""
    features: Features | UnsetType = UNSET
    """What to know before choosing it."""


class ServerStatus(Struct, rename="camel", kw_only=True):
    """How an agent's process is doing."""

    status: Literal["stopped", "installing", "starting", "running", "error"]
    """Of its shared process; `error` when it did not start, or died."""
    restart_count: int
    """How often it has ended."""
    pid: int | UnsetType = UNSET
    uptime_ms: int | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    """What went wrong last."""


class AgentView(AgentFacts, rename="camel", kw_only=True):
    """An agent, as `GET /v1/agents` shows it."""

    server_status: ServerStatus
    models: Object | UnsetType = UNSET
    """As in its newest session, else as it said when it was asked; absent until then."""
    modes: Object | UnsetType = UNSET
    """Like `models`."""
    config_options: list[Object] | UnsetType = UNSET
    """Like `models`: all its options, with those for mode and model."""


class StderrView(Struct):
    """The newest of what an agent's processes wrote to stderr."""

    text: str
    """In UTF-8; bytes that are none are replaced."""
    truncated: bool
    """There is more before it."""


class AgentsView(Struct):
    """All agents."""

    agents: list[AgentView]


class InstallRequest(Struct, rename="camel"):
    """What to install; all of it may be left out."""

    reinstall: bool = False
    """Fetch it again, even if it is there."""
    agent_version: str | None = None
    """Of the agent itself."""
    agent_process_version: str | None = None
    """Of the program that speaks ACP for it."""


class InstallResult(Struct, rename="camel"):
    """What an install did."""

    agent: str
    already_installed: bool
    """It was there, in a version that was asked for or in any."""
    version: str | None
    """Of the program that speaks ACP for it."""
    source: str
    """`registry`, `fallback` (our pins), `bundled`, or `path` (named in `agents.toml`)."""
    verified: bool
    """It has answered a handshake."""
    artifacts: list[Artifact]
    native_version: str | UnsetType = UNSET
    """Of the agent behind that program, where it is another."""


class ContextView(Struct):
    """How full an agent's context is, in tokens."""

    used: int
    size: int


class CostView(Struct):
    """What something has cost."""

    amount: float
    currency: str
    """ISO 4217, such as `USD`."""


class ActivityView(Struct, rename="camel", kw_only=True):
    """What a session is doing, for lists of many sessions."""

    kind: str | None
    """What its agent did last: `message`, `thought` or `tool`."""
    said: str
    """The last line of that, or the title of the tool call; at most 240 characters."""
    turn_started_at: str | None
    """When the turn that runs was started: UTC, ISO 8601 with milliseconds."""
    tokens: int | None
    """Tokens of all its turns, if its agent counts them."""
    context: ContextView | None
    """As its agent reported it last."""
    cost: CostView | None
    """As its agent reported it last."""


class SessionView(Struct, rename="camel", kw_only=True, omit_defaults=False):
    """A session, as `GET /v1/sessions` shows it."""

    session_id: str
    """The agent's own id of it, unless two agents chose the same."""
    agent: str
    cwd: str
    """Its directory, on the server's machine."""
    title: str | None
    """As the agent gave it, else as it was asked for."""
    created_at: str
    """UTC, ISO 8601 with milliseconds."""
    updated_at: str
    """When the last event of it was kept."""
    ended: bool
    """No process holds it; see `terminationInfo`."""
    resumable: bool
    """A prompt takes it up again when it has ended."""
    running: bool
    """A turn runs now."""
    event_count: int
    """Events in its log."""
    pending: int
    """How many permissions, questions and elicitations wait for an answer."""
    model: str | None
    """The model in use, as far as the agent says."""
    mode: str | None
    """The mode in use, as far as the agent says."""
    termination_info: Object | None
    """How it ended, as in `_sandboxagent/session/ended`."""
    metadata: Object
    """What `session/new` and `_sandboxagent/session/set_metadata` gave, as it was asked for."""
    activity: ActivityView
    """What its agent did last, and what it has used."""
    alias: str | UnsetType = UNSET
    """Its `requestedSessionId`, accepted wherever an id is."""
    left_out: list[str] | UnsetType = UNSET
    """Facts that an earlier release kept and that are nested too deep to be shown, such as `metadata`."""


class PendingView(Struct, rename="camel"):
    """A pending request, as clients list it."""

    id: Raw
    """Under which all clients know it, and no other request ever."""
    kind: str
    """`permission`, `question`, `elicitation`, or `request` for anything else."""
    session_id: str
    asked_at: str
    """UTC, ISO 8601 with milliseconds."""
    envelope: Raw
    """The request, in the form that this client knows."""


class SessionsView(Struct, rename="camel"):
    """A page of sessions, newest first."""

    sessions: list[SessionView]
    next_cursor: str | UnsetType = UNSET
    """The `cursor` of the next page; absent on the last."""
    changes: str | UnsetType = UNSET
    """The moment of this list: give it as `changedAfter` to get what has changed since."""
    gone: list[str] | UnsetType = UNSET
    """Sessions that were deleted. With it, `sessions` are only those that have changed since `changedAfter`; without it
    they are all."""
