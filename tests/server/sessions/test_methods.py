"""`session/new`, `session/fork`, `session/list`, `session/prompt` and logins: what is checked, asked and answered."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.protocol.errors import AgentTimeout, LogUnavailable
from sandboxagent.server.sessions.lifecycle import State
from tests.support.world import CAPABILITIES, Json, World, envelope, error_of, result_of, run, world

NEW: Json = {"cwd": "/", "mcpServers": []}
META = "sandboxagent.dev"
INVALID, NOT_OFFERED = -32602, -32601
FORKS: Json = {**CAPABILITIES, "sessionCapabilities": {"fork": {}}}


def asking_for(**meta: object) -> Json:
    """Parameters of a new session with these wishes."""
    return {**NEW, "_meta": {META: meta}}


async def opened(own: World, params: Json, answer: Json | None = None) -> tuple[Json, Json]:
    """Open a session; what the agent got, and what the client was answered."""
    task = own.request("session/new", params, id="new")
    request = await own.agent.answers("session/new", answer or {"sessionId": "fresh"})
    return request, result_of(await task)


async def listed(own: World, **params: object) -> list[str]:
    answer = result_of(await own.request("session/list", params, id="list"))
    return [one["sessionId"] for one in answer["sessions"]]


# --- session/new ------------------------------------------------------------------------------------------------------


def test_a_new_session_is_held_listed_and_attached_to_its_client() -> None:
    async def main() -> None:
        async with world() as own:
            request, result = await opened(own, NEW)

            session = own.hub.session("fresh")
            assert (request["params"], result["sessionId"]) == (NEW, "fresh")
            assert session.state is State.HELD
            assert own.client in own.hub.connections.attached(session)
            assert "fresh" in await listed(own)
            own.agent.updates("hello", "fresh")
            assert [one["params"]["update"]["content"]["text"] for one in (await own.events("fresh"))[2:]] == ["hello"]

    run(main())


def texts_and_answers(events: list[Json]) -> list[str]:
    """The order of an agent's texts, prompts and new sessions."""
    found: list[str] = []
    for one in events:
        if one.get("method") == "session/update":
            found.append(one["params"]["update"]["content"]["text"])
        elif one.get("method") == "session/prompt" or "sessionId" in one.get("result", {}):
            found.append(one.get("method", "opened"))
    return found


def test_prompt_is_recorded_after_held_updates_of_its_new_session() -> None:
    async def main() -> None:
        async with world() as own:
            reply = own.requests.submit(own.client, envelope(id="new", method="session/new", params=NEW))
            await own.agent.answers("session/new", {"sessionId": "fresh"})
            # Its client has not got it yet.
            await reply
            own.agent.updates("hello", "fresh")
            prompt = own.prompt(session="fresh")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await prompt

            assert texts_and_answers(await own.events("fresh")) == ["opened", "hello", "session/prompt"]

    run(main())


@pytest.mark.requirement("5.response-first")
def test_updates_of_a_new_session_follow_its_late_response() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("session/new", NEW, id="new")
            request = await own.agent.pipe.request("session/new")
            own.now += 121
            own.timeout_loop.tick()
            with pytest.raises(AgentTimeout):
                await task
            own.agent.updates("hello", "fresh")
            own.says(id=request["id"], result={"sessionId": "fresh"})
            own.agent.updates("again", "fresh")

            assert texts_and_answers(await own.heard(own.client, "fresh")) == ["opened", "hello", "again"]

    run(main())


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"cwd": "relative"},
        {"cwd": "/no/such/directory"},
        {"cwd": 7},
        asking_for(requestedSessionId="a/b"),
        asking_for(requestedSessionId=""),
        asking_for(requestedSessionId="x" * 257),
        asking_for(requestedSessionId=7),
        asking_for(env=["A=b"]),
        asking_for(permissions=[{"tool": "*", "action": "maybe"}]),
        asking_for(permissionMode=7),
    ],
    ids=lambda params: json.dumps(params)[:60],
)
def test_what_is_wrong_is_named_before_the_agent_hears_of_it(params: Json) -> None:
    async def main() -> None:
        async with world() as own:
            error = error_of(await own.request("session/new", params))

            assert error["code"] == INVALID
            assert own.process.sent == []

    run(main())


def test_an_alias_is_the_sessions_id_for_clients_and_the_agent_keeps_its_own() -> None:
    async def main() -> None:
        async with world() as own:
            _, result = await opened(own, asking_for(requestedSessionId="mine"))

            assert own.hub.session("mine").facts.agent_session_id == "fresh"
            assert own.hub.session(result["sessionId"]) is own.hub.session("mine")

            taken = error_of(await own.request("session/new", asking_for(requestedSessionId="mine"), id="2"))
            assert taken["code"] == INVALID
            assert "taken" in taken["message"]

    run(main())


