"""Define the views of servers, nodes, agents, installs and sessions that clients get."""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from sandboxagent.protocol.envelope import Object


class AgentHealth(Struct):
    """The state of one agent, in short."""

    agent: str
    """The agent's id."""
    installed: bool
    """Whether the agent could be started at this moment."""
    running: bool
    """Whether the agent's shared process is running."""


class HealthView(Struct, rename="camel"):
    """The state of the server."""

    status: Literal["ok", "degraded"]
    """`degraded` if the session log cannot be written, was damaged and the damage is not acknowledged, or does not
    reach the fleet."""
    version: str
    """The version of sandbox-agent."""
    uptime_ms: int
    """The time since the server started, in milliseconds."""
    agents: list[AgentHealth]
    """All agents that the server knows."""
    detail: str | UnsetType = UNSET
    """The reason for `degraded`."""


class GatewayHealth(Struct, rename="camel"):
    """The state of a gateway, and its view of the fleet."""

    status: Literal["ok", "degraded"]
    """`degraded` if NATS cannot be reached, or if no node is there."""
    version: str
    """The version of sandbox-agent."""
    uptime_ms: int
    """The time since the gateway started, in milliseconds."""
    gateway: str
    """The gateway's name, a new one at each start."""
    nodes: int
    """The number of nodes that are there."""
    sessions: int
    """The number of sessions in the fleet's list, including the sessions of nodes that are away."""
    running: int
    """The number of turns that are running."""
    agents: list[AgentHealth]
    """All agents that are installed on any node. `running` says whether any node runs the agent. `GET /v1/agents?node=`
    has more facts."""
    detail: str | UnsetType = UNSET
    """The reason for `degraded`."""


class NodeView(Struct, rename="camel"):
    """A node that is there."""

    node: str
    """The node's name."""
    version: str
    """The node's version of sandbox-agent."""
    labels: dict[str, str]
    """The node's labels."""
    agents: list[str]
    """The ids of the agents that are installed on the node."""
    running: int
    """The number of turns that are running on the node."""
    sessions: int
    """The number of sessions that belong to the node."""
    since: str
    """The time when the node started, by its own clock: UTC, ISO 8601 with milliseconds."""
    draining: bool = False
    """Whether the node gets no new sessions, because an operator drains it."""
    pinned: bool = False
    """Whether an operator has pinned the node. `labels` then come from the operator, and `agents` has only agents that
    the operator allows. Otherwise the node itself reports both."""
    limited: str | UnsetType = UNSET
    """The latest data that a gateway refused to take from this node, and the reason."""
    set_aside: str | UnsetType = UNSET
    """The reason why gateways ignore the node for a while: it floods them."""


class NodesView(Struct):
    """All nodes that are there."""

    nodes: list[NodeView]
    """The nodes, sorted by name."""


Source = Literal["bundled", "path", "registry", "fallback"]
"""The source of an agent's program: shipped with the server, named by the user, listed in the ACP registry, or pinned
in the manifest."""


Isolation = Literal["agent", "session"]
Attaching = Literal["link", "file-link", "text-link", "text"]
"""The attachments that an agent gets as links: all, files only, short text files only, or none. The prompt's text names
the others."""


