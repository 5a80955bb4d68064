"""One server, one model and one process for each real agent; tests share them, and open sessions of their own."""

from collections.abc import Generator

import pytest

from tests.agents.real import RealAgent, running
from tests.agents.recipes import RECIPES


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
