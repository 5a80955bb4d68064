"""Every real agent: modes, models and options, through our one way of asking for them."""

from tests.agents.real import RealAgent, Session
from tests.support.client import Json, run
from tests.support.model.api import Request
from tests.support.model.script import Say

NOT_OFFERED = -32601


def test_mode_is_changed(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            if real.recipe.modes is None:
                error = await session.client.error("session/set_mode", {"sessionId": session.id, "modeId": "plan"})
                assert error["code"] == NOT_OFFERED
                return
            first, second = real.recipe.modes
            before = await view(session)
            await session.client.result("session/set_mode", {"sessionId": session.id, "modeId": second})
            after = await view(session)
            await session.client.result("session/set_mode", {"sessionId": session.id, "modeId": first})

        assert (before["mode"], after["mode"]) == (first, second)

    run(scenario())


def test_model_is_changed(real: RealAgent) -> None:
    async def scenario() -> None:
        scripts = [real.model.script(Say("first")), real.model.script(Say("second"))]
        async with real.any_session() as session:
            offered = await session.client.result("_sandboxagent/session/list_models", {"sessionId": session.id})
            if real.recipe.models is None:
                error = await session.client.error("session/set_model", {"sessionId": session.id, "modelId": "any"})
                assert (offered, error["code"]) == ({"availableModels": [], "currentModelId": None}, NOT_OFFERED)
                return
            first, second = real.recipe.models
            await session.turn(scripts[0])
            await session.client.result("session/set_model", {"sessionId": session.id, "modelId": second})
            after = await view(session)
            await session.turn(scripts[1])
            await session.client.result("session/set_model", {"sessionId": session.id, "modelId": first})

        assert offered["currentModelId"] == first
        assert {first, second} <= {model["modelId"] for model in offered["availableModels"]}
        assert after["model"] == second
        for script, name in zip(scripts, real.recipe.wire_models or real.recipe.models, strict=True):
            assert name in asked_for(script.requests[0])

    run(scenario())


def test_option_is_changed(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            if real.recipe.option is None:
                params = {"sessionId": session.id, "configId": "any", "value": "any"}
                assert (await session.client.error("session/set_config_option", params))["code"] == NOT_OFFERED
                return
            option, first, second = real.recipe.option
            params = {"sessionId": session.id, "configId": option, "value": second}
            changed = await session.client.result("session/set_config_option", params)
            await session.client.result("session/set_config_option", params | {"value": first})

        assert (value(session.settings, option), value(changed, option)) == (first, second)

    run(scenario())


def test_session_begins_with_the_mode_and_model_that_are_asked_for(real: RealAgent) -> None:
    async def scenario() -> None:
        wishes = {"mode": real.recipe.modes, "model": real.recipe.models}
        asked = {name: values[1] if values else "any" for name, values in wishes.items()}
        async with real.session(**asked) as session:
            seen = await view(session)

        warnings = session.settings.get("_meta", {}).get("sandboxagent.dev", {}).get("warnings", [])
        assert {name: seen[name] for name, values in wishes.items() if values} == {
            name: values[1] for name, values in wishes.items() if values
        }
        assert len(warnings) == sum(values is None for values in wishes.values()), warnings

    run(scenario())


async def view(session: Session) -> Json:
    """What the server knows of a session."""
    return (await session.client.result("_sandboxagent/session/get", {"sessionId": session.id}))["session"]


def value(settings: Json, option: str) -> object:
    return next(each["currentValue"] for each in settings["configOptions"] if each["id"] == option)


def asked_for(request: Request) -> str:
    """The model that was asked: named in the body, or in the path."""
    return request.body.get("model", request.path)
