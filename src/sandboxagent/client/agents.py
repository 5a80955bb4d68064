"""List a server's agents and install them.

The server's responses are parsed leniently: a missing member gets a default, and an unknown one is ignored.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from datetime import datetime
from urllib.parse import quote

import msgspec
from msgspec import Struct

from sandboxagent.client.api import EVENT_STREAM, Api, Params, read_events
from sandboxagent.client.errors import ClientError, ConnectionLost, problem
from sandboxagent.protocol.envelope import Object


class Progress(Struct, rename="camel", kw_only=True, frozen=True):
    """The progress of an install."""

    stage: str
    """Current stage: `waiting`, `resolving`, `fetching`, `unpacking`, `verifying` or `done`."""
    message: str
    """Description of the current stage, for people."""
    bytes: int | None = None
    """Number of bytes fetched so far."""
    total_bytes: int | None = None
    """Total number of bytes to fetch, if it is known."""


class Artifact(Struct, rename="camel", kw_only=True, frozen=True):
    """A program that an agent needs."""

    kind: str
    """`agent_process`, the program that speaks ACP; `native`, the agent that this program controls; or `binary`, the
    program for the server's machine that a script of these starts."""
    name: str
    """Name of the package that has the program, or of the program."""
    version: str | None = None
    """Version of the program; None if it is unknown."""
    version_inferred: bool = False
    """Whether `version` is what the registry or another package says of the program, not what its own package says."""
    package_version: str | None = None
    """Version of the package, if it is not that of the program."""
    path: str | None = None
    """Path of the program on the server's machine."""
    source: str = ""
    """Origin of the program: `bundled`, `path`, `registry` or `fallback`, with the meanings of `InstallInfo.source`."""
    sha256: str | None = None
    """SHA-256 hash of the fetched archive, or else of the program, if it is known."""
    integrity: str | None = None
    """Hash against which npm checked the package."""
    unverified: bool = False
    """Whether the file could not be checked, because no hash was known."""


class InstallResult(Struct, rename="camel", kw_only=True, frozen=True):
    """The result of an install."""

    agent: str
    """Id of the agent."""
    already_installed: bool = False
    """Whether the agent was installed before, in the requested version, or in any version if none was requested."""
    version: str | None = None
    """Version of the program that speaks ACP; None if it is unknown."""
    native_version: str | None = None
    """Version of the agent itself, if it is another program than the one that speaks ACP."""
    source: str = ""
    """Origin of the agent: `bundled`, `path`, `registry` or `fallback`, with the meanings of `InstallInfo.source`."""
    verified: bool = False
    """Whether the agent was started and completed the handshake."""
    artifacts: list[Artifact] = []
    """The programs that the agent consists of."""


class InstallInfo(Struct, rename="camel", kw_only=True, frozen=True):
    """How an agent is, or would be, installed."""

    source: str = ""
    """Origin of the agent: `bundled` with the server, `path` (named in the server's `agents.toml`), the ACP `registry`,
    or `fallback` (the version pinned in the server's manifest)."""
    non_registry: bool = False
    """Whether the agent does not come from the ACP registry."""
    expected: bool = False
    """Whether `source`, `non_registry`, `registry_slug` and `package` are only expected, because the agent is not
    installed. An install may choose otherwise."""
    verified: bool = False
    """Whether the agent completed a handshake when it was installed, or is running."""
    verified_at: datetime | None = None
    """Time of the last successful handshake."""
    verification_error: str | None = None
    """Why the last install failed; None if it succeeded."""
    artifacts: list[Artifact] = []
    """The programs that the agent consists of."""
    registry_slug: str | None = None
    """Name of the agent in the ACP registry."""
    package: str | None = None
    """Package that the agent is, or would be, installed from."""
    folder: str | None = None
    """Directory that the agent is installed in."""
    installed_at: datetime | None = None
    """Time of the install."""
    platform: str | None = None
    """Platform that the agent was installed for."""
    node: str | None = None
    """Version of Node.js that the agent was installed with."""
    note: str | None = None
    """Remark about the source, such as a problem with the registry."""
    progress: Progress | None = None
    """Progress of an install that is running; otherwise None."""


class Credential(Struct, rename="camel", kw_only=True, frozen=True):
    """A credential that an agent can use to reach a model, without its value."""

    kind: str
    """`variable` for an environment variable, or `file`."""
    name: str
    """Name of the variable, or path of the file."""
    found: bool = False
    """Whether the server's machine has this credential. Its value is not checked."""


class ServerStatus(Struct, rename="camel", kw_only=True, frozen=True):
    """The state of an agent's shared process."""

    status: str = "stopped"
    """`stopped`, `installing`, `starting`, `running` or `error`. `error` means that the process died or did not
    start."""
    restart_count: int = 0
    """Number of times that the process has ended."""
    pid: int | None = None
    """Process id, while the process runs."""
    uptime_ms: int | None = None
    """Milliseconds since the process was started."""
    last_error: str | None = None
    """The last error of the process."""


