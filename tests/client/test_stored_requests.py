"""Requests that are kept by their ids, and answered later, by another process."""

import asyncio
import pickle
from pathlib import Path

import pytest

from sandboxagent import (
    AlreadyAnswered,
    PermissionRequest,
    QuestionRequest,
    SandboxAgent,
    ServerProblem,
    Session,
    Turn,
)
from tests.support.client import run
from tests.support.running import BOUND, Server
from tests.support.sdk import answered, asked, asking, connected, new_session, permission, play

PERMISSION, QUESTION = "session/request_permission", "_sandboxagent/session/request_question"


async def stored(client: SandboxAgent, server: Server, method: str = PERMISSION) -> tuple[Session, str, Turn]:
    """A session whose agent has asked, the id to keep, and the turn."""
    session = await new_session(client, server)
    params = permission() if method == PERMISSION else {"prompt": "Which?", "options": [["a", "A"]]}
    turn = play(session, asking(method, params))
    await asked(session)
    [request] = await session.pending()
    return session, request.id, turn


def test_another_client_shows_and_answers_by_the_stored_ids_alone(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as app, connected(server) as other:
            session, id, turn = await stored(app, server)
            [shown] = await other.pending(session.id)
            assert isinstance(shown, PermissionRequest)
            assert (shown.id, shown.session_id, shown.tool_call.tool_call_id) == (id, session.id, "call-1")
            await other.reply_permission(id, "yes", session_id=session.id)
            assert (await answered(turn))["outcome"]["optionId"] == "yes"
            assert await other.pending(session.id) == []

    run(scenario())


def test_questions_are_answered_and_permissions_rejected_in_the_same_way(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as app, connected(server) as other:
            session, id, turn = await stored(app, server, QUESTION)
            [shown] = await other.pending(session.id)
            assert isinstance(shown, QuestionRequest)
            await other.reply_question(id, ["a"], session_id=session.id)
            assert (await answered(turn))["answers"] == [["a"]]
            session, id, turn = await stored(app, server)
            await other.reject_permission(id, reason="not now", session_id=session.id)
            assert (await answered(turn))["outcome"]["optionId"] == "no"

    run(scenario())


@pytest.mark.parametrize("is_here", [True, False], ids=["the client that asked", "another client"])
def test_a_second_answer_says_who_has_decided(server: Server, *, is_here: bool) -> None:
    async def scenario() -> None:
        async with connected(server) as app, connected(server, user="ada") as first, connected(server) as third:
            session, id, turn = await stored(app, server)
            await first.reply_permission(id, "yes", session_id=session.id)
            await turn
            with pytest.raises(AlreadyAnswered, match="answered, by client ada") as late:
                await (app if is_here else third).reply_permission(id, "no", session_id=session.id)
            decision = late.value.decision
            assert decision is not None
            assert (late.value.outcome, decision.option_id, decision.by["user"]) == ("answered", "yes", "ada")
            assert pickle.loads(pickle.dumps(late.value)).decision == decision

    run(scenario())


def test_an_id_of_another_session_or_of_nothing_allows_nothing(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as app, connected(server) as other:
            session, id, turn = await stored(app, server)
            elsewhere, *_ = await stored(app, server)
            for client in (app, other):
                for wrong, place in ((id, elsewhere.id), ("rq_of.another.1", session.id), ("rq_1", None)):
                    with pytest.raises(ServerProblem) as refused:
                        await client.reply_permission(wrong, "yes", session_id=place)
                    assert refused.value.slug == "nobody-asked", (wrong, place)
            for client in (app, other):
                with pytest.raises(ServerProblem) as gone:
                    await client.reply_permission(id, "yes", session_id="no-such-session")
                assert gone.value.slug == "session-not-found"
            assert [each.id for each in await session.pending()] == [id]
            await session.cancel()
            await elsewhere.cancel()
            await turn

    run(scenario())


def test_an_id_from_before_a_restart_of_the_server_allows_nothing(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as app:
            session, id, _ = await stored(app, server)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        async with connected(server) as later, asyncio.timeout(BOUND):
            assert await later.pending(session.id) == []
            with pytest.raises(ServerProblem) as stale:
                await later.reply_permission(id, "yes", session_id=session.id)
            assert stale.value.slug in ("nobody-asked", "already-answered")

    with Server(directory=tmp_path) as server:
        run(scenario(server))
