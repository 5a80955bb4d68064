"""Real agents in OpenCode's terminal interface: Claude Code and Codex, whose models are scripted."""

import json
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.agents.real import INSTALLED, hidden, install
from tests.agents.recipe import Recipe, isolated
from tests.agents.recipes import RECIPES
from tests.agents.trying import REASON, is_unchanged, left_out
from tests.opencode.host import Host, ours
from tests.opencode.terminal import ENTER, RIGHT, Tui
from tests.support.model.script import Say
from tests.support.model.server import ModelServer
from tests.support.running import Server, eventually

AGENTS = [recipe for recipe in RECIPES if recipe.agent in ("claude", "codex")]
INTERRUPT = "esc interrupt"
PERMISSION = "Permission required"


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer() as serving:
        yield serving
        assert not serving.strays, f"an agent wanted to leave the machine: {serving.strays}"


@pytest.fixture(scope="module")
def recipes(pytestconfig: pytest.Config) -> list[Recipe]:
    """The agents that are tried now."""
    everything = pytestconfig.getoption("--all-agents") or not is_unchanged()
    return [recipe for recipe in AGENTS if everything or not left_out(recipe.agent, every_run=False)]


@pytest.fixture(scope="module")
def host(model: ModelServer, recipes: list[Recipe]) -> Generator[Host]:
    """A server that has these agents and no others; OpenCode's programs would have it ask all of them."""
    server = Server("--default-agent", recipes[0].agent)
    agents = server.directory / "agents"
    agents.mkdir()
    server.flags = (*server.flags, "--agents-dir", str(agents))
    for recipe in recipes:
        install(recipe)
        (agents / recipe.agent).symlink_to(INSTALLED / recipe.agent)
        server.environment |= hidden(recipe)
        server.agents[recipe.agent] = _settings(recipe, server.directory / recipe.agent, model.url)
    (agents / ".node").symlink_to(INSTALLED / ".node")
    with server:
        host = ours(server)
        with host.client as client:
            # They take their time to say it first, and the terminal asks once.
            eventually(
                lambda: _models(client).keys() >= {recipe.agent for recipe in recipes}, "the models of all agents"
            )
        yield host


def _models(client: httpx.Client) -> dict[str, set[str]]:
    """The models of agents that have said which they have."""
    providers = client.get("/config/providers").json()["providers"]
    return {provider["id"]: set(provider["models"]) for provider in providers if len(provider["models"]) > 1}


def _settings(recipe: Recipe, home: Path, model: str) -> str:
    home.mkdir()
    variables = {**isolated(home, model), **recipe.environment(home, model)}
    inline = ", ".join(f"{name} = {json.dumps(value)}" for name, value in variables.items())
    return f"env = {{ {inline} }}"


@pytest.fixture(params=AGENTS, ids=lambda recipe: recipe.agent)
def recipe(request: pytest.FixtureRequest, recipes: list[Recipe]) -> Recipe:
    if request.param not in recipes:
        pytest.skip(REASON)
    return request.param


def test_a_turn_with_a_permission_that_is_given_and_one_that_is_rejected(
    recipe: Recipe, tui: Tui, host: Host, model: ModelServer
) -> None:
    def asks(name: str) -> str:
        path = Path(host.directory, name)
        return model.script(recipe.write(path, "written"), Say(f"I wrote {name}")).marker

    tui.say("/new")
    _choose(tui, recipe, host)
    hello = model.script(Say(f"This is {recipe.agent} speaking"))
    tui.say(f"hello {hello.marker}")
    tui.expect(f"This is {recipe.agent} speaking")
    tui.gone(INTERRUPT)

    given = f"{recipe.agent}-given.txt"
    tui.say(f"write {asks(given)}")
    tui.expect(PERMISSION)
    tui.expect(given)
    tui.type(ENTER)
    tui.expect(f"I wrote {given}")
    tui.gone(INTERRUPT)
    assert Path(host.directory, given).read_text() == "written"

    rejected = f"{recipe.agent}-rejected.txt"
    tui.say(f"write {asks(rejected)}")
    tui.expect(PERMISSION)
    tui.type(RIGHT + RIGHT + ENTER)
    tui.gone(PERMISSION)
    tui.gone(INTERRUPT)
    assert not Path(host.directory, rejected).exists()


def _choose(tui: Tui, recipe: Recipe, host: Host) -> None:
    """The agent's own model."""
    assert recipe.models is not None
    with host.client as client:
        providers = {provider["id"]: provider for provider in client.get("/config/providers").json()["providers"]}
    name = providers[recipe.agent]["models"][recipe.models[0]]["name"]
    tui.say("/models")
    tui.expect("Select model")
    tui.type(name)
    tui.becomes(lambda screen: screen.count(name) > 1, "the model that was looked for")
    tui.type(ENTER)
    tui.expect(f"· {name} {recipe.manifest['title']}")


def test_models_and_modes_of_all_agents_are_offered(host: Host, recipes: list[Recipe]) -> None:
    with host.client as client:
        offered = _models(client)
        modes = {agent["name"] for agent in client.get("/agent").json()}

    for recipe in recipes:
        assert recipe.models is not None
        assert recipe.modes is not None
        assert set(recipe.models) <= offered[recipe.agent]
        assert set(recipe.modes) <= modes