class Features(Struct, rename="camel", kw_only=True, frozen=True):
    """Features of an agent that may decide which agent you choose."""

    permissions: str = ""
    """When the agent asks for permission: `always`, in some of its modes (`mode`), if its own configuration requires it
    (`configured`), or `never`."""
    questions: str = ""
    """How the agent's questions arrive: as forms (`form`), by sandbox-agent's own method (`extension`), or not at all
    (`none`)."""
    attachments: str = ""
    """Which attachments the agent gets as links: all (`link`), files (`file-link`), short text files (`text-link`) or
    none (`text`). The prompt's text names the others."""
    uris: str = ""
    """Whether the agent understands percent-encoded `file://` URIs (`encoded`), or needs unencoded paths in them
    (`plain`)."""
    images: bool = False
    """Whether the agent accepts images."""
    mixes: bool = True
    """Whether one prompt may contain both images and links. If not, the agent ignores the images of such a prompt."""


class Model(Struct, rename="camel", kw_only=True, frozen=True):
    """A model that an agent offers."""

    model_id: str
    """Id of the model, for `session.set_model`."""
    name: str = ""
    """Name of the model, for people."""
    description: str | None = None
    """Description of the model, for people."""


class Models(Struct, rename="camel", kw_only=True, frozen=True):
    """The models that an agent or a session offers."""

    available_models: list[Model] = []
    """All models to choose from."""
    current_model_id: str | None = None
    """Id of the current model, if the agent reports it."""


class Mode(Struct, rename="camel", kw_only=True, frozen=True):
    """A mode that an agent can be in."""

    id: str
    """Id of the mode, for `session.set_mode`."""
    name: str = ""
    """Name of the mode, for people."""
    description: str | None = None
    """Description of the mode, for people."""


class Modes(Struct, rename="camel", kw_only=True, frozen=True):
    """The modes that an agent or a session offers."""

    available_modes: list[Mode] = []
    """All modes to choose from."""
    current_mode_id: str | None = None
    """Id of the current mode, if the agent reports it."""


class Agent(Struct, rename="camel", kw_only=True, frozen=True):
    """An agent and its state at the time of the call."""

    id: str
    """Id of the agent, such as `claude`."""
    title: str = ""
    """Name of the agent, for people."""
    description: str = ""
    """Description of the agent, for people."""
    supported: bool = True
    """Whether the agent can be installed or started on this server at all."""
    unsupported_reason: str | None = None
    """Why the agent is not supported."""
    installed: bool = False
    """Whether the agent could be started right away."""
    version: str | None = None
    """Version of the program that speaks ACP."""
    native_version: str | None = None
    """Version of the agent itself, if it is another program than the one that speaks ACP."""
    path: str | None = None
    """Path of the program that the server starts."""
    credentials_available: bool = False
    """Whether at least one of the agent's credentials is available, or the agent needs none."""
    credentials: list[Credential] = []
    """All credentials that the agent can use; empty if it needs none."""
    install: InstallInfo = InstallInfo()
    """Origin of the agent, and the state of its install."""
    instructions: str = ""
    """How to install the agent and what it needs, for people."""
    capabilities: Object = {}
    """The capabilities that the agent reported in the ACP handshake."""
    agent_info: Object | None = None
    """The agent's description of itself in the ACP handshake (`agentInfo`)."""
    features: Features | None = None
    """Features that may decide which agent you choose."""
    isolation: str = "agent"
    """`agent`: all sessions share one process, and its crash ends the turns of all. `session`: each session has a
    process of its own."""
    server_status: ServerStatus = ServerStatus()
    """State of the agent's shared process."""
    offers: str = "unknown"
    """Whether `models`, `modes` and `config_options` are known: `known`, `asking` (the server asks the agent at this
    moment) or `unknown` (it was not asked, or did not answer). `get(agent, models=True)` waits for them."""
    offers_error: str | None = None
    """The reason why the agent did not tell its offers when the server asked."""
    models: Models | None = None
    """The agent's models, as in its newest session, else as it answered the server. None unless `offers` is `known`."""
    modes: Modes | None = None
    """The agent's modes, as in its newest session, else as it answered the server. None unless `offers` is `known`."""
    config_options: list[Object] | None = None
    """All options of the agent in the form of ACP, including its modes and models. None unless `offers` is `known`."""


class AgentHealth(Struct, rename="camel", kw_only=True, frozen=True):
    """A short report about an agent."""

    agent: str
    """Id of the agent."""
    installed: bool = False
    """Whether the agent could be started right away."""
    running: bool = False
    """Whether the agent's shared process runs."""


class Health(Struct, rename="camel", kw_only=True, frozen=True):
    """The health of a server."""

    status: str
    """`ok` or `degraded`. A server is degraded if its log cannot be written, or was damaged and nobody has acknowledged
    this. A node of a fleet is also degraded if its log does not reach the fleet. A gateway is degraded if it cannot
    reach NATS, or has no nodes."""
    version: str = ""
    """Version of sandbox-agent."""
    uptime_ms: int = 0
    """Milliseconds since the server was started."""
    agents: list[AgentHealth] = []
    """A short report about each agent."""
    detail: str | None = None
    """Why the server is degraded."""
    gateway: str | None = None
    """Name of the gateway, if the server is one."""
    nodes: int | None = None
    """Number of nodes that the gateway can reach, if the server is a gateway."""


