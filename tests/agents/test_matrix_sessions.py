"""Every real agent: sessions are closed, deleted and forked where it offers that, and it is refused where not."""

from tests.agents.real import RealAgent, Session, told
from tests.support.client import Json, run
from tests.support.model.script import Say

NOT_OFFERED = -32601


def test_closed_session_has_ended_and_can_be_taken_up_again(real: RealAgent) -> None:
    async def scenario() -> None:
        before, after = real.model.script(Say("remember red")), real.model.script(Say("open again"))
        async with real.session() as session:
            await session.turn(before)
            if not await offered(real, session, "close"):
                return
            closed = (await session.client.result("_sandboxagent/session/get", {"sessionId": session.id}))["session"]
            turn = await session.turn(after)

        assert closed["ended"]
        assert turn.text.endswith("open again")
        assert "remember red" in told(after.requests[0])

    run(scenario())


def test_deleted_session_is_gone(real: RealAgent) -> None:
    async def scenario() -> None:
        # Another one after it: goose gives the id of its last session out again, and may still be clearing up the old.
        async with real.session() as session, real.any_session():
            await session.turn(real.model.script(Say("to be forgotten")))
            if not await offered(real, session, "delete"):
                return
            response = await session.ask(real.model.script(Say("never"))).response()

        assert response["error"]["code"] == -32002

    run(scenario())


def test_terminated_session_can_be_deleted_whatever_the_agent_offers(real: RealAgent) -> None:
    async def scenario() -> None:
        # As above.
        async with real.session() as session, real.any_session():
            await session.turn(real.model.script(Say("to be forgotten")))
            params = {"sessionId": session.id}
            await session.client.result("_sandboxagent/session/terminate", params)
            result = await session.client.result("session/delete", params)
            gone = await session.client.error("_sandboxagent/session/get", params)

        assert gone["code"] == -32002
        # An agent that can delete did so, without having been brought back to the session.
        assert ("_meta" in result) is ("delete" not in real.recipe.session_methods)

    run(scenario())


def test_fork_knows_what_was_said_before_and_goes_its_own_way(real: RealAgent) -> None:
    async def scenario() -> None:
        before, there, here = (real.model.script(Say(f"remember {name}")) for name in ("red", "there", "here"))
        async with real.session() as session:
            await session.turn(before)
            fork = await offered(real, session, "fork", cwd=str(session.folder), mcpServers=[])
            if not fork:
                return
            await session.named(fork["sessionId"]).turn(there)
            await session.turn(here)

        assert "remember red" in told(there.requests[0])
        assert "remember red" in told(here.requests[0])
        assert "remember there" not in told(here.requests[0])

    run(scenario())


async def offered(real: RealAgent, session: Session, method: str, **params: object) -> Json | None:
    """Ask for it: the result, or None where the agent does not offer it and the server says so."""
    response = await session.client.call(f"session/{method}", {"sessionId": session.id, **params})
    if method in real.recipe.session_methods:
        return response["result"] or {"done": True}
    assert response["error"]["code"] == NOT_OFFERED
    return None
