"""Models, modes and options of sessions; methods that not every agent has; what session/new and a prompt may carry."""

import json
from pathlib import Path

import acp.schema
import pytest

from tests.support.client import META, Client, Json, run
from tests.support.history import view_of
from tests.support.running import Server


async def sent_to_agent(client: Client, session: str, method: str) -> list[Json]:
    """Params of every request of a method that the session's agent process received for this session."""
    received = (await client.result("x/received", {"sessionId": session}))["lines"]
    envelopes = [json.loads(line) for line in received]
    found = [one["params"] for one in envelopes if one.get("method") == method]
    return [params for params in found if params.get("sessionId") == session]


def new_params(server: Server, **meta: object) -> Json:
    return {"cwd": server.work, "mcpServers": [], "_meta": {META: meta}}


# Model and mode at the start


@pytest.mark.requirement("6.new-model-mode")
@pytest.mark.parametrize("agent", ["scripted", "models"])
def test_model_and_mode_in_session_new_are_set_through_the_agents_own_options(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server, agent) as client:
            session = await client.new_session(model="large", mode="plan")
            assert await sent_to_agent(client, session, "session/set_mode") == [
                {"sessionId": session, "modeId": "plan"}
            ]
            by_option = await sent_to_agent(client, session, "session/set_config_option")
            by_method = await sent_to_agent(client, session, "session/set_model")
            if agent == "models":
                assert (by_method, by_option) == ([{"sessionId": session, "modelId": "large"}], [])
            else:
                assert by_option == [{"sessionId": session, "configId": "model", "value": "large"}]
                assert by_method == []
            view = await view_of(client, session)
            assert (view["model"], view["mode"]) == ("large", "plan")
            assert (view["metadata"]["model"], view["metadata"]["mode"]) == ("large", "plan")

    run(main())


@pytest.mark.requirement("6.new-model-mode")
@pytest.mark.parametrize("agent", ["scripted", "models"])
def test_the_answer_to_session_new_shows_the_model_and_mode_that_were_set(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server, agent) as client:
            made = await client.result("session/new", new_params(server, model="large", mode="plan"))
            assert made["modes"]["currentModeId"] == "plan"
            if agent == "models":
                assert made["models"]["currentModelId"] == "large"
            else:
                assert made["configOptions"][0]["currentValue"] == "large"

    run(main())


@pytest.mark.requirement("6.new-model-mode")
def test_unavailable_model_in_session_new_is_a_warning_only(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "plain") as client:
            made = await client.result("session/new", new_params(server, model="large"))
            [warning] = made["_meta"][META]["warnings"]
            assert "large" in warning
            assert (await client.prompt(made["sessionId"], "hello"))["result"]["stopReason"] == "end_turn"

    run(main())