class Stderr(Struct, frozen=True):
    """The newest output of an agent's processes on stderr."""

    text: str
    """The output as text. Bytes that are not UTF-8 are replaced."""
    truncated: bool = False
    """Whether earlier output is missing."""


class _Listed(Struct):
    agents: list[Agent]


class Install(AsyncIterator[Progress | InstallResult]):
    """An install: iterate over its progress, or await its result.

    The last item of the iteration is the result, an `InstallResult`. The install begins when you first iterate or
    await. If you stop early, the server continues, and the next request for the same agent joins the install. A failure
    is raised as a ServerProblem.
    """

    def __init__(self, api: Api, agent: str, asked: Object, where: Params) -> None:
        self.agent = agent
        """Id of the agent."""
        self.result: InstallResult | None = None
        """The result, once it is known."""
        self._failure: ClientError | None = None
        self._steps = _steps(api, agent, asked, where)

    async def __anext__(self) -> Progress | InstallResult:
        try:
            step = await anext(self._steps)
        except ClientError as error:
            self._failure = error
            raise
        if isinstance(step, InstallResult):
            self.result = step
        return step

    def __await__(self) -> Generator[object, None, InstallResult]:
        return self._outcome().__await__()

    async def _outcome(self) -> InstallResult:
        async for _ in self:
            pass
        if self.result is None:
            raise self._failure or ClientError(f"this install of {self.agent} was left before it had ended")
        return self.result


class Agents:
    """The agents of a server."""

    def __init__(self, api: Api, session_id: str | None = None, node: str | None = None) -> None:
        self._api = api
        self._where: dict[str, str | None] = {"sessionId": session_id, "node": node}

    def of_node(self, node: str) -> "Agents":
        """Return the agents of one node of a fleet. A gateway with several nodes needs to know which node you mean."""
        return Agents(self._api, node=node)

    async def list(self, *, registry: bool = False) -> "list[Agent]":
        """Return the agents that the server knows.

        With `registry`, the list includes agents of the ACP registry that are not installed.
        """
        params = {"registry": registry or None, **self._where}
        return (await self._api.json("GET", "/v1/agents", params=params, type=_Listed)).agents

    async def get(self, agent: str, *, models: bool = False) -> Agent:
        """Return one agent, by its id or its slug in the ACP registry.

        With `models`, the server asks the agent for its models and modes if they are not known. It does so once for
        each version of the agent, in a temporary session.

        Raises:
            ServerProblem: the agent is unknown, or cannot report its models (`agent-not-installed` or `offers-unknown`,
                among others).
        """
        path = f"/v1/agents/{quote(agent, safe='')}"
        return await self._api.json("GET", path, params={"models": models or None, **self._where}, type=Agent)

    async def models(self, agent: str) -> Models:
        """Return the models that an agent offers. The agent needs no session for that; see `get`."""
        return (await self.get(agent, models=True)).models or Models()

    async def stderr(self, agent: str) -> Stderr:
        """Return the newest output of an agent's processes on stderr. The text is empty if there is none."""
        path = f"/v1/agents/{quote(agent, safe='')}/stderr"
        return await self._api.json("GET", path, params=self._where, type=Stderr)

    def install(
        self,
        agent: str,
        *,
        reinstall: bool = False,
        agent_version: str | None = None,
        agent_process_version: str | None = None,
    ) -> Install:
        """Install an agent on the server: `await` the result, or iterate over the progress.

        An agent that is already installed in the requested version is not fetched again. If no version is requested,
        any installed version counts.

        Args:
            agent: id of the agent, or its slug in the ACP registry.
            reinstall: whether to fetch the agent even if it is installed.
            agent_version: version of the agent itself.
            agent_process_version: version of the program that speaks ACP for the agent.
        """
        versions = {"agentVersion": agent_version, "agentProcessVersion": agent_process_version}
        asked = {name: value for name, value in versions.items() if value is not None}
        return Install(self._api, agent, {"reinstall": reinstall, **asked}, self._where)


async def health(api: Api) -> Health:
    """Return the server's health, with the agents that are installed and running."""
    return await api.json("GET", "/v1/health", type=Health)


async def _steps(api: Api, agent: str, asked: Object, where: Params) -> AsyncGenerator[Progress | InstallResult]:
    headers = {"Accept": EVENT_STREAM, "Content-Type": "application/json"}
    path = f"/v1/agents/{quote(agent, safe='')}/install"
    async with (
        api.stream("POST", path, params=where, content=msgspec.json.encode(asked), headers=headers) as response,
        aclosing(read_events(response)) as stream,
    ):
        async for event in stream:
            data = event.data.encode()
            match event.event:
                case "progress":
                    yield api.parsed(response, data, Progress)
                case "result":
                    yield api.parsed(response, data, InstallResult)
                    return
                case "problem":
                    raise problem(data) or api.foreign(response, data)
                case _:
                    pass  # A newer server sends other events, too.
    raise ConnectionLost(
        f"{api.url} ended its answer before the install of {agent} had ended; it may go on", outcome_unknown=True
    )
