"""One server, one model and one process for each real agent; tests share them, and open sessions of their own."""

from collections.abc import Generator

import pytest

from tests.agents.real import RealAgent, running
from tests.agents.recipes import RECIPES
from tests.agents.trying import REASON, is_unchanged, left_out


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Real agents one after another, so that each is started once; and first, because they take longest."""
    order = {recipe.agent: number for number, recipe in enumerate(RECIPES)}

    def agent(item: pytest.Item) -> str | None:
        group = item.get_closest_marker("xdist_group")
        return group.args[0] if group is not None and group.args[0] in order else None

    real = [(item, name) for item in items if (name := agent(item)) is not None]
    if real and not config.getoption("--all-agents") and _is_unchanged(config):
        for item, name in real:
            if left_out(name, every_run=item.get_closest_marker("every_run") is not None):
                item.add_marker(pytest.mark.skip(reason=REASON))
    items.sort(key=lambda item: order.get(agent(item) or "", len(order)))


def _is_unchanged(config: pytest.Config) -> bool:
    """Who hands out the tests has looked at the code once for all workers (tests/conftest.py)."""
    told = getattr(config, "workerinput", {})
    return told["agents_unchanged"] if "agents_unchanged" in told else is_unchanged()


def parameters(*agents: str) -> list[object]:
    """Parameters for `real`: these agents, or all. Each stays on one worker, which starts it once."""
    return [
        pytest.param(recipe, id=recipe.agent, marks=pytest.mark.xdist_group(recipe.agent))
        for recipe in RECIPES
        if not agents or recipe.agent in agents
    ]


@pytest.fixture(scope="session", params=parameters())
def real(request: pytest.FixtureRequest) -> Generator[RealAgent]:
    with running(request.param) as agent:
        yield agent
