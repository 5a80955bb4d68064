"""One server, one model and one process for each real agent; tests share them, and open sessions of their own."""

from collections.abc import Generator

import pytest

from tests.agents.real import RealAgent, running
from tests.agents.recipes import RECIPES


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real agents one after another, so that each is started once; and first, because they take longest."""
    order = {recipe.agent: number for number, recipe in enumerate(RECIPES)}

    def place(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        return order.get(group.args[0], len(order)) if group else len(order)

    items.sort(key=place)


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
