"""OpenCode's programs on real agents: Claude Code and Codex, whose models are scripted.

All programs are tried with the mock agent in every run. What an agent does differently is seen by the SDK, whose
answers are all checked, and on the terminal; `run` and the web page are tried with real agents when those may have
changed.
"""

import json
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from tests.agents.asker import ASKERS, CHOICES
from tests.agents.real import INSTALLED, hidden, install
from tests.agents.recipe import Recipe, isolated
from tests.agents.recipes import RECIPES
from tests.agents.trying import REASON, is_unchanged, left_out
from tests.browser.driving import Browser
from tests.opencode.document import document
from tests.opencode.host import Host, Play, ours
from tests.opencode.run import Run
from tests.opencode.suite import Suite, faults_of
from tests.opencode.terminal import DOWN, ENTER, RIGHT, Tui
from tests.opencode.web_page import Visits, browsing
from tests.support.model.script import Say
from tests.support.model.server import ModelServer
from tests.support.running import Server, eventually

AGENTS = [recipe for recipe in RECIPES if recipe.agent in ("claude", "codex")]
INTERRUPT = "esc interrupt"
PERMISSION = "Permission required"
WRITTEN = "written"
ANSWER = CHOICES[1]


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer() as serving:
        yield serving
        assert not serving.strays, f"an agent wanted to leave the machine: {serving.strays}"


@pytest.fixture(scope="module")
def everything(pytestconfig: pytest.Config) -> bool:
    """Whether all programs are tried with all agents."""
    return pytestconfig.getoption("--all-agents") or not is_unchanged()


@pytest.fixture(scope="module")
def recipes(everything: bool) -> list[Recipe]:
    """The agents that are tried now."""
    return [recipe for recipe in AGENTS if everything or not left_out(recipe.agent, every_run=False)]


@pytest.fixture(scope="module")
def when_changed(everything: bool) -> None:
    """Of a module, so that a test is skipped before the pages and the browser that it would need are started."""
    if not everything:
        pytest.skip(REASON)


@pytest.fixture(scope="module")
def host(
    model: ModelServer, recipes: list[Recipe], everything: bool, request: pytest.FixtureRequest
) -> Generator[Host]:
    """A server that has these agents and no others; OpenCode's programs would have it ask all of them."""
    page = ["--cors-origin", request.getfixturevalue("origin")] if everything else []
    server = Server(*page, "--default-agent", recipes[0].agent)
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


class Scripted:
    """An agent, and prompts that its model knows what to do with."""

    def __init__(self, recipe: Recipe, model: ModelServer, directory: str) -> None:
        assert recipe.models is not None
        self.recipe, self.model_id = recipe, recipe.models[0]
        self._model, self._directory = model, Path(directory)

    @property
    def chosen(self) -> str:
        """Its model, as a flag has it."""
        return f"{self.recipe.agent}/{self.model_id}"

    def hello(self) -> Play:
        says = f"This is {self.recipe.agent} speaking"
        return Play(f"hello {self._model.script(Say(says)).marker}", says)

    def write(self, client: str, name: str) -> tuple[Play, Path]:
        """A prompt to write a file, which needs a permission; and the file."""
        path = self._directory / f"{self.recipe.agent}-{client}-{name}.txt"
        says = f"I wrote {path.name}"
        script = self._model.script(self.recipe.write(path, WRITTEN), Say(says))
        return Play(f"write {script.marker}", path.name, says), path

    def question(self) -> Play | None:
        """A prompt to ask which database to take, where it asks without being set to."""
        asker = ASKERS[self.recipe.agent]
        if asker.options:
            return None
        script = self._model.script(asker.one, Say("Now I know"))
        return Play(f"ask {script.marker}", "Which database?", "Now I know")


@pytest.fixture
def agent(recipe: Recipe, model: ModelServer, host: Host) -> Scripted:
    return Scripted(recipe, model, host.directory)


