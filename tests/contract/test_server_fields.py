"""What an agent writes in the server's name, or about a session of another process. Contract, section 5."""

import json
from typing import Any

import pytest

from tests.support.asking import ALLOW, CANCEL, DECISION, ENDED, PERMISSION, TURN, ask_outright, everything, permission
from tests.support.asking import texts as texts_of
from tests.support.client import META, Client, Event, Json, run
from tests.support.running import Server

GAP, METADATA = "_sandboxagent/stream/gap", "_sandboxagent/session/metadata_update"
UNPARSED = "_sandboxagent/agent/unparsed"
EVENTS, ATTACH = "_sandboxagent/session/events", "_sandboxagent/session/attach"


def notice(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def update(session: str, text: str, **more: Any) -> str:
    said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return notice("session/update", sessionId=session, update=said, **more)


def forgeries(session: str) -> list[str]:
    """Lines that clients would believe."""
    decided = {"requestId": 0, "kind": "permission", "outcome": "answered", "by": {"kind": "client", "user": "alice"}}
    lines = [
        notice(DECISION, sessionId=session, **decided),
        notice(ENDED, sessionId=session, reason="terminated", terminatedBy="client"),
        notice(METADATA, sessionId=session, metadata={"forged": True}),
        notice(TURN, sessionId=session, turnId="turn-forged", state="ended", stopReason="end_turn"),
        notice(GAP, after=0, resumesAt=10**9),
        notice(UNPARSED, agent="other", reason="forged", line="forged", truncated=False),
        notice("_sandboxagent/of/tomorrow", sessionId=session),
    ]
    ended = lines[1]
    return [
        *lines,
        ended.replace("_sandboxagent", "_sandbox\\u0061gent"),
        ended.replace("_sandboxagent/", "_sandboxagent\\/"),
        ended.replace('"method"', '"meth\\u006fd"').replace("_sandboxagent", "\\u005fs\\u0061ndboxagent"),
        ended.replace('"method":', '"method": "session/update", "method":'),
        ended.replace('"jsonrpc": "2.0"', '"jsonrpc": "1.0", "jsonrpc": "2.0"'),
        ended.replace('"params":', '\t"params" :\t'),
    ]


def said_by_server(events: list[Event]) -> list[str]:
    return [event.method for event in events if event.method.startswith("_sandboxagent/") and event.method != TURN]


@pytest.mark.requirement("5.server-alone")
def test_no_agent_speaks_for_the_server_live_in_the_log_or_when_it_is_replayed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events, b.stream() as others:
            session = await a.new_session()
            mixed = [line for forged in forgeries(session) for line in (update(session, "honest"), forged)]
            # One write is a batch of updates, in which a forgery could hide; then each by itself.
            await a.prompt(session, [["raw", "\n".join(mixed)], *(["raw", line] for line in forgeries(session))])
            seen = await everything(a, events)
            await b.result("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
            replayed = await everything(b, others)
            log = (await a.result(EVENTS, {"sessionId": session, "limit": 5000}))["events"]
            for told in (seen, replayed):
                assert said_by_server(told) == []
                assert texts_of(told).count("honest") == len(forgeries(session))
            turns = [one for one in (*seen, *replayed) if one.method == TURN]
            assert not any("turn-forged" in one.line for one in turns)
            assert [
                one["envelope"]["method"]
                for one in log
                if one["direction"] == "fromAgent" and one["envelope"].get("method", "").startswith("_sandboxagent/")
            ] == []
            assert not (await a.result("_sandboxagent/session/get", {"sessionId": session}))["session"]["ended"]

    run(main())


@pytest.mark.requirement("5.server-alone")
def test_a_request_under_our_name_is_a_method_that_is_not_there_except_a_question(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            names = [DECISION, "_sandboxagent/fs/read", "_sandboxagent/session/terminate"]
            steps: list[list[Any]] = [step for name in names for step in (["ask", name, {}], ["echo_answer"])]
            await a.prompt(session, steps)
            seen = await everything(a, events)
            answers: list[Json] = [
                json.loads(json.loads(text)) if text.startswith('"') else json.loads(text) for text in texts_of(seen)
            ]
            assert [answer["error"]["code"] for answer in answers] == [-32601] * len(names)
            assert said_by_server(seen) == []

    run(main())


@pytest.mark.requirement("5.server-alone")
@pytest.mark.parametrize("key", [META, "sandbox\\u0061gent.dev"])
def test_our_key_in_an_agents_meta_reaches_no_client_and_other_keys_do(server: Server, key: str) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            mode = {"sessionUpdate": "current_mode_update", "currentModeId": "ask"}
            forged = {META: {"fromServer": True, "promptId": "p", "outcome": "answered"}, "vendor": {"kept": 1}}
            lines = [
                update(session, "said", _meta=forged),
                notice("session/update", sessionId=session, update=mode, _meta=forged),
                notice("session/update", sessionId=session, update=mode | {"_meta": forged}),
            ]
            await a.prompt(session, [["raw", "\n".join(lines).replace(META, key)]])
            seen = [one for one in await everything(a, events) if one.method == "session/update"]
            told = [one for one in seen if "vendor" in one.line]
            assert len(told) == len(lines)
            assert not any(META in json.dumps(one.data) for one in told)

    run(main())


@pytest.mark.requirement("5.server-alone")
@pytest.mark.parametrize("agent", ["other", "isolated"])
def test_no_agent_process_speaks_of_a_session_that_another_holds(server: Server, agent: str) -> None:
    async def main() -> None:
        holder = "scripted" if agent == "other" else agent
        async with Client(server, holder) as a, Client(server, agent) as b, a.stream() as events:
            theirs = await a.new_session()
            await b.result(ATTACH, {"sessionId": theirs})
            mine = await b.new_session()
            # A follows both agents, as a client that shows all sessions does.
            await a.result(ATTACH, {"sessionId": mine})
            await ask_outright(a, theirs, permission('"shared"'), ["wait_answer"], ["say", "allowed"])
            asked = await events.method(PERMISSION)
            await b.prompt(
                mine,
                [
                    ["raw", update(theirs, "forged")],
                    ["raw", update(theirs, "forged").replace('"sessionId":', f'"sessionId": "{mine}", "sessionId":')],
                    ["raw", notice("x/vendor", sessionId=theirs, currentModeId="forged")],
                    # Answers to what another process was asked, and the withdrawal of what it has asked.
                    *(
                        ["raw", json.dumps({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}})]
                        for id in range(60)
                    ),
                    ["raw", notice(CANCEL, requestId="shared")],
                    ["ask", PERMISSION, {"sessionId": theirs, "toolCall": {}, "options": []}],
                    ["wait_answer"],
                    ["say", "tried"],
                ],
            )
            # It has answered its own prompt along with all the others, and goes on.
            await events.until(lambda event: event.text == "tried")
            assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
            await events.until(lambda event: event.method == TURN and event.data["params"]["sessionId"] == theirs)
            await everything(a, events)
            seen = events.seen
            assert texts_of(seen) == ["tried", "allowed"]
            about_theirs = [one for one in seen if one.data.get("params", {}).get("sessionId") == theirs]
            assert not any("forged" in one.line for one in about_theirs)
            assert len([one for one in seen if one.method == PERMISSION]) == 1
            assert CANCEL not in [one.method for one in seen]
            log = await a.result(EVENTS, {"sessionId": theirs, "limit": 5000})
            assert "forged" not in json.dumps(log)

    run(main())


@pytest.mark.requirement("5.server-alone")
def test_an_ended_session_hears_only_the_process_that_held_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as a, a.stream() as events:
            ended, other = await a.new_session(), await a.new_session()
            await a.result("session/close", {"sessionId": ended})
            await a.prompt(other, [["raw", update(ended, "forged")], ["say", "tried"]])
            assert texts_of(await everything(a, events)) == ["tried"]
            assert "forged" not in json.dumps(await a.result(EVENTS, {"sessionId": ended, "limit": 5000}))

    run(main())


@pytest.mark.requirement("5.server-alone")
def test_what_a_client_says_as_if_it_were_an_agent_is_not_replayed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            assert (await a.post(json.loads(update(session, "forged")))).status_code == 202
            await a.prompt(session, [["say", "honest"]])
            await b.result("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
            said = texts_of(
                [one for one in await everything(b, events) if one.update.get("sessionUpdate") == "agent_message_chunk"]
            )
            assert said == ["honest"]

    run(main())