class Features(Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about an agent that people and clients need before they choose it."""

    permissions: Literal["always", "mode", "configured", "never"]
    """When the agent asks for permission: `always`, in some of its modes (`mode`), if its own configuration says so
    (`configured`), or `never`."""
    questions: Literal["form", "extension", "none"]
    """The form in which the agent asks questions: `elicitation/create` (`form`),
    `_sandboxagent/session/request_question` (`extension`), or not at all (`none`)."""
    attachments: Attaching = "link"
    """The attachments that the agent gets as links: all (`link`), files (`file-link`), short text files (`text-link`),
    or none (`text`)."""
    uris: Literal["encoded", "plain"] = "encoded"
    """The spelling of paths in `file://` URIs that the agent understands: percent-encoded (`encoded`), or as they are
    (`plain`)."""
    images: bool = False
    """Whether the agent takes images."""
    mixes: bool = True
    """Whether a prompt may have both images and links. `false` means that the agent drops the images beside links."""


class Artifact(Struct, rename="camel", kw_only=True, frozen=True):
    """One program that an agent needs."""

    kind: Literal["agent_process", "native", "binary"]
    """`agent_process` is the program that speaks ACP, or that our adapter runs. `native` is the agent behind it.
    `binary` is the program for this machine that one of these starts, if they are scripts."""
    name: str
    """The name of the package that has the program, or of the program."""
    version: str | None
    """The version of the program; `null` if it is not known."""
    version_inferred: bool | UnsetType = UNSET
    """`true` if `version` is what the registry or another package says of the program; absent if the program's own
    package says it."""
    package_version: str | UnsetType = UNSET
    """The version of the package, if it is not that of the program."""
    path: str | None
    """The path on this machine. In the record of an install, `{folder}` stands for the folder of the install."""
    source: str
    """The source of the install that brought the program."""
    sha256: str | UnsetType = UNSET
    """The SHA-256 of the download, or else of the program, in hexadecimal."""
    integrity: str | UnsetType = UNSET
    """The hash against which npm checked the package that has the program."""
    unverified: bool | UnsetType = UNSET
    """`true` if there was no hash to check the download against; absent otherwise."""


Stage = Literal["waiting", "resolving", "fetching", "unpacking", "verifying", "done"]


class Progress(Struct, rename="camel", frozen=True):
    """The progress of an install."""

    stage: Stage
    """The step that the install has reached."""
    message: str
    """A description of the step for people."""
    bytes: int | UnsetType = UNSET
    """The number of bytes that are already downloaded."""
    total_bytes: int | UnsetType = UNSET
    """The number of bytes to download. Absent if it is not known."""


class Credential(Struct, frozen=True):
    """A variable or a file that could let an agent reach a model."""

    kind: Literal["variable", "file"]
    """Whether the credential is an environment variable or a file."""
    name: str
    """The name of the variable, or the path of the file. Values are never shown."""
    found: bool
    """Whether the variable is set, or the file exists. The server does not check that its value is valid."""


class InstallFacts(Struct, rename="camel", kw_only=True):
    """The origin of an agent's program, and the state of its install."""

    source: Source
    """The source of the program, or the source that an install would try first: `registry` is the ACP registry,
    `fallback` are the versions that the manifest pins, `path` is a command in `agents.toml`, `bundled` ships with the
    server."""
    non_registry: bool
    """Whether the program comes from a source other than the ACP registry."""
    expected: bool
    """Whether `source`, `nonRegistry`, `registrySlug` and `package` are only expected, because the agent is not
    installed. An install reads the registry again, and may choose otherwise."""
    verified: bool
    """Whether the agent has answered a handshake, at its install or in the process that is running. An agent that comes
    with the server counts as verified."""
    artifacts: list[Artifact]
    """The programs of the agent."""
    registry_slug: str | UnsetType = UNSET
    """The agent's name in the ACP registry."""
    package: str | UnsetType = UNSET
    """The package that the agent was installed from, or would be installed from."""
    folder: str | UnsetType = UNSET
    """The directory of the install."""
    installed_at: str | UnsetType = UNSET
    """The time of the install: UTC, ISO 8601 with milliseconds."""
    verified_at: str | UnsetType = UNSET
    """The time when the agent answered the handshake of its install: UTC, ISO 8601 with milliseconds."""
    verification_error: str | UnsetType = UNSET
    """The reason why the last install failed. Absent if it succeeded."""
    platform: str | UnsetType = UNSET
    """The system and the processor that the agent was installed for."""
    node: str | UnsetType = UNSET
    """The version of Node.js that the agent was installed with."""
    note: str | UnsetType = UNSET
    """A note about the source, for example that the registry could not be reached."""
    progress: Progress | UnsetType = UNSET
    """The progress of the install that is running. Absent if none is."""


class AgentFacts(Struct, rename="camel", kw_only=True):
    """The facts about an agent that do not depend on its process."""

    id: str
    """The id that names the agent everywhere."""
    title: str
    """The agent's name for people."""
    description: str
    """A description of the agent for people."""
    supported: bool
    """Whether the agent can be installed or run here at all."""
    installed: bool
    """Whether the agent could be started at this moment."""
    credentials_available: bool
    """Whether at least one of `credentials` is found, or the agent needs none. The agent may reject it all the same,
    because the server knows credentials by their names only."""
    credentials: list[Credential]
    """All variables and files that could let the agent reach a model. Empty if it needs none."""
    install: InstallFacts
    """The origin of the agent's program, and the state of its install."""
    instructions: str
    """Instructions for people: how to install the agent, and what it needs."""
    isolation: Isolation
    """Which sessions share a process: all sessions of the agent (`agent`), or none (`session`). A crash of a process
    ends the turns of its sessions."""
    capabilities: Object
    """The capabilities that the agent advertised in ACP: those of the process that is running, else those of its
    install. Empty if the agent has not advertised any."""
    unsupported_reason: str | UnsetType = UNSET
    """The reason why the agent is not supported."""
    version: str | UnsetType = UNSET
    """The version of the program that speaks ACP."""
    native_version: str | UnsetType = UNSET
    """The version of the agent behind the program that speaks ACP, if that is another program."""
    path: str | UnsetType = UNSET
    """The path of the program that the server would start."""
    agent_info: Object | UnsetType = UNSET
    """The agent's description of itself in the handshake of its install."""
    features: Features | UnsetType = UNSET
    """Facts that people and clients need before they choose the agent. They were tried with the versions that the
    manifest pins; another version may differ."""


class ServerStatus(Struct, rename="camel", kw_only=True):
    """The state of an agent's shared process."""

    status: Literal["stopped", "installing", "starting", "running", "error"]
    """The state of the shared process. `error` means that it did not start, or that it died."""
    restart_count: int
    """The number of times that the shared process has ended since the server started."""
    pid: int | UnsetType = UNSET
    """The process id, if the process is running."""
    uptime_ms: int | UnsetType = UNSET
    """The time since the process started, in milliseconds."""
    last_error: str | UnsetType = UNSET
    """The last error of a process of this agent."""


class AgentView(AgentFacts, rename="camel", kw_only=True):
    """An agent, as `GET /v1/agents` shows it."""

    server_status: ServerStatus
    """The state of the agent's shared process."""
    offers: Literal["known", "asking", "unknown"]
    """Whether `models`, `modes` and `configOptions` are known. `asking`: the server asks the agent for them at this
    moment. `unknown`: the agent was not asked in this version, or did not answer."""
    offers_error: str | UnsetType = UNSET
    """The reason why the agent did not tell its offers when the server asked."""
    models: Object | UnsetType = UNSET
    """The models that the agent offers, as in its newest session, else as it answered when the server asked. Absent if
    `offers` is not `known`."""
    modes: Object | UnsetType = UNSET
    """The modes that the agent offers, as in its newest session, else as it answered when the server asked. Absent if
    `offers` is not `known`."""
    config_options: list[Object] | UnsetType = UNSET
    """All options of the agent, including those for mode and model, as in its newest session, else as it answered when
    the server asked. Absent if `offers` is not `known`."""


class StderrView(Struct):
    """The newest output of an agent's processes to stderr."""

    text: str
    """The output, decoded as UTF-8. Bytes that are not UTF-8 are replaced."""
    truncated: bool
    """Whether there is older output that `text` does not have."""


class AgentsView(Struct):
    """All agents."""

    agents: list[AgentView]
    """The agents."""


class InstallRequest(Struct, rename="camel"):
    """The versions to install. All members are optional."""

    reinstall: bool = False
    """Whether to install the agent again if it is installed already."""
    agent_version: str | None = None
    """The version of the agent itself."""
    agent_process_version: str | None = None
    """The version of the program that speaks ACP for the agent."""


class InstallResult(Struct, rename="camel"):
    """The result of an install."""

    agent: str
    """The id of the agent."""
    already_installed: bool
    """Whether the agent was there already: in the requested version, or in any version if none was requested."""
    version: str | None
    """The version of the program that speaks ACP for the agent."""
    source: str
    """The source of the program: `registry`, `fallback` (the versions that the manifest pins), `bundled`, or `path`
    (named in `agents.toml`)."""
    verified: bool
    """Whether the agent has answered a handshake."""
    artifacts: list[Artifact]
    """The programs of the agent."""
    native_version: str | UnsetType = UNSET
    """The version of the agent behind the program that speaks ACP, if that is another program."""


class ContextView(Struct):
    """The use of an agent's context, in tokens."""

    used: int
    """The number of tokens in use."""
    size: int
    """The number of tokens that the context can hold."""


class CostView(Struct):
    """A cost that an agent reports."""

    amount: float
    """The amount, in the units of `currency`."""
    currency: str
    """The currency by ISO 4217, such as `USD`."""


class ActivityView(Struct, rename="camel", kw_only=True):
    """The latest activity of a session, for lists of many sessions."""

    kind: str | None
    """The kind of the agent's latest output: `message`, `thought` or `tool`."""
    said: str
    """The last line of the latest message or thought, or the title of the latest tool call. It has at most 240
    characters."""
    turn_started_at: str | None
    """The time when the running turn started: UTC, ISO 8601 with milliseconds. `null` if no turn is running."""
    tokens: int | None
    """The number of tokens of all turns of the session; `null` if the agent does not count them."""
    context: ContextView | None
    """The use of the agent's context, as the agent last reported it."""
    cost: CostView | None
    """The cost of the session, as the agent last reported it."""


class SessionView(Struct, rename="camel", kw_only=True, omit_defaults=False):
    """A session, as `GET /v1/sessions` shows it."""

    session_id: str
    """The session's id. It is the agent's own id of the session, unless two agents chose the same one."""
    agent: str
    """The id of the session's agent."""
    cwd: str
    """The session's directory, on the server's machine."""
    title: str | None
    """The title that the agent gave the session, else the title that the client asked for."""
    created_at: str
    """The time when the session was created: UTC, ISO 8601 with milliseconds."""
    updated_at: str
    """The time of the session's last event: UTC, ISO 8601 with milliseconds."""
    ended: bool
    """Whether the session has ended, so that no process holds it. `terminationInfo` has the reason."""
    resumable: bool
    """Whether a prompt resumes the session after it has ended."""
    running: bool
    """Whether a turn is running."""
    event_count: int
    """The number of events in the session's log."""
    pending: int
    """The number of permissions, questions and elicitations that wait for an answer."""
    model: str | None
    """The model in use; `null` if the agent has not named one."""
    mode: str | None
    """The mode in use; `null` if the agent has not named one."""
    termination_info: Object | None
    """The end of the session, as in `_sandboxagent/session/ended`; `null` if it has not ended."""
    metadata: Object
    """The metadata that `session/new` and `_sandboxagent/session/set_metadata` stored, with the values that the client
    asked for."""
    activity: ActivityView
    """The latest activity of the agent, and its figures for tokens and cost."""
    alias: str | UnsetType = UNSET
    """The session's `requestedSessionId`, which is accepted wherever a session id is."""
    left_out: list[str] | UnsetType = UNSET
    """Names of stored facts, such as `metadata`, that are nested too deep to be shown. Earlier releases stored such
    facts."""


class PendingView(Struct, rename="camel"):
    """A pending request, as clients list it."""

    id: Raw
    """The id under which all clients know the request. No other request ever gets the same id."""
    agent_request_id: Raw
    """The agent's own id of the request. The log has the request under it."""
    kind: str
    """`permission`, `question`, `elicitation`, or `request` for any other request."""
    session_id: str
    """The session whose agent asks."""
    asked_at: str
    """The time when the agent asked: UTC, ISO 8601 with milliseconds."""
    envelope: Raw
    """The request, in the format that this client supports."""


class SessionsView(Struct, rename="camel"):
    """A page of sessions, newest first."""

    sessions: list[SessionView]
    """The sessions of the page. With `gone`, only the sessions that have changed since `changedAfter`."""
    next_cursor: str | UnsetType = UNSET
    """The `cursor` of the next page. Absent on the last page."""
    changes: str | UnsetType = UNSET
    """The moment of this list. Send it as `changedAfter` to get only the sessions that have changed since."""
    gone: list[str] | UnsetType = UNSET
    """The ids of the sessions that were deleted since `changedAfter`. Absent if the list has all sessions, changed or
    not."""
