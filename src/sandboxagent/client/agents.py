"""List a server's agents and install them.

The server's answers are read leniently: a missing member has a default, an unknown one is ignored.
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
    """How far an install is."""

    stage: str
    """`waiting`, `resolving`, `fetching`, `unpacking`, `verifying` or `done`."""
    message: str
    bytes: int | None = None
    total_bytes: int | None = None


class Artifact(Struct, rename="camel", kw_only=True, frozen=True):
    """One program that an agent needs."""

    kind: str
    """`agent_process`, which speaks ACP, or `native`, the agent behind it."""
    name: str
    version: str | None = None
    path: str | None = None
    source: str = ""
    sha256: str | None = None
    integrity: str | None = None
    """What npm checked the package against."""
    unverified: bool = False
    """There was no hash to check it against."""


class InstallResult(Struct, rename="camel", kw_only=True, frozen=True):
    """What an install did."""

    agent: str
    already_installed: bool = False
    version: str | None = None
    """Of the program that speaks ACP."""
    native_version: str | None = None
    """Of the agent behind it, where that is another program."""
    source: str = ""
    verified: bool = False
    """It was started and completed the handshake."""
    artifacts: list[Artifact] = []


class InstallInfo(Struct, rename="camel", kw_only=True, frozen=True):
    """Where an agent comes from."""

    source: str = ""
    """`bundled`, `path`, `registry` or `fallback`."""
    non_registry: bool = False
    verified: bool = False
    verified_at: datetime | None = None
    verification_error: str | None = None
    """Why the last install failed."""
    artifacts: list[Artifact] = []
    registry_slug: str | None = None
    package: str | None = None
    folder: str | None = None
    installed_at: datetime | None = None
    platform: str | None = None
    node: str | None = None
    note: str | None = None
    progress: Progress | None = None
    """While it is being installed."""


class Credential(Struct, rename="camel", kw_only=True, frozen=True):
    """A credential an agent can use to reach a model; never its value."""

    kind: str
    """`variable` or `file`."""
    name: str
    found: bool = False


class ServerStatus(Struct, rename="camel", kw_only=True, frozen=True):
    """The state of an agent's shared process."""

    status: str = "stopped"
    """`stopped`, `installing`, `starting`, `running` or `error`."""
    restart_count: int = 0
    pid: int | None = None
    uptime_ms: int | None = None
    last_error: str | None = None


class Features(Struct, rename="camel", kw_only=True, frozen=True):
    """What to know before choosing an agent."""

    permissions: str = ""
    """When it asks: `always`, in some of its modes (`mode`), as `configured`, or `never`."""
    questions: str = ""
    """How its questions arrive: `form`, `extension` or `none`."""
    attachments: str = ""
    uris: str = ""
    images: bool = False
    mixes: bool = True
    """Whether one prompt may contain both images and links."""


class Model(Struct, rename="camel", kw_only=True, frozen=True):
    """A model that an agent offers."""

    model_id: str
    name: str = ""
    description: str | None = None


class Models(Struct, rename="camel", kw_only=True, frozen=True):
    """The models that an agent reported."""

    available_models: list[Model] = []
    current_model_id: str | None = None


class Mode(Struct, rename="camel", kw_only=True, frozen=True):
    """A mode that an agent can be in."""

    id: str
    name: str = ""
    description: str | None = None


class Modes(Struct, rename="camel", kw_only=True, frozen=True):
    """The modes that an agent reported."""

    available_modes: list[Mode] = []
    current_mode_id: str | None = None


class Agent(Struct, rename="camel", kw_only=True, frozen=True):
    """An agent's state at the time of the call."""

    id: str
    title: str = ""
    description: str = ""
    supported: bool = True
    unsupported_reason: str | None = None
    installed: bool = False
    version: str | None = None
    native_version: str | None = None
    path: str | None = None
    credentials_available: bool = False
    """One of its credentials is there, or it needs none."""
    credentials: list[Credential] = []
    install: InstallInfo = InstallInfo()
    instructions: str = ""
    """How to install it and what it needs, for people."""
    capabilities: Object = {}
    """As it advertised them."""
    agent_info: Object | None = None
    """How it describes itself."""
    features: Features | None = None
    server_status: ServerStatus = ServerStatus()
    models: Models | None = None
    """None until it has had a session, or was asked: `get(agent, models=True)`."""
    modes: Modes | None = None
    """Like `models`."""
    config_options: list[Object] | None = None
    """Like `models`: all its options as ACP has them, with those for mode and model."""


class AgentHealth(Struct, rename="camel", kw_only=True, frozen=True):
    """One agent, in short."""

    agent: str
    installed: bool = False
    running: bool = False


class Health(Struct, rename="camel", kw_only=True, frozen=True):
    """The server's health."""

    status: str
    """`ok`, or `degraded` while the log of the sessions cannot be written."""
    version: str = ""
    uptime_ms: int = 0
    agents: list[AgentHealth] = []
    detail: str | None = None
    """Why it is degraded."""
    gateway: str | None = None
    """Of a gateway: its name."""
    nodes: int | None = None
    """Of a gateway: how many nodes are there."""


class Stderr(Struct, frozen=True):
    """The newest of what an agent's processes wrote to stderr."""

    text: str
    truncated: bool = False
    """There is more before it."""


class _Listed(Struct):
    agents: list[Agent]


class Install(AsyncIterator[Progress | InstallResult]):
    """An install: iterate over its progress, of which the last is the result, or await the result.

    It begins with the first of either. If you leave early, the server continues, and the next request for the same
    agent joins it. What goes wrong with it is a ServerProblem.
    """

    def __init__(self, api: Api, agent: str, asked: Object, where: Params) -> None:
        self.agent = agent
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
        """The agents of one node of a fleet; a gateway has to know which one when there are several."""
        return Agents(self._api, node=node)

    async def list(self, *, registry: bool = False) -> "list[Agent]":
        """The agents the server knows; with `registry`, also those in the ACP registry that are not installed."""
        params = {"registry": registry or None, **self._where}
        return (await self._api.json("GET", "/v1/agents", params=params, type=_Listed)).agents

    async def get(self, agent: str, *, models: bool = False) -> Agent:
        """One agent, by its id or its slug in the registry.

        With `models`, the server asks the agent for its models and modes if they are not known: once for each version,
        in a session that is not kept. Raises ServerProblem, with the slug `agent-not-installed` or `offers-unknown`
        among others, when the agent cannot say.
        """
        path = f"/v1/agents/{quote(agent, safe='')}"
        return await self._api.json("GET", path, params={"models": models or None, **self._where}, type=Agent)

    async def models(self, agent: str) -> Models:
        """The models that an agent offers, also before its first session; see `get`."""
        return (await self.get(agent, models=True)).models or Models()

    async def stderr(self, agent: str) -> Stderr:
        """The newest of what an agent's processes wrote to stderr; empty when they wrote nothing."""
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
        """Install an agent on the server: `await` it, or iterate over its progress.

        `agent_version` is that of the agent itself, `agent_process_version` that of the program that speaks ACP for it.
        What is there already, in a version that was asked for or in any, is not fetched again unless `reinstall`.
        """
        versions = {"agentVersion": agent_version, "agentProcessVersion": agent_process_version}
        asked = {name: value for name, value in versions.items() if value is not None}
        return Install(self._api, agent, {"reinstall": reinstall, **asked}, self._where)


async def health(api: Api) -> Health:
    """The server's health, and which agents are installed and running."""
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
                    pass  # Of a newer server.
    raise ConnectionLost(
        f"{api.url} ended its answer before the install of {agent} had ended; it may go on", outcome_unknown=True
    )
