"""Every real agent: all shapes of modes, models and options, and every client learns of a change."""

import acp.schema

from tests.agents.real import ATTACH, RealAgent
from tests.support.client import Event, Json, run
from tests.support.model.gate import BOUND

INVALID = -32602


def test_a_session_opens_with_every_shape(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            settings = session.settings

        acp.schema.NewSessionResponse.model_validate(settings)
        assert settings["configOptions"]
        assert ("modes" in settings) is (real.recipe.modes is not None)
        assert ("models" in settings) is (real.recipe.models is not None)

    run(scenario())


def test_mode_change_reaches_other_clients_in_both_forms(real: RealAgent) -> None:
    async def scenario() -> None:
        if real.recipe.modes is None:
            return
        first, second = real.recipe.modes
        async with real.session() as session, real.client() as other, other.stream() as stream:
            await other.result(ATTACH, {"sessionId": session.id})
            params = {"sessionId": session.id, "configId": "mode", "value": second}
            answer = await session.client.result("session/set_config_option", params)
            acp.schema.SetSessionConfigOptionResponse.model_validate(answer)
            heard: dict[str, Json] = {}

            def both(event: Event) -> bool:
                heard[event.update.get("sessionUpdate", "")] = event.update
                return heard.keys() >= {"current_mode_update", "config_option_update"}

            await stream.until(both, BOUND)
            await session.client.result("session/set_config_option", params | {"value": first})

        assert heard["current_mode_update"]["currentModeId"] == second
        options = {one["id"]: one["currentValue"] for one in heard["config_option_update"]["configOptions"]}
        assert options.get("mode", second) == second

    run(scenario())


def test_model_change_reaches_other_clients(real: RealAgent) -> None:
    async def scenario() -> None:
        if real.recipe.models is None:
            return
        first, second = real.recipe.models
        async with real.any_session() as session, real.client() as other, other.stream() as stream:
            await other.result(ATTACH, {"sessionId": session.id})
            assert "configOptions" not in await session.client.result(
                "session/set_model", {"sessionId": session.id, "modelId": second}
            )

            def wanted(event: Event) -> bool:
                options = event.update.get("configOptions", [])
                return {one["id"]: one["currentValue"] for one in options}.get("model") == second

            await stream.until(wanted, BOUND)
            await session.client.result("session/set_model", {"sessionId": session.id, "modelId": first})

    run(scenario())


def test_a_mode_that_is_not_there_is_refused_before_the_agent_hears_of_it(real: RealAgent) -> None:
    async def scenario() -> None:
        if real.recipe.modes is None:
            return
        async with real.any_session() as session:
            for method, params in (
                ("session/set_mode", {"modeId": "bogus"}),
                ("session/set_config_option", {"configId": "mode", "value": "bogus"}),
            ):
                error = await session.client.error(method, {"sessionId": session.id, **params})
                assert (error["code"], error["data"]["value"]) == (INVALID, "bogus")
                assert real.recipe.modes[1] in error["data"]["available"]

    run(scenario())
