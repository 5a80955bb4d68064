"""Every real agent: `permissionMode` of `session/new`, and how much it then does without asking."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, Session, Turn
from tests.agents.recipes import RECIPES
from tests.support.asking import PERMISSION
from tests.support.client import META, Json, run
from tests.support.model.script import Call, Say

CODEX, GOOSE, OPENCODE, PI = "codex", "goose", "opencode", "pi"
RULED = {
    "amp": {"acceptEdits", "bypassPermissions", "plan", "read-only"},
    "copilot": {"acceptEdits", "bypassPermissions", "read-only"},
    "opencode": {"acceptEdits", "bypassPermissions"},
    "codex": {"plan"},
    **{agent: {"read-only"} for agent in ("claude", "gemini", "qwen")},
}
"""Modes that rules stand in for."""
ASKS_IN_PLAN = {"claude", "opencode"}
"""Agents that leave it to people, also in their plan mode."""


def only(*without: str) -> pytest.MarkDecorator:
    agents = [recipe.agent for recipe in RECIPES if recipe.agent not in without]
    return pytest.mark.parametrize("real", parameters(*agents), indirect=True)


def edit(real: RealAgent, session: Session) -> Call:
    """The call that makes a new file in the session's folder, by the tool for that."""
    if real.recipe.agent == CODEX:
        return Call("apply_patch", "*** Begin Patch\n*** Add File: file.txt\n+hello\n*** End Patch\n")
    return real.recipe.write(session.folder / "file.txt", "hello")


async def edited(real: RealAgent, session: Session, *, asks: bool) -> Turn:
    """A turn in which it edits; what it asks is refused."""
    prompt = session.ask(real.model.script(edit(real, session), Say("Done.")))
    if asks:
        await session.decide(await session.asked(), "reject_once")
    return await prompt.ended()


def decided_by_rule(turn: Turn) -> list[str]:
    decisions = [event.data["params"]["by"] for event in turn.events if event.method.endswith("/decision")]
    return [by["name"] for by in decisions if by["kind"] == "rule"]


@only(PI)
def test_agent_asks_in_the_default_mode(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(permissionMode="default") as session:
            turn = await edited(real, session, asks=True)

        assert turn.asked == [PERMISSION]
        assert not (session.folder / "file.txt").exists()

    run(scenario())


@only(PI, GOOSE)
def test_edits_are_made_unasked_when_they_are_accepted(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(permissionMode="acceptEdits") as session:
            turn = await edited(real, session, asks=False)

        ruled = "acceptEdits" in RULED.get(real.recipe.agent, set())
        assert PERMISSION not in turn.asked
        assert decided_by_rule(turn) == (["permissionMode acceptEdits"] if ruled else [])
        assert (session.folder / "file.txt").read_text().strip() == "hello"

    run(scenario())


@only()
def test_nothing_is_asked_when_permissions_are_bypassed(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(permissionMode="bypassPermissions") as session:
            turn = await edited(real, session, asks=False)

        ruled = "bypassPermissions" in RULED.get(real.recipe.agent, set())
        assert PERMISSION not in turn.asked
        assert decided_by_rule(turn) == (["permissionMode bypassPermissions"] if ruled else [])
        assert (session.folder / "file.txt").read_text().strip() == "hello"

    run(scenario())


@only(PI)
def test_nothing_is_changed_in_plan_mode_unless_people_allow_it(real: RealAgent) -> None:
    async def scenario() -> None:
        asks = real.recipe.agent in ASKS_IN_PLAN
        async with real.session(permissionMode="plan") as session:
            turn = await edited(real, session, asks=asks)

        ruled = "plan" in RULED.get(real.recipe.agent, set())
        assert (PERMISSION in turn.asked) == asks
        assert decided_by_rule(turn) == (["permissionMode plan"] if ruled else [])
        assert not (session.folder / "file.txt").exists()

    run(scenario())


@only(PI, GOOSE, OPENCODE)
def test_nothing_is_changed_where_only_reading_is_allowed(real: RealAgent) -> None:
    async def scenario() -> None:
        ruled = "read-only" in RULED.get(real.recipe.agent, set())
        async with real.session(permissionMode="read-only") as session:
            turn = await edited(real, session, asks=not ruled)

        assert decided_by_rule(turn) == (["permissionMode read-only"] if ruled else [])
        assert not (session.folder / "file.txt").exists()

    run(scenario())


async def listed(session: Session) -> list[str]:
    return [each["sessionId"] for each in (await session.client.result("session/list"))["sessions"]]


@only()
def test_mode_that_an_agent_does_not_have_is_refused_with_those_that_it_has(real: RealAgent) -> None:
    async def scenario() -> Json:
        async with real.any_session() as session:
            meta = {META: {"permissionMode": "no such mode"}}
            before = await listed(session)
            params: Json = {"cwd": str(session.folder), "mcpServers": [], "_meta": meta}
            error = await session.client.error("session/new", params)
            assert await listed(session) == before
            return error

    error = run(scenario())
    own = [] if real.recipe.agent == PI else list(real.recipe.modes or ())
    assert error["code"] == -32602
    assert {"bypassPermissions", *own} <= set(error["data"]["available"])


@pytest.mark.parametrize("real", parameters(CODEX), indirect=True)
@pytest.mark.parametrize(
    ("wished", "mode"),
    [("danger-full-access", "agent-full-access"), ("agent", "agent"), ("workspace-write", "workspace-write")],
)
def test_modes_of_codex_have_their_own_names_and_an_old_one(real: RealAgent, wished: str, mode: str) -> None:
    async def scenario() -> None:
        async with real.session(permissionMode=wished) as session:
            assert session.settings["modes"]["currentModeId"] == mode

    run(scenario())
