"""Which credentials the agents have: as the running server sees them, for that is what counts; else as we do."""

from dataclasses import dataclass

import msgspec

from sandbox_agent.cli.background import Failed, find
from sandbox_agent.settings import Settings
from sandbox_agent.wire.agents import Credential


class _Agent(msgspec.Struct, rename="camel"):
    id: str
    credentials: list[Credential] = []


class _Agents(msgspec.Struct):
    agents: list[_Agent]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a running server sees."""

    url: str
    agents: dict[str, list[Credential]]

    def of(self, agent: str) -> list[Credential] | None:
        return self.agents.get(agent)


def ask_server(settings: Settings) -> Seen | None:
    """What the server of the data directory sees; None when none runs there, or it does not answer."""
    running = find(settings)
    if running is None:
        return None
    try:
        answer = msgspec.convert(running.get("/v1/agents"), _Agents)
    except (Failed, msgspec.ValidationError):
        return None
    return Seen(running.url, {agent.id: agent.credentials for agent in answer.agents})