def test_the_terminal_has_turns_and_answers_what_is_asked(agent: Scripted, tui: Tui, host: Host) -> None:
    tui.say("/new")
    _choose(tui, agent.recipe, host)
    hello = agent.hello()
    tui.say(hello.prompt)
    tui.expect(hello.shows)
    tui.gone(INTERRUPT)

    given, path = agent.write("tui", "given")
    tui.say(given.prompt)
    tui.expect(PERMISSION)
    tui.expect(given.shows)
    tui.type(ENTER)
    tui.expect(given.says)
    tui.gone(INTERRUPT)
    assert path.read_text() == WRITTEN

    rejected, path = agent.write("tui", "rejected")
    tui.say(rejected.prompt)
    tui.expect(PERMISSION)
    tui.type(RIGHT + RIGHT + ENTER)
    tui.gone(PERMISSION)
    tui.gone(INTERRUPT)
    assert not path.exists()

    question = agent.question()
    if question is not None:
        tui.say(question.prompt)
        tui.expect(question.shows)
        tui.expect(ANSWER)
        tui.type(DOWN + ENTER)
        tui.expect(question.says)
        tui.gone(INTERRUPT)


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


@pytest.mark.usefixtures("when_changed")
def test_run_rejects_a_permission_when_it_does_not_say_otherwise(agent: Scripted, run: Run) -> None:
    play, path = agent.write("run", "rejected")

    done = run("--model", agent.chosen, play.prompt)

    assert done.returncode == 0, done.stderr
    assert f"· {agent.model_id}" in done.stderr
    assert "permission requested" in done.stderr
    assert not path.exists()


@pytest.mark.usefixtures("when_changed")
def test_run_gives_a_permission_when_it_says_so_and_prints_the_answer(agent: Scripted, run: Run) -> None:
    play, path = agent.write("run", "given")

    done = run("--auto", "--format", "json", "--model", agent.chosen, play.prompt)
    events = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, done.stderr
    assert [event["part"]["state"]["status"] for event in events if event["type"] == "tool_use"] == ["completed"]
    assert [event["part"]["text"] for event in events if event["type"] == "text"] == [play.says]
    assert path.read_text() == WRITTEN


def test_the_sdk_prompts_answers_and_reads_messages_back(agent: Scripted, host: Host, tmp_path: Path) -> None:
    permission, path = agent.write("sdk", "given")
    question = agent.question()
    plays = {"hello": agent.hello(), "permission": permission} | ({} if question is None else {"question": question})
    can = {name: asdict(play) for name, play in plays.items()}
    models = {"provider": agent.recipe.agent, "model_ids": agent.recipe.models}

    suite = Suite("real", host, tmp_path, can | models)

    assert suite.done.returncode == 0, suite.done.stdout + suite.done.stderr
    assert path.read_text() == WRITTEN
    faults = list(dict.fromkeys(faults_of(suite.record, document())))
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="module")
def visit(browser: Browser, origin: str, host: Host) -> Generator[Visits]:
    with browsing(browser, origin, host) as visit:
        yield visit


@pytest.mark.usefixtures("when_changed")
def test_the_web_page_goes_on_with_a_session_and_answers_what_is_asked(
    agent: Scripted, host: Host, visit: Visits
) -> None:
    # The page goes on with the model of the session that it is opened on.
    first = agent.hello()
    with host.client as client:
        client.params = {"directory": host.directory}
        session = client.post("/session", json={}).json()["id"]
        chosen = {"providerID": agent.recipe.agent, "modelID": agent.model_id}
        body = {"model": chosen, "parts": [{"type": "text", "text": first.prompt}]}
        assert client.post(f"/session/{session}/message", json=body).status_code == 200

    with visit(session) as page:
        page.shows(first.shows)
        play, path = agent.write("page", "given")
        page.say(play.prompt)
        page.shows(PERMISSION)
        page.press("Allow once")
        page.shows(play.says)
        assert path.read_text() == WRITTEN

        question = agent.question()
        if question is not None:
            page.say(question.prompt)
            page.shows(question.shows)
            page.press(ANSWER)
            page.press("Submit")
            page.shows(question.says)


def test_models_and_modes_of_all_agents_are_offered(host: Host, recipes: list[Recipe]) -> None:
    with host.client as client:
        offered = _models(client)
        modes = {agent["name"] for agent in client.get("/agent").json()}

    for recipe in recipes:
        assert recipe.models is not None
        assert recipe.modes is not None
        assert set(recipe.models) <= offered[recipe.agent]
        assert set(recipe.modes) <= modes