@pytest.mark.requirement("6.names-unique")
def test_an_alias_reserved_for_a_session_under_way_is_no_other_sessions_id() -> None:
    async def main() -> None:
        async with world() as own:
            wanted = own.request("session/new", asking_for(requestedSessionId="mine"), id="1")
            first = await own.process.request("session/new")
            _, other = await opened(own, NEW, {"sessionId": "mine"})
            own.says(id=first["id"], result={"sessionId": "fresh"})

            made = result_of(await wanted)["sessionId"]
            assert (made, own.hub.session("mine").id) == ("fresh", "fresh")
            assert other["sessionId"] not in ("mine", made)
            assert own.hub.session(other["sessionId"]).facts.agent_session_id == "mine"

    run(main())


@pytest.mark.requirement("6.names-unique")
def test_an_alias_of_a_session_at_rest_or_of_an_earlier_run_is_no_other_sessions_id(tmp_path: Path) -> None:
    async def at_rest() -> None:
        async with world(tmp_path / "log.db") as own:
            await opened(own, asking_for(requestedSessionId="mine"))
            own.hub.close_connection(own.client, "left")
            own.hub.report_changes(float("inf"))
            while own.hub.store._active:
                own.hub.drop_idle()
                await own.log.flushed()
            assert not own.hub.store._aliases
            own.client = own.connect()
            await claimed(own)

    async def claimed(own: World) -> None:
        for claim in ("mine", "fresh"):
            _, result = await opened(own, NEW, {"sessionId": claim})
            assert result["sessionId"] not in ("mine", "fresh")
            assert own.hub.session("mine").id == own.hub.session("fresh").id == "fresh"

    async def after() -> None:
        async with world(tmp_path / "log.db", session="t") as own:
            await claimed(own)

    run(at_rest())
    run(after())


@pytest.mark.requirement("6.names-unique")
@pytest.mark.parametrize("taken", ["reserved", "given", "by id"])
def test_a_load_of_an_id_that_another_session_takes_meanwhile_is_refused(taken: str) -> None:
    async def main() -> None:
        async with world() as own:
            wishes = NEW if taken == "by id" else asking_for(requestedSessionId="mine")
            asked = own.request("session/new", wishes, id="1")
            first = await own.process.request("session/new")
            own.agents.append(None)
            own.starting.clear()
            loading = own.request("session/load", {**NEW, "sessionId": "mine"}, id="2")
            await own.settled()
            if taken != "reserved":
                own.agents[0].says(id=first["id"], result={"sessionId": "mine" if taken == "by id" else "fresh"})
                await asked
            own.starting.set()

            assert "ask again" in error_of(await loading)["message"]
            assert not [one for one in own.process.sent if one["method"] == "session/load"]
            asked.cancel()

    run(main())


@pytest.mark.requirement("6.names-unique")
def test_name_known_to_a_watcher_is_no_other_sessions_id() -> None:
    async def main() -> None:
        async with world() as own:
            own.hub.watch_names(lambda name: name == "ses_known")
            _, result = await opened(own, NEW, {"sessionId": "ses_known"})
            assert result["sessionId"] != "ses_known"

    run(main())


@pytest.mark.parametrize("result", [{}, {"sessionId": ""}, {"sessionId": 7}], ids=["none", "empty", "a number"])
def test_an_answer_without_an_id_opens_no_session_and_frees_the_alias(result: Json) -> None:
    async def main() -> None:
        async with world() as own:
            before = await listed(own)
            task = own.request("session/new", asking_for(requestedSessionId="mine"), id="new")
            await own.agent.answers("session/new", result)

            assert result_of(await task) == result
            assert await listed(own) == before
            await opened(own, asking_for(requestedSessionId="mine"))

    run(main())


def test_a_refusal_of_the_agent_is_the_answer_and_frees_the_alias() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("session/new", asking_for(requestedSessionId="mine"), id="new")
            request = await own.process.request("session/new")
            own.says(id=request["id"], error={"code": -32000, "message": "log in first"})

            assert error_of(await task) == {"code": -32000, "message": "log in first"}
            await opened(own, asking_for(requestedSessionId="mine"))

    run(main())


def test_a_title_and_what_an_app_adds_are_known_of_the_session_and_secrets_are_not() -> None:
    async def main() -> None:
        async with world() as own:
            await opened(own, asking_for(title="A title", ticket=[1, None]))

            facts = own.hub.session("fresh").facts
            assert facts.title == "A title"
            assert facts.metadata["ticket"] == [1, None]
            assert not {"agent", "env"} & facts.metadata.keys()

    run(main())


def test_a_model_that_the_agent_does_not_have_is_a_warning_and_the_session_opens() -> None:
    async def main() -> None:
        async with world() as own:
            _, result = await opened(own, asking_for(model="no such model"))

            (warning,) = result["_meta"][META]["warnings"]
            assert "model" in json.dumps(warning)
            assert own.hub.session("fresh").state is State.HELD

    run(main())


def test_a_permission_mode_that_the_agent_does_not_have_opens_no_session() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("session/new", asking_for(permissionMode="no such mode"), id="new")
            await own.agent.answers("session/new", {"sessionId": "fresh"})
            await own.agent.answers("session/close")

            assert error_of(await task)["code"] == INVALID
            assert "fresh" not in await listed(own)

    run(main())


