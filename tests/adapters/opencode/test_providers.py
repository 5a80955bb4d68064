"""Agents as providers: what is known of them, asked for once, and never waited for for long."""

import asyncio
from types import SimpleNamespace
from typing import Any

from sandboxagent.adapters.opencode import providers
from sandboxagent.adapters.opencode.providers import RETRY_INTERVAL, Providers
from sandboxagent.protocol.errors import OffersUnknown
from tests.support.world import run

Json = dict[str, Any]
MODELS = {"availableModels": [{"modelId": "m1", "name": "One"}, {"modelId": "m2"}], "currentModelId": "m2"}
MODES = {"availableModes": [{"id": "ask"}, {"id": "plan", "description": "Only plans"}], "currentModeId": "ask"}


class Agents:
    """Agents that are asked; the test plays them."""

    def __init__(self, *ids: str) -> None:
        self.now = 0.0
        self.known: dict[str, Any] = {}
        self.asked: list[str] = []
        self.installed = set(ids)
        self.answering = asyncio.Event()
        self.answering.set()
        self.refuses: set[str] = set()
        listed = [SimpleNamespace(id=id, title=id.title(), any_model=False) for id in ids]
        catalog = SimpleNamespace(
            agents=lambda: listed,
            program=lambda agent: "/bin/x" if agent.id in self.installed else None,
            agent=lambda id: next(each for each in listed if each.id == id),
        )
        views: Any = SimpleNamespace(
            catalog=catalog,
            offers=SimpleNamespace(ask=self._ask),
            find_announced=lambda agent: self.known.get(agent.id),
            find_capabilities=lambda _: {"promptCapabilities": {"image": True}},
        )
        self.late = 0
        self.providers = Providers(views, None, self._learned_late, lambda: self.now)

    def _learned_late(self) -> None:
        self.late += 1

    async def _ask(self, agent: Any) -> None:
        self.asked.append(agent.id)
        await self.answering.wait()
        if agent.id in self.refuses:
            raise OffersUnknown("no credentials")
        self.known[agent.id] = SimpleNamespace(models=lambda: MODELS, modes=lambda: MODES)


def test_an_agent_that_is_installed_is_asked_once_and_has_its_models() -> None:
    async def main() -> None:
        agents = Agents("mock", "claude", "codex")
        agents.installed.discard("codex")
        answers: list[Any] = await asyncio.gather(agents.providers.providers(), agents.providers.config_providers())

        everything, usable = answers
        assert sorted(agents.asked) == ["claude", "mock"]
        assert everything["connected"] == ["mock", "claude"]
        assert [each["id"] for each in everything["all"]] == ["mock", "claude", "codex"]
        assert list(everything["all"][2]["models"]) == ["default"]
        claude = usable["providers"][1]
        assert (list(claude["models"]), claude["models"]["m1"]["name"]) == (["m1", "m2"], "One")
        assert usable["default"] == {"mock": "m2", "claude": "m2"}
        assert agents.providers.default_model_name() == "claude/m2"

    run(main())


def test_modes_of_all_agents_are_listed_once_with_the_default_first() -> None:
    async def main() -> None:
        agents = Agents("mock", "claude")
        listed: list[Any] = await agents.providers.modes_as_agents()

        assert [each["name"] for each in listed] == ["default", "ask", "plan"]
        assert listed[2]["description"] == "Only plans (mock, claude)"

    run(main())


def test_agent_that_refuses_to_list_models_is_left_alone_for_a_while() -> None:
    async def main() -> None:
        agents = Agents("claude")
        agents.refuses = {"claude"}
        for _ in range(3):
            (provider,) = (await agents.providers.config_providers())["providers"]  # type: ignore[misc]
            assert list(provider["models"]) == ["default"]
        assert agents.asked == ["claude"]
        agents.now = RETRY_INTERVAL
        agents.refuses = set()
        await agents.providers.learn(agents.providers.connected())

        assert agents.asked == ["claude", "claude"]
        assert agents.providers.models(agents.providers.agents()[0])[0] == ("m1", "One")

    run(main())


def test_agent_that_hangs_is_waited_for_once() -> None:
    async def main() -> None:
        agents = Agents("claude")
        agents.answering.clear()
        first = asyncio.create_task(agents.providers.learn(agents.providers.connected()))
        await asyncio.sleep(0)
        agents.now = providers.LIST_TIMEOUT
        # It returns at once, although the agent has not answered.
        await agents.providers.learn(agents.providers.connected())
        assert not first.done()
        agents.answering.set()
        await first

        assert agents.asked == ["claude"]

    run(main())


def test_programs_reload_when_an_agent_answers_after_the_list_was_given() -> None:
    async def main() -> None:
        agents = Agents("claude", "codex")
        await agents.providers.learn(agents.providers.connected())
        assert agents.late == 0

        agents.known.clear()
        agents.now = RETRY_INTERVAL
        agents.answering.clear()
        agents.refuses = {"codex"}
        first = asyncio.create_task(agents.providers.learn(agents.providers.connected()))
        await asyncio.sleep(0)
        agents.now += providers.LIST_TIMEOUT
        await agents.providers.learn(agents.providers.connected())
        agents.answering.set()
        await first

        assert agents.late == 1

    run(main())
