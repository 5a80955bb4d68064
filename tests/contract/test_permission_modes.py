"""`permissionMode` of `session/new`. Contract, section 7."""

import json
from collections.abc import Generator

import pytest

from tests.support.asking import PERMISSION, answer_line, ask_outright, everything, methods, received_envelopes, texts
from tests.support.client import META, Client, Json, run
from tests.support.running import Server, scripted

MODES = {
    "modes": {
        "currentModeId": "default",
        "availableModes": [{"id": id, "name": id} for id in ("default", "yolo", "plan")],
    }
}
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


@pytest.fixture(scope="module")
def modal() -> Generator[Server]:
    agents = {
        "modal": scripted("--settings", json.dumps(MODES)),
        "stubborn": scripted("--settings", json.dumps(MODES), "--lacks", "session/set_mode"),
        "modeless": scripted("--plain"),
        "alone": scripted("--plain", isolation="session"),
    }
    with Server("--no-persist", agents=agents) as running:
        yield running


def wants(server: Server, kind: str, name: str = "a.txt") -> list[object]:
    """A step that asks for permission to do something of a kind with a file."""
    path = f"{server.work}/{name}"
    call = {"toolCallId": f"call-{name}", "title": "Do it", "kind": kind, "locations": [{"path": path}]}
    return ["ask", PERMISSION, {"toolCall": call, "options": OPTIONS}]


@pytest.mark.requirement("7.permission-mode")
def test_the_agent_is_set_to_its_own_mode_of_that_name_before_the_answer(modal: Server) -> None:
    async def main() -> None:
        async with Client(modal, "modal") as client:
            params = {"cwd": modal.work, "mcpServers": [], "_meta": {META: {"permissionMode": "plan"}}}
            result = await client.result("session/new", params)
            assert result["modes"]["currentModeId"] == "plan"
            (set_mode,) = [
                each["params"]
                for each in await received_envelopes(client)
                if each.get("method") == "session/set_mode" and each["params"]["sessionId"] == result["sessionId"]
            ]
            assert set_mode["modeId"] == "plan"
            view = (await client.result("_sandboxagent/session/get", {"sessionId": result["sessionId"]}))["session"]
            assert (view["mode"], view["metadata"]["permissionMode"]) == ("plan", "plan")

    run(main())


@pytest.mark.requirement("7.permission-mode")
@pytest.mark.parametrize(
    ("mode", "kind", "told"),
    [
        ("bypassPermissions", "execute", "yes"),
        ("acceptEdits", "edit", "yes"),
        ("acceptEdits", "execute", None),
        ("default", "edit", None),
    ],
)
@pytest.mark.parametrize("agent", ["modal", "modeless"])
def test_a_mode_that_the_agent_does_not_have_is_kept_by_rules(
    modal: Server, agent: str, mode: str, kind: str, told: str | None
) -> None:
    async def main() -> None:
        async with Client(modal, agent) as client, client.stream() as events:
            session = await client.new_session(permissionMode=mode)
            await ask_outright(client, session, wants(modal, kind), ["echo_answer"])
            if told is None:
                request = await events.method(PERMISSION)
                no = {"outcome": {"outcome": "selected", "optionId": "no"}}
                assert (await client.answer(request.data["id"], no)).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"]["outcome"]["optionId"] == (told or "no")
            asked = methods(await everything(client, events)).count(PERMISSION)
            assert asked == (1 if told is None else 0)

    run(main())


@pytest.mark.requirement("7.permission-mode")
def test_edits_are_accepted_within_the_sessions_folder_alone(modal: Server) -> None:
    async def main() -> None:
        async with Client(modal, "modeless") as client, client.stream() as events:
            session = await client.new_session(permissionMode="acceptEdits")
            await ask_outright(client, session, wants(modal, "edit", "../b.txt"), ["wait_answer"])
            await events.method(PERMISSION)
            await client.notify("session/cancel", {"sessionId": session})
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.permission-mode")
def test_a_rule_of_the_session_counts_before_those_of_a_mode_that_allows(modal: Server) -> None:
    async def main() -> None:
        async with Client(modal, "modeless") as client, client.stream() as events:
            rules = [{"kind": "delete", "action": "reject"}]
            session = await client.new_session(permissionMode="bypassPermissions", permissions=rules)
            steps = [wants(modal, "delete"), ["echo_answer"], wants(modal, "edit", "b.txt"), ["echo_answer"]]
            await ask_outright(client, session, *steps)
            await events.turn_ended()
            chosen = [answer_line(text)["result"]["outcome"]["optionId"] for text in texts(events.seen)]
            assert chosen == ["no", "yes"]

    run(main())


@pytest.mark.requirement("7.permission-mode")
def test_a_client_that_sets_another_mode_is_asked_again(modal: Server) -> None:
    async def main() -> None:
        async with Client(modal, "modal") as client, client.stream() as events:
            session = await client.new_session(permissionMode="bypassPermissions")
            await client.result("session/set_mode", {"sessionId": session, "modeId": "plan"})
            await ask_outright(client, session, wants(modal, "edit"), ["wait_answer"])
            await events.method(PERMISSION)
            await client.notify("session/cancel", {"sessionId": session})
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.permission-mode-unknown")
@pytest.mark.parametrize(
    ("agent", "mode", "available"),
    [
        ("modal", "agent-full-access", ["default", "yolo", "plan", "bypassPermissions", "acceptEdits"]),
        ("modeless", "plan", ["default", "bypassPermissions", "acceptEdits"]),
        ("alone", "yolo", ["default", "bypassPermissions", "acceptEdits"]),
    ],
)
def test_an_unknown_mode_is_refused_with_those_that_there_are_and_no_session_stays(
    modal: Server, agent: str, mode: str, available: list[str]
) -> None:
    async def main() -> None:
        async with Client(modal, agent) as client:
            before = await sessions(client)
            meta = {"permissionMode": mode, "requestedSessionId": f"{agent}-{mode}"}
            params = {"cwd": modal.work, "mcpServers": [], "_meta": {META: meta}}
            error = await client.error("session/new", params)
            assert error["code"] == -32602
            assert error["data"]["available"] == available
            assert all(each in error["message"] for each in (agent, mode, *available))
            assert await sessions(client) == before
            # The alias is free again.
            again = params | {"_meta": {META: meta | {"permissionMode": "bypassPermissions"}}}
            await client.result("session/new", again)

    run(main())


@pytest.mark.requirement("7.permission-mode-unknown")
def test_a_mode_that_the_agent_refuses_is_an_error_and_no_session_stays(modal: Server) -> None:
    async def main() -> None:
        async with Client(modal, "stubborn") as client:
            before = await sessions(client)
            params = {"cwd": modal.work, "mcpServers": [], "_meta": {META: {"permissionMode": "plan"}}}
            error = await client.error("session/new", params)
            assert error["code"] == -32602
            assert "does not take the mode 'plan'" in error["message"]
            assert await sessions(client) == before

    run(main())


@pytest.mark.requirement("7.permission-mode-unknown")
def test_a_mode_that_is_no_text_is_refused_before_anything_is_begun(modal: Server) -> None:
    async def main() -> None:
        async with Client(modal, "modal") as client:
            params = {"cwd": modal.work, "mcpServers": [], "_meta": {META: {"permissionMode": ["plan"]}}}
            assert (await client.error("session/new", params))["code"] == -32602

    run(main())


async def sessions(client: Client) -> list[Json]:
    listed = (await client.result("session/list"))["sessions"]
    return sorted((each["sessionId"] for each in listed), key=str)
