"""What clients learn when an agent fails for want of credentials, and sessions that bring their own."""

from typing import Any

import pytest
from msgspec.structs import replace

from sandboxagent.protocol.envelope import META
from tests.support.world import World, error_of, run, world


def needs_keys(one: World, **environment: str) -> None:
    """The agent needs a key; its process has this of its own."""
    one.agent.running.agent = replace(one.manifest, credentials=("KEY_A", "KEY_B"))
    one.agent.running.environment = environment


async def fail(one: World, code: int, **error: Any) -> dict[str, Any]:
    turn = one.prompt()
    request = await one.agent.pipe.request("session/prompt")
    one.says(id=request["id"], error={"code": code, "message": "Authentication required", **error})
    return error_of(await turn)


@pytest.mark.requirement("9.credentials-named")
@pytest.mark.parametrize("code", [-32000, -32603])
def test_a_failure_without_credentials_names_the_variables(code: int) -> None:
    async def main() -> None:
        async with world() as one:
            needs_keys(one)
            error = await fail(one, code, data={"own": 1})

            assert error["code"] == code
            assert error["message"] == "Authentication required; a was started without its credentials: KEY_A, KEY_B"
            assert error["data"] == {"own": 1, META: {"credentials": ["KEY_A", "KEY_B"]}}

    run(main())


@pytest.mark.parametrize(
    ("code", "error", "environment"),
    [(-32602, {}, {}), (-32000, {"data": "text"}, {}), (-32000, {}, {"KEY_B": "secret"})],
)
def test_other_failures_are_passed_on_as_they_are(code: int, error: Any, environment: dict[str, str]) -> None:
    async def main() -> None:
        async with world() as one:
            needs_keys(one, **environment)
            assert await fail(one, code, **error) == {"code": code, "message": "Authentication required", **error}

    run(main())


@pytest.mark.requirement("6.env-taken-up")
def test_a_session_with_its_own_environment_is_not_taken_up_without() -> None:
    async def main() -> None:
        async with world() as one:
            one.session.facts.own_environment = True
            one.agent.crashes()
            error = error_of(await one.prompt())
            assert error["code"] == -32600
            assert "environment of its own" in error["message"]
            refused = error_of(await one.request("session/load", {"sessionId": "s", "cwd": "/", "mcpServers": []}))
            assert refused["code"] == -32600
            assert one.agents[-1] is None, "no process was started"

    run(main())


@pytest.mark.requirement("6.env-taken-up")
def test_a_session_that_runs_takes_no_environment() -> None:
    async def main() -> None:
        async with world() as one:
            params = {"sessionId": "s", "cwd": "/", "mcpServers": [], "_meta": {META: {"env": {"A": "b"}}}}
            assert error_of(await one.request("session/load", params))["code"] == -32602

    run(main())
