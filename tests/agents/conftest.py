"""One server, one model and one process for each real agent; tests share them, and open sessions of their own.

Three agents are tried in every run. The others are tried when something has changed that they depend on since all of
them were tried last (`tried.txt` has its digest), and with `--all-agents`, which writes that file when all is well.
"""

import ast
import hashlib
import json
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.agents.real import RealAgent, running
from tests.agents.recipes import RECIPES

ALWAYS = {"claude", "codex", "opencode"}
TRIED = Path(__file__).with_name("tried.txt")
SOURCES = Path(__file__).parents[2] / "src" / "sandbox_agent"
REASON = "nothing has changed that it depends on since it was tried last; --all-agents tries it"


def digest() -> str:
    """Of what real agents depend on: how they are installed, started, spoken to, and what they may do."""
    files = [file for room in ("agents", "permissions") for file in sorted((SOURCES / room).rglob("*.*"))]
    code = [file for file in files if file.suffix in (".py", ".toml") and "mock" not in file.parts]
    return hashlib.sha256("".join(map(meaning, code)).encode()).hexdigest()


def meaning(file: Path) -> str:
    """What a file does: other words in a docstring or a comment, or another layout, are no reason to try agents."""
    text = file.read_text()
    if file.suffix == ".toml":
        return json.dumps(tomllib.loads(text), sort_keys=True, default=str)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Strings that stand for themselves describe a module, a class, a function or a field.
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember that all agents were tried."""
    whole = session.config.getoption("--all-agents") and not hasattr(session.config, "workerinput")
    if whole and exitstatus == 0:
        TRIED.write_text(digest() + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Real agents one after another, so that each is started once; and first, because they take longest."""
    order = {recipe.agent: number for number, recipe in enumerate(RECIPES)}
    if not config.getoption("--all-agents") and TRIED.exists() and TRIED.read_text().strip() == digest():
        for item in items:
            group = item.get_closest_marker("xdist_group")
            if group is not None and group.args[0] in order.keys() - ALWAYS:
                item.add_marker(pytest.mark.skip(reason=REASON))

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
