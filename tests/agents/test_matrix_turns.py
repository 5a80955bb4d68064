"""Every real agent: the handshake, and turns."""

from tests.agents.real import RealAgent
from tests.support.client import Json, run
from tests.support.model.script import Say


def test_handshake_tells_version_and_capabilities(real: RealAgent) -> None:
    async def scenario() -> None:
        client = real.client()
        async with client.http:
            result = (await client.initialize())["result"]

        capabilities = result["agentCapabilities"]
        assert result["protocolVersion"] == 1
        assert result["agentInfo"]["version"] == real.recipe.version
        assert session_methods(capabilities) == real.recipe.session_methods
        assert {name for name, offered in capabilities["promptCapabilities"].items() if offered} == real.recipe.contents

    run(scenario())


def test_turn_streams_in_chunks_and_ends(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("one two three four five"))
        async with real.session() as session:
            turn = await session.turn(script)

        assert turn.stop_reason == "end_turn"
        assert turn.text == "one two three four five"
        assert len(turn.chunks) > 1

    run(scenario())


def session_methods(capabilities: Json) -> set[str]:
    known = {"resume", "list", "fork", "close", "delete"}
    offered = {name for name in known if name in capabilities.get("sessionCapabilities", {})}
    return offered | ({"load"} if capabilities.get("loadSession") else set())