def test_requests_are_refused_while_the_log_cannot_keep_them() -> None:
    async def main() -> None:
        async with world() as own:
            # What is written later would clear it.
            await own.log.flushed()
            own.log.failure = "the disk is full"
            for method, params in (("session/new", NEW), ("session/prompt", {"sessionId": "s", "prompt": []})):
                with pytest.raises(LogUnavailable):
                    await own.request(method, params)
            assert own.process.sent == []
            own.log.failure = None

    run(main())


# --- session/fork -----------------------------------------------------------------------------------------------------


def test_a_fork_has_what_its_source_has_and_names_it() -> None:
    async def main() -> None:
        async with world(capabilities=FORKS) as own:
            own.session.facts.title = "A title"
            own.session.facts.metadata = {"ticket": 7}
            task = own.request("session/fork", {"sessionId": "s"}, id="fork")
            await own.agent.answers("session/fork", {"sessionId": "forked"})

            assert result_of(await task)["sessionId"] == "forked"
            facts = own.hub.session("forked").facts
            assert (facts.title, facts.cwd) == ("A title", "/")
            assert facts.metadata == {"ticket": 7, "forkedFrom": "s"}
            assert own.session.state is own.hub.session("forked").state is State.HELD

    run(main())


def test_a_fork_needs_an_agent_that_forks_and_a_directory_that_is_there() -> None:
    async def main() -> None:
        async with world() as own:
            assert error_of(await own.request("session/fork", {"sessionId": "s"}))["code"] == NOT_OFFERED
            assert own.process.sent == []
        async with world(capabilities=FORKS) as own:
            error = error_of(await own.request("session/fork", {"sessionId": "s", "cwd": "/no/such/directory"}))
            assert error["code"] == INVALID
            assert own.process.sent == []

    run(main())


# --- session/list -----------------------------------------------------------------------------------------------------


def test_sessions_are_listed_without_asking_the_agent() -> None:
    async def main() -> None:
        async with world() as own:
            own.add_session("other")

            assert sorted(await listed(own)) == ["other", "s"]
            assert await listed(own, cwd="/elsewhere") == []
            assert own.process.sent == []

    run(main())


@pytest.mark.parametrize("params", [{"cursor": 7}, {"cwd": ["/"]}, {"cursor": "not one of ours"}])
def test_a_list_takes_texts_that_it_has_given(params: Json) -> None:
    async def main() -> None:
        async with world() as own:
            assert error_of(await own.request("session/list", params))["code"] == INVALID

    run(main())


# --- session/prompt ---------------------------------------------------------------------------------------------------


def test_a_prompt_may_be_a_text() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("session/prompt", {"sessionId": "s", "content": "hello"}, id="p")
            request = await own.agent.answers("session/prompt", {"stopReason": "end_turn"})

            assert request["params"]["prompt"] == [{"type": "text", "text": "hello"}]
            assert result_of(await task) == {"stopReason": "end_turn"}

    run(main())


def test_a_prompt_attaches_its_client_and_is_in_the_log_before_it_is_answered() -> None:
    async def main() -> None:
        async with world() as own:
            own.client = own.connect()
            task = own.prompt("hello", "p")
            await own.settled()

            assert own.client in own.hub.connections.attached(own.session)
            assert "session/prompt" in [one.get("method") for one in await own.events()]
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await task

    run(main())


@pytest.mark.parametrize("prompt_id", [7, "", "x" * 1000], ids=["a number", "empty", "long"])
def test_a_prompt_id_that_is_none_is_refused_and_the_prompt_does_not_run(prompt_id: Any) -> None:
    async def main() -> None:
        async with world() as own:
            params = {"sessionId": "s", "prompt": [], "_meta": {META: {"promptId": prompt_id}}}

            assert error_of(await own.request("session/prompt", params))["code"] == INVALID
            assert own.process.sent == []

    run(main())


def test_a_prompt_runs_although_its_client_has_gone() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.prompt("hello", "p")
            await own.settled()
            task.cancel()
            await asyncio.wait([task])
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})

            assert own.session.running is None
            states = [one["params"]["state"] for one in await own.events() if str(one.get("method")).endswith("/turn")]
            assert states == ["started", "ended"]

    run(main())


# --- logins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["authenticate", "logout"])
def test_a_login_that_the_agent_does_not_offer_is_refused_without_asking_it(method: str) -> None:
    async def main() -> None:
        async with world() as own:
            assert error_of(await own.request(method, {"methodId": "any"}))["code"] == NOT_OFFERED
            assert own.process.sent == []

    run(main())


def test_a_logout_that_the_agent_offers_is_its_own_business() -> None:
    async def main() -> None:
        async with world(capabilities={"auth": {"logout": {}}}) as own:
            task = own.request("logout", {})
            await own.agent.answers("logout", {"bye": True})

            assert result_of(await task) == {"bye": True}

    run(main())
