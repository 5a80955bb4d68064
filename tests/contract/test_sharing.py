"""Sessions that several connections share: attaching, loading, broadcasts, and ids that two agents both chose.

Contract, section 5 and 12.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    PERMISSION,
    TURN,
    answer_line,
    ask_outright,
    everything,
    methods,
    permission,
    received,
    texts,
)
from tests.support.client import Client, Event, Json, run
from tests.support.history import events_of, text_of
from tests.support.running import BOUND, Server, alive, eventually, scripted

ATTACH, DETACH = "_sandboxagent/session/attach", "_sandboxagent/session/detach"
USER = "user_message_chunk"


def loading(server: Server, session: str) -> Json:
    return {"sessionId": session, "cwd": server.work, "mcpServers": []}


def conversation(events: list[Event]) -> list[tuple[str, str]]:
    """Who said what."""
    said = [(event.update.get("sessionUpdate", ""), event.text) for event in events if event.update]
    return [(kind.removesuffix("_message_chunk"), text) for kind, text in said]


# Attaching and detaching


@pytest.mark.requirement("5.broadcast")
def test_every_attached_connection_receives_the_sessions_updates_under_the_same_ids(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, Client(server, "other") as c:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await c.result(ATTACH, {"sessionId": session})
            await a.prompt(session, [["say", "one"], ["update", {"sessionUpdate": "x"}], ["say", "two"]])
            seen = []
            for client in (a, b, c):
                async with client.stream() as events:
                    updates = [event for event in await everything(client, events) if event.text in ("one", "two")]
                    seen.append([(event.id, event.line) for event in updates])
            assert len(seen[0]) == 2
            assert seen[0] == seen[1] == seen[2]

    run(main())


@pytest.mark.requirement("5.broadcast")
def test_a_connection_that_is_not_attached_receives_nothing_of_a_session(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            async with a.stream() as own:
                await ask_outright(a, session, ["say", "secret"], permission(), ["wait_answer"])
                await own.method(PERMISSION)
                await a.notify("session/cancel", {"sessionId": session})
                await own.turn_ended()
            assert await everything(b, events) == []

    run(main())


@pytest.mark.requirement("5.attaching")
@pytest.mark.parametrize("how", ["new", "load", "resume", "fork", "prompt", "attach"])
def test_creating_loading_resuming_forking_prompting_and_attaching_attach(server: Server, how: str) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            match how:
                case "new":
                    session = await b.new_session()
                case "fork":
                    session = (await b.result("session/fork", loading(server, session)))["sessionId"]
                case "prompt":
                    await b.prompt(session, [])
                case "attach":
                    await b.result(ATTACH, {"sessionId": session})
                case _:
                    await b.result(f"session/{how}", loading(server, session))
            await a.prompt(session, f"after {how}")
            assert texts(await everything(b, events)) == [f"after {how}"]

    run(main())


@pytest.mark.requirement("5.attaching")
def test_reading_about_a_session_does_not_attach(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            await b.result("_sandboxagent/session/get", {"sessionId": session})
            await b.result("_sandboxagent/session/events", {"sessionId": session})
            await b.result("_sandboxagent/session/pending", {"sessionId": session})
            await b.result("session/list")
            await a.prompt(session, "hello")
            assert await everything(b, events) == []

    run(main())


@pytest.mark.requirement("5.attaching")
def test_attaching_reaches_no_agent_and_gives_the_session_and_its_position(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            await a.prompt(session, "before")
            answer = await b.result(ATTACH, {"sessionId": session})
            assert answer["session"]["sessionId"] == session
            assert answer["pending"] == []
            await a.prompt(session, "after")
            seen = await everything(b, events)
            assert texts(seen) == ["after"]
            assert all(event.id > answer["position"] for event in seen)
            past = (await b.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
            assert "before" in json.dumps([event for event in past if event["id"] <= answer["position"]])
            assert not any(ATTACH in line for line in await received(a))

    run(main())


@pytest.mark.requirement("5.detaching")
def test_after_detaching_nothing_more_arrives_until_attached_again(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b:
            session = await a.new_session()
            for text in ("one", "two", "three"):
                await b.result(DETACH if text == "two" else ATTACH, {"sessionId": session})
                await a.prompt(session, text)
            assert await b.result(DETACH, {"sessionId": session}) == await b.result(DETACH, {"sessionId": session})
            # A stream from the beginning shows the same as one that was open all the time.
            async with b.stream() as events:
                assert texts(await everything(b, events)) == ["one", "three"]

    run(main())


@pytest.mark.requirement("5.detaching")
def test_closing_a_connection_ends_neither_the_turn_nor_the_session(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["echo_answer"])
            assert (await a.close()).status_code == 204
            await b.result(ATTACH, {"sessionId": session})
            asked = await events.method(PERMISSION)
            assert (await b.answer(asked.data["id"], ALLOW)).status_code == 202
            assert answer_line(texts(await events.turn_ended())[0])["result"] == ALLOW
            assert (await b.prompt(session, "still here"))["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("5.detaching")
def test_a_collected_connection_is_detached_and_its_session_stays() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            async with asyncio.timeout(BOUND):
                # What is no envelope is no use of the connection.
                while (await a.post("not an envelope")).status_code != 404:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.05)
            await ask_outright(b, session, ["say", "still here"], permission(), ["wait_answer"])
            asked = await events.method(PERMISSION)
            assert (await b.answer(asked.data["id"], ALLOW)).status_code == 202
            await events.turn_ended()
            assert texts(events.seen) == ["still here"]

    with Server("--no-persist", "--connection-ttl", "2s") as server:
        run(main(server))


# Prompts of others


@pytest.mark.requirement("5.prompts-of-others", "12.sender-not-echoed")
@pytest.mark.parametrize("agent", ["scripted", "isolated"])
def test_a_prompt_arrives_at_the_others_before_its_answer_and_not_at_its_sender(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session(agent=agent)
            await b.result(ATTACH, {"sessionId": session})
            for text in ("first", "second"):
                await a.prompt(session, text)
            assert conversation(await everything(a, seen_a)) == [("agent", "first"), ("agent", "second")]
            both = [(who, text) for text in ("first", "second") for who in ("user", "agent")]
            assert conversation(await everything(b, seen_b)) == both
            # So it does for a stream that begins anew.
            async with b.stream() as again:
                assert conversation(await everything(b, again)) == both
            async with a.stream() as again:
                assert conversation(await everything(a, again)) == [("agent", "first"), ("agent", "second")]

    run(main())


@pytest.mark.requirement("5.prompts-of-others")
@pytest.mark.parametrize("agent", ["scripted", "isolated"])
def test_a_prompt_that_the_agent_says_nothing_to_arrives_at_the_others(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session(agent=agent)
            await b.result(ATTACH, {"sessionId": session})
            await a.prompt(session, [])
            seen = await everything(b, events)
            assert conversation(seen) == [("user", "[]")]
            assert methods(seen) == [TURN, "session/update", TURN]

    run(main())


@pytest.mark.requirement("5.prompts-of-others")
def test_every_block_of_a_prompt_arrives_as_it_was_sent(server: Server) -> None:
    blocks: list[Json] = [
        {"type": "text", "text": "look", "_meta": {"n": 1.0}},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "uri": "file:///x", "name": "x"},
    ]

    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await a.result("session/prompt", {"sessionId": session, "prompt": blocks})
            seen = [event.update for event in await everything(b, events) if event.update]
            assert [update["content"] for update in seen if update["sessionUpdate"] == USER] == blocks

    run(main())


@pytest.mark.requirement("5.prompts-of-others", "12.sender-not-echoed")
def test_an_agent_that_echoes_prompts_is_not_doubled(server: Server) -> None:
    echo = {"sessionUpdate": USER, "content": {"type": "text", "text": "what you said"}}
    commands = {"sessionUpdate": "available_commands_update", "availableCommands": []}

    async def main() -> None:
        async with Client(server) as a, Client(server) as b:
            session = await a.new_session(agent="isolated")
            await b.result(ATTACH, {"sessionId": session})
            for _ in range(2):
                await a.prompt(session, [["update", commands], ["update", echo], ["say", "x"]])
            for client in (a, b):
                async with client.stream() as events:
                    said = [line for line in conversation(await everything(client, events)) if line[1]]
                    assert said == [("user", "what you said"), ("agent", "x")] * 2
            async with Client(server) as c, c.stream() as events:
                await c.result("session/load", loading(server, session))
                said = [line for line in conversation(await everything(c, events)) if line[1]]
                assert said == [("user", "what you said"), ("agent", "x")] * 2

    run(main())


# Loading and resuming


@pytest.mark.requirement("5.load-live")
def test_loading_a_live_session_replays_the_log_to_the_loader_alone(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            for text in ("first", "second"):
                await a.prompt(session, text)
            before = await everything(a, seen_a)
            answer = await b.result("session/load", loading(server, session))
            assert answer["modes"]["currentModeId"] == "default"
            replayed = await everything(b, seen_b)
            both = [(who, text) for text in ("first", "second") for who in ("user", "agent")]
            assert conversation(replayed) == both
            assert {event.data["params"]["sessionId"] for event in replayed} == {session}
            assert min(event.id for event in replayed) > max(event.id for event in before), "new events with fresh ids"
            assert await everything(a, seen_a) == before
            assert not any("session/load" in line and session in line for line in await received(a))

    run(main())


@pytest.mark.requirement("5.load-live")
def test_loading_again_replays_again_also_for_the_one_who_prompted(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            await a.prompt(session, "hello")
            count = len(await everything(a, events))
            await a.result("session/load", loading(server, session))
            assert conversation((await everything(a, events))[count:]) == [("user", "hello"), ("agent", "hello")]

    run(main())


@pytest.mark.requirement("5.load-live")
@pytest.mark.parametrize("agent", ["scripted", "isolated"])
def test_loading_in_the_middle_of_a_turn_shows_everything_once(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session(agent=agent)
            if agent == "scripted":
                await a.prompt(session, "earlier")
            prompt = [["ask", "x/gate"], ["wait_answer"], ["say", "later"]]
            await ask_outright(a, session, *prompt)
            gate = await seen_a.method("x/gate")
            await b.result("session/load", loading(server, session))
            assert (await a.answer(gate.data["id"], {})).status_code == 202
            await seen_b.turn_ended()
            said = conversation(seen_b.seen)
            assert said.count(("user", json.dumps(prompt))) == 1
            assert said.count(("agent", "later")) == 1

    run(main())


@pytest.mark.requirement("5.load-live")
def test_loading_before_the_agent_has_said_anything_shows_the_prompt_once(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session(agent="isolated")
            prompt = [["wait_cancel"], ["say", "later"]]
            await ask_outright(a, session, *prompt)
            await b.result("session/load", loading(server, session))
            await a.notify("session/cancel", {"sessionId": session})
            await events.turn_ended()
            assert conversation(events.seen) == [("user", json.dumps(prompt)), ("agent", "later")]

    run(main())


@pytest.mark.requirement("5.load-live")
def test_loading_while_a_prompt_waits_shows_it_once(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as own, b.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, ["ask", "x/gate"], ["wait_answer"])
            gate = await own.method("x/gate")
            await ask_outright(a, session, ["say", "my turn"])
            await b.result("session/load", loading(server, session))
            assert (await a.answer(gate.data["id"], {})).status_code == 202
            await events.until(lambda event: event.text == "my turn")
            assert conversation(events.seen).count(("user", json.dumps([["say", "my turn"]]))) == 1

    run(main())


@pytest.mark.requirement("5.load-live")
def test_loading_while_the_agent_talks_misses_nothing_and_repeats_nothing(server: Server) -> None:
    past, meanwhile = 3000, 300

    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            # A long past, so that reading it takes a while, and an agent that talks on and on in the meantime.
            await a.prompt(session, [["flood", past, 200]])
            talk = [step for index in range(meanwhile) for step in (["say", f"now {index}"], ["sleep", 0.001])]
            await ask_outright(a, session, ["say", "go"], *talk, ["say", "done"])
            await seen_a.until(lambda event: event.text == "go")
            await b.result("session/load", loading(server, session))
            await seen_b.until(lambda event: event.text == "done")
            said = [" ".join(text.split()[:2]).rstrip("x ") for text in texts(seen_b.seen)]
            assert said[:past] == [str(index) for index in range(past)]
            assert said[past:] == ["go", *(f"now {index}" for index in range(meanwhile)), "done"]

    run(main())


@pytest.mark.requirement("5.resume-live")
def test_resuming_a_live_session_just_attaches(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            await a.prompt(session, "before")
            assert "modes" in await b.result("session/resume", loading(server, session))
            await a.prompt(session, "after")
            assert conversation(await everything(b, events)) == [("user", "after"), ("agent", "after")]
            assert not any("session/resume" in line and session in line for line in await received(a))

    run(main())


@pytest.mark.requirement("5.load-forwarded")
@pytest.mark.parametrize("isolation", ["agent", "session"])
def test_two_loads_at_once_of_a_session_without_a_process_take_it_up_once(tmp_path: Path, isolation: str) -> None:
    async def main(server: Server) -> None:
        async with Client(server, "lasting") as a, Client(server, "lasting") as b:
            session = await a.new_session()
            await a.prompt(session, "hello")
            assert "error" in await a.prompt(session, [["exit", 0]])
            before = [text_of(event["envelope"]) for event in await events_of(a, session)]
            loads = [one.call("session/load", loading(server, session)) for one in (a, b, a, b)]
            for answer in await asyncio.gather(*loads):
                assert "result" in answer, answer
            after = [text_of(event["envelope"]) for event in await events_of(a, session)]
            assert [text for text in after if text] == [text for text in before if text] == ["hello"]
            assert (await a.prompt(session, "again"))["result"] == {"stopReason": "end_turn"}
            # One for the handshake and, when it is not shared, one for the session.
            pids = [
                fact["started"] for line in state.read_text().splitlines() if "started" in (fact := json.loads(line))
            ]
            eventually(lambda: sum(map(alive, pids)) == (1 if isolation == "agent" else 2), "the end of the others")

    state = tmp_path / "state"
    agents = {"lasting": scripted("--state", str(state), isolation=isolation)}
    with Server("--no-persist", agents=agents) as server:
        run(main(server))


@pytest.mark.requirement("5.load-forwarded")
def test_two_loads_at_once_of_an_unknown_session_make_one_session() -> None:
    async def main(server: Server) -> None:
        async with Client(server, "own") as a, Client(server, "own") as b:
            loads = [one.call("session/load", loading(server, "stranger")) for one in (a, b)]
            for answer in await asyncio.gather(*loads):
                assert "result" in answer, answer
            listed = (await a.result("session/list"))["sessions"]
            assert [session["sessionId"] for session in listed] == ["stranger"]

    with Server("--no-persist", agents={"own": scripted(isolation="session")}) as server:
        run(main(server))


@pytest.mark.requirement("5.load-forwarded")
def test_while_the_agent_loads_a_session_its_updates_go_to_the_loader_alone(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            await a.result("session/close", {"sessionId": session})
            before = await everything(a, seen_a)
            await b.result("session/load", loading(server, session))
            assert conversation(await everything(b, seen_b)) == [
                ("user", "an old question"),
                ("agent", "an old answer"),
            ]
            assert await everything(a, seen_a) == before
            await b.prompt(session, "on with it")
            assert conversation((await everything(a, seen_a))[len(before) :]) == [
                ("user", "on with it"),
                ("agent", "on with it"),
            ]

    run(main())


# Two agents that choose the same session id


@pytest.mark.requirement("12.same-session-id")
def test_sessions_of_two_agents_with_the_same_id_have_different_public_ids(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "twin") as a, a.stream() as events:
            sessions = {agent: await a.new_session(agent=agent) for agent in ("twin", "twin2")}
            assert len(set(sessions.values())) == 2
            for agent, session in sessions.items():
                await a.prompt(session, f"to {agent}")
                own = [json.loads(line) for line in await received(a, agent) if f"to {agent}" in line]
                assert [line["params"]["sessionId"] for line in own] == ["same"]
            updates = {
                event.text: event.data["params"]["sessionId"] for event in await everything(a, events) if event.text
            }
            assert updates == {f"to {agent}": session for agent, session in sessions.items()}

    run(main())


@pytest.mark.requirement("12.same-session-id")
def test_requests_and_other_notifications_of_such_sessions_are_translated_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "twin") as a, a.stream() as events:
            for agent in ("twin", "twin2"):
                session = await a.new_session(agent=agent)
                note = {"sessionId": "same", "n": 1.0}
                steps: list[list[Any]] = [["notify", "x/note", note], permission(), ["echo_answer"]]
                await ask_outright(a, session, *steps)
                assert (await events.method("x/note")).data["params"] == {**note, "sessionId": session}
                asked = await events.method(PERMISSION)
                assert asked.data["params"]["sessionId"] == session
                pending = (await a.result("_sandboxagent/session/pending", {"sessionId": session}))["pending"]
                assert [one["envelope"] for one in pending] == [asked.data]
                assert [one["sessionId"] for one in pending] == [session]
                assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
                assert answer_line(texts(await events.turn_ended())[0])["result"] == ALLOW

    run(main())


@pytest.mark.requirement("12.same-session-id")
def test_the_public_id_is_translated_for_every_method(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "twin") as a, Client(server) as b, a.stream() as events, b.stream() as others:
            for agent in ("twin", "twin2"):
                session = await a.new_session(agent=agent)
                await b.result(ATTACH, {"sessionId": session})
                line = (await a.result("x/echo", {"sessionId": session, "x": 1.0}))["line"]
                assert json.loads(line)["params"] == {"sessionId": "same", "x": 1.0}
                await a.notify("x/notified", {"sessionId": session, "by": session})
                notified = [json.loads(line) for line in await received(a, agent) if "x/notified" in line]
                assert notified[-1]["params"] == {"sessionId": "same", "by": session}
                await a.result("session/set_mode", {"sessionId": session, "modeId": "plan"})
                changed = await events.until(lambda event: event.update.get("currentModeId") == "plan")
                assert changed[-1].data["params"]["sessionId"] == session
                await ask_outright(a, session, ["say", "waiting"], ["wait_cancel"])
                await others.until(lambda event: event.text == "waiting")
                await b.notify("session/cancel", {"sessionId": session})
                assert (await others.turn_ended())[-1].data["params"]["sessionId"] == session
                await b.result("session/load", loading(server, session))
                replayed = await others.until(lambda event: event.text == "waiting")
                assert {event.data["params"]["sessionId"] for event in replayed} == {session}
                await a.result("session/close", {"sessionId": session})
                await b.result("session/load", loading(server, session))
                old = await others.until(lambda event: event.text == "an old answer")
                assert old[-1].data["params"]["sessionId"] == session
                assert CANCEL not in methods(old)

    run(main())
