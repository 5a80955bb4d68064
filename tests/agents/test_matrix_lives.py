"""Every real agent: its process dies, or the server ends, and what becomes of sessions."""

import asyncio

import pytest

from tests.agents.real import RealAgent, Session, Turn, begun, told, tree
from tests.support.asking import ENDED, texts
from tests.support.client import Json, run
from tests.support.model.script import Say
from tests.support.running import alive, eventually


def test_crash_fails_the_prompt_and_nothing_else(real: RealAgent) -> None:
    async def scenario() -> None:
        gate = real.model.gate()
        before, endless, after = (
            real.model.script(Say("remember blue")),
            real.model.script(Say("first ", gate, "never")),
            real.model.script(Say("here again")),
        )
        async with real.session() as session, real.other() as other:
            await session.turn(before)
            prompt = session.ask(endless)
            await begun(real, session, "first", gate)
            family = real.crash()
            crashed = await prompt.ended()
            ended = await session.next(lambda event: event.method == ENDED)
            eventually(lambda: not any(map(alive, family)), "the end of all that the agent had started")
            real.age()
            elsewhere = await other.prompt(await other.new_session(), "hello")
            again = await session.ask(after).response()

        assert crashed.response["error"]["code"] == -32603
        assert crashed.response["error"]["data"]["type"] == "agent-exited"
        assert crashed.response["error"]["data"]["signal"] == "SIGKILL"
        assert (ended.data["params"]["reason"], ended.data["params"]["signal"]) == ("error", "SIGKILL")
        assert elsewhere["result"]["stopReason"] == "end_turn"
        if real.recipe.session_methods & {"load", "resume"}:
            assert again["result"]["stopReason"] == "end_turn"
            assert "remember blue" in told(after.requests[0])
        else:
            assert again["error"]["code"] == -32600

    run(scenario())


def test_stopped_server_leaves_no_process_and_the_next_loads_the_session(real: RealAgent) -> None:
    """The next server loads it with its history, if the agent supports `session/load`."""
    gate = real.model.gate()
    before, endless = real.model.script(Say("remember grey")), real.model.script(Say("first ", gate))
    after = real.model.script(Say("here again"))

    async def stopped() -> tuple[Session, list[int]]:
        async with real.client() as client, client.stream() as stream:
            session = await real.new_session(client, stream)
            await session.turn(before)
            prompt = session.ask(endless)
            await begun(real, session, "first", gate)
            family = [each for pid in real.pids for each in tree(pid)]
            assert await asyncio.to_thread(real.server.stop) == 0
            with pytest.raises(AssertionError, match="503"):
                await prompt.response()
        return session, family

    async def started(session: Session) -> Turn | None:
        async with real.client() as client, client.stream() as stream:
            params: Json = {"sessionId": session.id, "cwd": str(session.folder), "mcpServers": []}
            if "load" not in real.recipe.session_methods:
                assert (await client.error("session/load", params))["code"] == -32601
                return None
            await client.result("session/load", params)
            return await session.on(client, stream).turn(after)

    try:
        session, family = run(stopped())
        # Killed, and taken apart by the kernel: that may take longer than the server's own end.
        eventually(lambda: not any(map(alive, family)), "the end of all that the agent had started")
        real.age()
    finally:
        # Other tests use this server, too.
        real.server.start()
    turn = run(started(session))

    assert len(family) >= 1
    if turn is not None:
        replayed = "".join(texts(turn.events, "user_message_chunk")), "".join(texts(turn.events))
        assert before.marker in replayed[0]
        assert "remember grey" in replayed[1]
        assert turn.stop_reason == "end_turn"
        assert "remember grey" in told(after.requests[0])