@pytest.mark.requirement("6.new-model-mode")
def test_what_the_agent_says_of_its_mode_later_is_what_the_views_show(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            options = [{"id": "model", "category": "model", "type": "select", "currentValue": "huge", "options": []}]
            await client.prompt(
                session,
                [
                    ["update", {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}],
                    ["update", {"sessionUpdate": "config_option_update", "configOptions": options}],
                ],
            )
            view = await view_of(client, session)
            assert (view["mode"], view["model"]) == ("plan", "huge")

    run(main())


# list_models


@pytest.mark.requirement("6.list-models")
@pytest.mark.parametrize("agent", ["scripted", "models"])
def test_list_models_reads_the_agents_models_or_its_model_option(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server, agent) as client:
            session = await client.new_session()
            of_session = await client.result("_sandboxagent/session/list_models", {"sessionId": session})
            assert [(one["modelId"], one["name"]) for one in of_session["availableModels"]] == [
                ("small", "Small"),
                ("large", "Large"),
            ]
            assert of_session["currentModelId"] == "small"
            await client.result("session/set_model", {"sessionId": session, "modelId": "large"})
            of_session = await client.result("_sandboxagent/session/list_models", {"sessionId": session})
            assert of_session["currentModelId"] == "large"

    run(main())


@pytest.mark.requirement("6.list-models")
def test_list_models_takes_an_agent_instead_of_a_session(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "models") as client, Client(server) as other:
            await client.new_session()
            by_default = await client.result("_sandboxagent/session/list_models")
            by_name = await other.result("_sandboxagent/session/list_models", {"agent": "models"})
            assert [one["modelId"] for one in by_default["availableModels"]] == ["small", "large"]
            assert by_name == by_default
            assert (await client.error("_sandboxagent/session/list_models", {"agent": "nobody"}))["code"] == -32602
            assert (await client.error("_sandboxagent/session/list_models", {"sessionId": "none"}))["code"] == -32002

    run(main())


# set_model, set_mode, set_config_option


@pytest.mark.requirement("6.set-model-translated")
def test_set_model_becomes_a_config_option_for_an_agent_that_has_only_that(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            result = await client.result("session/set_model", {"sessionId": session, "modelId": "large"})
            assert isinstance(result, dict)
            assert await sent_to_agent(client, session, "session/set_model") == []
            assert await sent_to_agent(client, session, "session/set_config_option") == [
                {"sessionId": session, "configId": "model", "value": "large"}
            ]
            assert (await view_of(client, session))["model"] == "large"

    run(main())


@pytest.mark.requirement("6.set-option-translated")
def test_a_model_config_option_becomes_set_model_for_an_agent_that_has_only_models(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "models") as client:
            session = await client.new_session()
            params = {"sessionId": session, "configId": "model", "value": "large"}
            result = await client.result("session/set_config_option", params)
            acp.schema.SetSessionConfigOptionResponse.model_validate(result)
            assert await sent_to_agent(client, session, "session/set_config_option") == []
            assert await sent_to_agent(client, session, "session/set_model") == [
                {"sessionId": session, "modelId": "large"}
            ]
            assert (await view_of(client, session))["model"] == "large"

    run(main())


@pytest.mark.requirement("6.set-passed")
def test_settings_that_the_agent_has_are_passed_on_as_they_are(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server, "models") as old, client.stream() as stream:
            session = await client.new_session()
            await client.result("session/set_mode", {"sessionId": session, "modeId": "plan", "x": 1})
            assert await sent_to_agent(client, session, "session/set_mode") == [
                {"sessionId": session, "modeId": "plan", "x": 1}
            ]
            update = await stream.method("session/update")
            assert update.update == {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
            option = {"sessionId": session, "configId": "model", "value": "large"}
            result = await client.result("session/set_config_option", option)
            assert result["configOptions"][0]["currentValue"] == "large"
            assert (await view_of(client, session))["mode"] == "plan"

            session = await old.new_session()
            await old.result("session/set_model", {"sessionId": session, "modelId": "large"})
            assert await sent_to_agent(old, session, "session/set_model") == [
                {"sessionId": session, "modelId": "large"}
            ]

    run(main())


@pytest.mark.requirement("6.set-passed")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/set_mode", {"modeId": "plan"}),
        ("session/set_model", {"modelId": "large"}),
        ("session/set_config_option", {"configId": "model", "value": "large"}),
    ],
)
def test_settings_of_an_agent_without_any_are_refused_with_its_name(server: Server, method: str, params: Json) -> None:
    async def main() -> None:
        async with Client(server, "plain") as client:
            session = await client.new_session()
            error = await client.error(method, {"sessionId": session, **params})
            assert error["code"] == -32601
            assert "plain" in error["message"]
            assert await sent_to_agent(client, session, method) == []

    run(main())


@pytest.mark.requirement("6.set-passed")
def test_a_setting_for_an_unknown_session_is_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            for method in ("session/set_mode", "session/set_model", "session/set_config_option"):
                params = {"sessionId": "none", "modeId": "x", "modelId": "x", "configId": "model", "value": "x"}
                assert (await client.error(method, params))["code"] == -32002

    run(main())


# Methods that an agent has or has not


@pytest.mark.requirement("6.not-offered")
@pytest.mark.parametrize(
    "method",
    ["session/load", "session/resume", "session/fork", "session/close", "session/delete", "authenticate", "logout"],
)
def test_what_the_agent_does_not_advertise_is_answered_with_its_name(server: Server, method: str) -> None:
    async def main() -> None:
        async with Client(server, "bare") as client:
            params: Json = {"methodId": "x"}
            if method.startswith("session/"):
                known = method not in ("session/load", "session/resume")
                session = await client.new_session() if known else "unknown-to-us"
                params = {"sessionId": session, "cwd": server.work, "mcpServers": []}
            error = await client.error(method, params)
            assert error["code"] == -32601
            assert "bare" in error["message"]
            received = (await client.result("x/received"))["lines"]
            assert not [line for line in received if json.loads(line).get("method") == method]

    run(main())


@pytest.mark.requirement("6.fork")
def test_a_fork_is_a_session_of_its_own_and_its_maker_is_attached(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            source = await client.new_session(title="Source")
            params = {"sessionId": source, "cwd": server.work, "mcpServers": []}
            fork = (await client.result("session/fork", params))["sessionId"]
            assert fork != source
            assert (await view_of(client, fork))["agent"] == "scripted"
            await client.prompt(fork, "to the fork")
            update = await stream.method("session/update")
            assert (update.data["params"]["sessionId"], update.text) == (fork, "to the fork")
            assert (await view_of(client, source))["ended"] is False

    run(main())


@pytest.mark.requirement("6.close")
def test_a_closed_session_has_ended_and_can_be_resumed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            await client.result("session/close", {"sessionId": session})
            ended = await stream.method("_sandboxagent/session/ended")
            assert ended.data["params"]["sessionId"] == session
            view = await view_of(client, session)
            assert (view["ended"], view["resumable"]) == (True, True)
            assert (await client.prompt(session, "again"))["result"]["stopReason"] == "end_turn"
            assert (await view_of(client, session))["ended"] is False

    run(main())


@pytest.mark.requirement("6.delete")
def test_a_deleted_session_is_gone_from_the_inventory_with_its_log(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session(requestedSessionId="to be deleted")
            await client.result("session/delete", {"sessionId": session})
            assert (await client.http.get(f"/v1/sessions/{session}")).status_code == 404
            assert (await client.http.get("/v1/sessions/to be deleted")).status_code == 404
            assert (await client.error("_sandboxagent/session/events", {"sessionId": session}))["code"] == -32002
            listed = await client.result("session/list")
            assert session not in [entry["sessionId"] for entry in listed["sessions"]]
            again = await client.new_session(requestedSessionId="to be deleted")
            assert again != session

    run(main())


@pytest.mark.requirement("6.auth")
def test_authenticate_and_logout_are_passed_to_an_agent_that_offers_them(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "signin") as client:
            assert await client.result("authenticate", {"methodId": "browser"}) == {}
            assert await client.result("logout") == {}
            received = [json.loads(line) for line in (await client.result("x/received"))["lines"]]
            sent = {one.get("method"): one.get("params") for one in received}
            assert sent["authenticate"] == {"methodId": "browser"}
            assert "logout" in sent

    run(main())


# What session/new and session/prompt carry


@pytest.mark.requirement("6.cwd")
@pytest.mark.parametrize("cwd", [None, 7, "", "relative", "./here", "/no/such/directory", "a file", "/tmp/\0"])
def test_session_new_needs_a_directory_that_is_there(server: Server, cwd: object) -> None:
    async def main() -> None:
        async with Client(server) as client:
            params: Json = {"cwd": cwd, "mcpServers": []}
            if cwd == "a file":
                path = Path(server.work) / "a-file"
                path.write_text("not a directory")
                params["cwd"] = str(path)
            before = len((await client.result("x/received"))["lines"])
            error = await client.error("session/new", params)
            assert error["code"] == -32602
            assert "cwd" in error["message"]
            received = (await client.result("x/received"))["lines"][before:]
            assert not [line for line in received if "session/new" in line]

    run(main())


@pytest.mark.requirement("6.cwd")
def test_session_new_without_a_cwd_is_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            assert (await client.error("session/new", {"mcpServers": []}))["code"] == -32602

    run(main())


@pytest.mark.requirement("6.prompt-content")
def test_a_prompts_content_string_is_a_prompt_of_one_text(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            answer = await client.result("session/prompt", {"sessionId": session, "content": "as a string"})
            assert answer["stopReason"] == "end_turn"
            assert (await stream.method("session/update")).text == "as a string"
            [prompt] = await sent_to_agent(client, session, "session/prompt")
            assert prompt["prompt"] == [{"type": "text", "text": "as a string"}]

    run(main())
