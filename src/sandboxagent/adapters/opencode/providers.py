"""Show agents as OpenCode's providers, their models as its models, and their modes as its agents.

The server asks an installed agent once for its models and modes, before its first session. See
`server/agents/capabilities`.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sandboxagent.adapters.opencode.transcript import DEFAULT
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.envelope import Object, at, objects_at, text_at
from sandboxagent.protocol.errors import SandboxAgentError, UnknownAgent
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.options import MODE, MODEL
from sandboxagent.server.agents.views import AgentViews

LIST_TIMEOUT = 10.0
"""Seconds that a list of models waits for agents whose offers are not known yet."""
RETRY_INTERVAL = 300.0
"""Seconds before an agent that did not announce its offers is asked again."""
MOCK = "mock"
Pairs = list[tuple[str, str]]


class Providers:
    """Models and modes of all agents."""

    def __init__(
        self,
        views: AgentViews,
        default_agent: str | None,
        learned_late: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`learned_late` is called if an agent announces its offers after a list was sent without them."""
        self._views = views
        self._default_agent = default_agent
        self._learned_late = learned_late
        self._monotonic = monotonic
        self._tasks = Tasks()
        self._asked: dict[str, float] = {}
        """The monotonic time at which each agent was asked."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        """The tasks that ask agents."""
        self._missing: set[str] = set()
        """The agents that are asked and were missing in a list that was sent."""
        # OpenCode's programs hide old models.
        self._released = datetime.now(UTC).date().isoformat()

    def agents(self) -> list[Agent]:
        return self._views.catalog.agents()

    def connected(self) -> list[Agent]:
        """Return the agents that can be started without an install."""
        return [agent for agent in self.agents() if self._views.catalog.program(agent) is not None]

    def find(self, id: str) -> Agent | None:
        """Return the agent of a provider; None if there is none."""
        try:
            return self._views.catalog.agent(id)
        except UnknownAgent:
            return None

    def default_agent(self) -> str:
        """Return the id of the agent for requests that name none."""
        if self._default_agent is not None:
            return self._default_agent
        ready = [agent.id for agent in self.connected()]
        return next((id for id in ready if id != MOCK), ready[0] if ready else MOCK)

    async def learn(self, agents: list[Agent]) -> None:
        """Ask agents for their offers, if these are not known; wait at most LIST_TIMEOUT."""
        now = self._monotonic()
        for agent in agents:
            due = now - self._asked.get(agent.id, -RETRY_INTERVAL) >= RETRY_INTERVAL
            if due and agent.id not in self._asking and self._views.find_announced(agent) is None:
                self._asked[agent.id] = now
                self._asking[agent.id] = self._tasks.run(self._ask(agent), f"ask {agent.id} for its offers")
        # Wait for each agent only for LIST_TIMEOUT after its start, so that one that hangs does not delay every list.
        waiting = [task for id, task in self._asking.items() if now - self._asked[id] < LIST_TIMEOUT]
        if waiting:
            await asyncio.wait(waiting, timeout=LIST_TIMEOUT)
        self._missing.update(self._asking)

    async def _ask(self, agent: Agent) -> None:
        """Ask an agent for its offers, and report them if a list was sent without them."""
        try:
            await self._views.offers.ask(agent)
            if agent.id in self._missing:
                self._learned_late()
        except SandboxAgentError:
            # Ignore the error: the agent's sessions will report it.
            pass
        finally:
            del self._asking[agent.id]
            self._missing.discard(agent.id)

    def models(self, agent: Agent) -> Pairs:
        """Return ids and names of an agent's models; only `default` if the agent announces none."""
        announced = self._views.find_announced(agent)
        listed = objects_at(announced.models(), MODEL.available) if announced else []
        found = [(id, text_at(each, "name") or id) for each in listed if (id := text_at(each, MODEL.choice_id))]
        return found or [(DEFAULT, "Default")]

    def default_model(self, agent: Agent) -> str:
        announced = self._views.find_announced(agent)
        current = text_at(announced.models(), MODEL.current) if announced else None
        known = [id for id, _ in self.models(agent)]
        return current if current in known else known[0]

    def modes(self, agent: Agent) -> list[Object]:
        announced = self._views.find_announced(agent)
        return objects_at(announced.modes(), MODE.available) if announced else []

    def mode_names(self, agent: Agent) -> list[str]:
        return [id for each in self.modes(agent) if (id := text_at(each, MODE.choice_id))]

    def takes(self, agent: Agent, capability: str) -> bool:
        """Return whether an agent accepts a kind of content in prompts; True if its capabilities are not known."""
        capabilities = self._views.find_capabilities(agent)
        return not capabilities or at(capabilities, "promptCapabilities", capability) is True

    # As OpenCode's objects

    async def providers(self) -> Object:
        """Return the answer to `GET /provider`."""
        connected = self.connected()
        await self.learn(connected)
        agents = self.agents()
        return {
            "all": [self._provider(agent) for agent in agents],
            "default": {agent.id: self.default_model(agent) for agent in agents},
            "connected": [agent.id for agent in connected],
        }

    async def config_providers(self) -> Object:
        """Return the answer to `GET /config/providers`."""
        connected = self.connected()
        await self.learn(connected)
        return {
            "providers": [self._provider(agent) for agent in connected],
            "default": {agent.id: self.default_model(agent) for agent in connected},
        }

    async def modes_as_agents(self) -> list[Object]:
        """Return the answer to `GET /agent`: the modes of all agents that can be started, the default mode first."""
        connected = self.connected()
        await self.learn(connected)
        found: dict[str, list[tuple[Agent, Object]]] = {DEFAULT: []}
        for agent in connected:
            for mode in self.modes(agent):
                if (id := text_at(mode, MODE.choice_id)) is not None:
                    found.setdefault(id, []).append((agent, mode))
        return [_make_agent(name, modes) for name, modes in found.items()]

    def default_model_name(self) -> str:
        """Return the default model in the form of `GET /config`: provider, slash, model."""
        id = self.default_agent()
        agent = self.find(id)
        return f"{id}/{DEFAULT if agent is None else self.default_model(agent)}"

    def _provider(self, agent: Agent) -> Object:
        images = self.takes(agent, "image")
        models = {id: self._model(agent, id, name, images=images) for id, name in self.models(agent)}
        # `default` is not listed then, but stays valid: an older session may name it.
        return {"id": agent.id, "name": agent.title, "source": "custom", "env": [], "options": {}, "models": models}

    def _model(self, agent: Agent, id: str, name: str, *, images: bool) -> Object:
        only_text = {"text": True, "audio": False, "image": False, "video": False, "pdf": False}
        return {
            "id": id,
            "providerID": agent.id,
            "api": {"id": id, "url": "", "npm": ""},
            "name": name,
            # OpenCode's web page offers one model of a family, the newest, until its user asks for others.
            "family": id,
            "capabilities": {
                "temperature": False,
                "reasoning": True,
                "attachment": True,
                "toolcall": True,
                "input": only_text | {"image": images},
                "output": only_text,
                "interleaved": False,
            },
            "cost": {"input": 0, "output": 0, "cache": {"read": 0, "write": 0}},
            "limit": {"context": 0, "output": 0},
            "status": "active",
            "options": {},
            "headers": {},
            "release_date": self._released,
        }


def _make_agent(name: str, modes: list[tuple[Agent, Object]]) -> Object:
    if not modes:
        description = "The agent's own default"
    else:
        said = text_at(modes[0][1], "description") or text_at(modes[0][1], "name") or name
        description = f"{said} ({', '.join(agent.id for agent, _ in modes)})"
    agent: Object = {"name": name, "description": description, "mode": "primary", "native": name == DEFAULT}
    rest: Object = {"permission": [], "options": {}}
    return agent | rest
