"""Sessions and turns in the bridge, on a hub in memory, from either side. The test plays the agent."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from sandboxagent.adapters.opencode import transcripts
from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.ids import is_session_id
from sandboxagent.adapters.opencode.objects import CommandBody, ModelRef, NewSession, SessionChange
from sandboxagent.adapters.opencode.session_ids import find_session, id_of
from tests.opencode.bridging import ALWAYS, OFFERED, answered, ask, bridged
from tests.support.world import run


def test_a_session_of_another_client_is_found_by_an_id_that_stays() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            assert is_session_id(id)
            assert find_session(own.hub, id, own.hub.clock()) is own.session
            assert [info.id for info in bridge.bridge_sessions.find_all(None)] == [id]
            for unknown in ("ses_", "s", "", "ses_000000000000aaaaaaaaaaaaaa", id[:-1] + "-"):
                with pytest.raises(BridgeError, match="Session not found"):
                    bridge.bridge_sessions.find(unknown)

    run(main())


def test_many_sessions_of_one_moment_are_told_apart() -> None:
    async def main() -> None:
        async with bridged() as (own, _):
            sessions = [own.add_session(f"s{number}") for number in range(40)]
            for session in sessions:
                session.facts.created_at = own.session.facts.created_at
            for session in sessions:
                assert find_session(own.hub, id_of(session), own.hub.clock()) is session

    run(main())


def test_what_another_client_says_comes_live_and_is_history() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            turn = own.prompt("good morning")
            await own.settled()
            own.agent.updates("and to you")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn

            assert (await listener.until("message.part.delta"))["delta"] == "and to you"
            await listener.until("session.idle")
            user, assistant = await bridge.messages(id_of(own.session))
            assert user["parts"][0]["text"] == "good morning"
            assert assistant["parts"][1]["text"] == "and to you"

    run(main())


def test_a_prompt_from_opencode_is_answered_when_its_turn_is_over_and_told() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            listener = bridge.listen()
            prompt = bridge.prompt(id, message_id="msg_mine")
            sent = await own.process.request("session/prompt")
            own.agent.updates("yes")
            await listener.until("message.part.delta")
            assert not prompt.done()
            own.says(id=sent["id"], result={"stopReason": "end_turn"})

            await listener.until("session.idle")
            reading = asyncio.create_task(listener.until("never"))
            reply = await prompt
            reading.cancel()
            assert reply["info"]["parentID"] == "msg_mine"
            assert [part["type"] for part in reply["parts"]] == ["step-start", "text", "step-finish"]
            with pytest.raises(BridgeError, match="already"):
                await bridge.prompt(id, message_id="msg_mine")

    run(main())


def test_a_draft_becomes_a_session_of_the_same_id_with_its_first_prompt() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            asked = NewSession(
                title="A title", permission=[{"permission": "question", "action": "deny", "pattern": "*"}]
            )
            made = bridge.bridge_sessions.create("/", asked)
            assert (await listener.until("session.created"))["info"]["id"] == made.id
            prompts = [bridge.prompt(made.id), bridge.prompt(made.id)]
            await own.agent.answers("session/new", {"sessionId": "new", **OFFERED})
            for _ in prompts:
                await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await asyncio.gather(*prompts)

            session = own.hub.session("new")
            assert session.facts.alias == made.id == id_of(session)
            assert bridge.bridge_sessions.describe(session).title == "A title"
            assert len([one for one in own.process.sent if one.get("method") == "session/new"]) == 1
            assert len(await bridge.messages(made.id)) == 4

    run(main())


def test_facts_that_acp_has_no_place_for_outlive_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with bridged(tmp_path / "log.db") as (own, bridge):
            id = id_of(own.session)
            change = msgspec.convert({"title": "Mine", "time": {"archived": 5}}, SessionChange)
            await bridge.bridge_sessions.change(id, change)
            turn = own.prompt("good morning")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            before = await bridge.messages(id)
        async with bridged(tmp_path / "log.db", session="t") as (own, bridge):
            info = bridge.bridge_sessions.describe(bridge.bridge_sessions.find(id))
            assert (info.title, info.time.archived) == ("Mine", 5)
            assert await bridge.messages(id) == before

    run(main())


def test_a_session_that_is_refused_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with bridged() as (_, bridge):
            before = len(bridge.bridge_sessions.find_all(None))
            for asked in (
                NewSession(parent_id="ses_000000000000aaaaaaaaaaaaaa"),
                NewSession(model=ModelRef(provider_id="nobody", id="x")),
            ):
                with pytest.raises(BridgeError):
                    bridge.bridge_sessions.create("/w", asked)

            assert len(bridge.bridge_sessions.find_all(None)) == before

    run(main())


def test_to_abort_cancels_the_turn_and_what_waits() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            await bridge.bridge_sessions.abort(id)
            prompts = [bridge.prompt(id), bridge.prompt(id)]
            sent = await own.process.request("session/prompt")
            await ask(own, ALWAYS)
            await own.settled()
            await bridge.bridge_sessions.abort(id)
            own.says(id=sent["id"], result={"stopReason": "cancelled"})

            replies = await asyncio.gather(*prompts)
            assert {reply["info"]["error"]["name"] for reply in replies} == {"MessageAbortedError"}
            assert answered(own) == {"outcome": {"outcome": "cancelled"}}

    run(main())


def test_an_agent_that_crashes_is_an_error_of_the_turn() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            prompt = bridge.prompt(id_of(own.session))
            await own.process.request("session/prompt")
            own.agent.crashes()

            assert (await prompt)["info"]["error"]["name"] == "UnknownError"

    run(main())


def test_a_transcript_that_was_dropped_for_want_of_memory_is_read_again() -> None:
    async def main() -> None:
        async with bridged(memory=16_000) as (own, bridge):
            sessions = [own.session, *(own.add_session(f"s{number}") for number in range(5))]
            for session in sessions:
                turn = own.prompt("x" * 600, session=session.id)
                await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
                await turn
            first = {session.id: await bridge.messages(id_of(session)) for session in sessions}

            assert sum(bridge.transcripts.find(session) is not None for session in sessions) < len(sessions)
            for session in sessions:
                assert await bridge.messages(id_of(session)) == first[session.id]

    run(main())


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("room", [1, 1 << 20])
def test_what_is_said_while_a_transcript_is_read_is_in_it_once_and_in_order(
    room: int, is_heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "MAX_WAITING_BYTES", room)
    monkeypatch.setattr(transcripts, "MAX_PAGE", 20)
    monkeypatch.setattr(transcripts, "MAX_BATCH_EVENTS", 2)

    async def main() -> None:
        async with bridged() as (own, bridge):
            turn = own.prompt()
            await own.settled()
            said = 0

            def says() -> None:
                nonlocal said
                own.agent.updates(f"{said} ")
                said += 1

            for _ in range(50):
                says()
            listener = bridge.listen() if is_heard else None
            reading = asyncio.create_task(bridge.messages(id_of(own.session)))
            while not reading.done():
                await asyncio.sleep(0)
                if said < 400:
                    says()
            assert said > 50
            _, assistant = await reading
            text = assistant["parts"][1]["text"]
            assert text == "".join(f"{number} " for number in range(len(text.split())))
            assert len(text.split()) >= 50
            says()
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            if listener is not None:
                await listener.until("session.idle")
            _, assistant = await bridge.messages(id_of(own.session))
            assert assistant["parts"][1]["text"] == "".join(f"{number} " for number in range(said))

    run(main())


def test_a_fork_begins_with_what_was_said_before_it() -> None:
    async def main() -> None:
        async with bridged(capabilities={"sessionCapabilities": {"fork": {}}}) as (own, bridge):
            id = id_of(own.session)
            turn = own.prompt("before")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            forking = asyncio.create_task(bridge.bridge_sessions.fork(id, None))
            await own.agent.answers("session/fork", {"sessionId": "fork"})
            fork = await forking
            turn = own.prompt("after")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn

            copied = await bridge.messages(fork.id)
            assert [message["parts"][0].get("text") for message in copied[::2]] == ["before"]
            assert {message["info"]["sessionID"] for message in copied} == {fork.id}
            assert len(await bridge.messages(id)) == 4

    run(main())


def test_the_session_used_last_comes_first() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            newer = own.add_session("newer")
            newer.facts.updated_at -= 10
            newer.facts.created_at += 1
            assert [info.id for info in bridge.bridge_sessions.find_all(None)] == [id_of(own.session), id_of(newer)]
            assert [info.id for info in bridge.bridge_sessions.find_all(None, limit=1)] == [id_of(own.session)]
            assert bridge.bridge_sessions.find_all("/elsewhere") == []
            assert bridge.bridge_sessions.find_all(None, search="no such title") == []

    run(main())


def test_compacting_is_the_agents_own_command_and_refused_where_it_has_none() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            with pytest.raises(BridgeError, match="no command to compact"):
                await bridge.bridge_sessions.compact(id)
            commands = [{"name": "compact", "description": "Shorten"}]
            update = {"sessionUpdate": "available_commands_update", "availableCommands": commands}
            own.says(method="session/update", params={"sessionId": "s", "update": update})
            compacting = asyncio.create_task(bridge.bridge_sessions.compact(id))
            sent = await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await bridge.bridge_sessions.finish(*await compacting)

            assert sent["params"]["prompt"] == [{"type": "text", "text": "/compact"}]
            assert [message["parts"][0]["type"] for message in await bridge.messages(id)] == [
                "compaction",
                "step-start",
            ]

    run(main())


def test_a_slash_command_is_a_prompt_of_the_agents() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            body = CommandBody(command="review", arguments="all of it", model="a/default")
            running = asyncio.create_task(bridge.bridge_sessions.command(id_of(own.session), body))
            sent = await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await bridge.bridge_sessions.finish(*await running)

            assert sent["params"]["prompt"] == [{"type": "text", "text": "/review all of it"}]
            executed = await listener.until("command.executed")
            assert (executed["name"], executed["arguments"]) == ("review", "all of it")

    run(main())


def test_another_mode_is_set_at_the_agent_and_an_unknown_one_changes_nothing() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            own.session.learn_offers(OFFERED)
            prompt = bridge.prompt(id_of(own.session), agent="plan")
            sent = await own.agent.answers("session/set_mode")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            assert sent["params"]["modeId"] == "plan"
            assert (await prompt)["info"]["agent"] == "plan"

            prompt = bridge.prompt(id_of(own.session), agent="build")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            assert (await prompt)["info"]["agent"] == "plan"

    run(main())


def test_a_prompt_for_which_there_is_no_room_is_refused() -> None:
    async def main() -> None:
        async with bridged(queue=1) as (own, bridge):
            id = id_of(own.session)
            prompts = [bridge.prompt(id), bridge.prompt(id)]
            await own.process.request("session/prompt")
            await own.settled()
            with pytest.raises(BridgeError) as refused:
                await bridge.prompt(id)
            assert refused.value.status == 400
            assert len(await bridge.messages(id)) == 3
            for prompt in prompts:
                prompt.cancel()

    run(main())


def test_many_updates_at_once_are_applied_in_several_turns_and_all_in_order() -> None:
    async def main() -> None:
        async with bridged(memory=1 << 26) as (own, bridge):
            bridge.listen()
            turn = own.prompt()
            await own.settled()
            await bridge.messages(id_of(own.session))
            # The diffs of calls cost most.
            diff = {"type": "diff", "path": "/a", "oldText": "a\n" * 100, "newText": "b\n" * 100}
            call = {"sessionUpdate": "tool_call", "title": "Edit", "kind": "edit", "content": [diff]}
            updates = [call | {"toolCallId": f"c{number}"} for number in range(300)]
            said = [{"method": "session/update", "params": {"sessionId": "s", "update": each}} for each in updates]
            blob = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in said)
            assert len(blob) > 2 * transcripts.MAX_BATCH_BYTES
            own.hears(blob)
            transcript = bridge.transcripts.find(own.session)
            assert transcript is not None
            applied = len(json.dumps(msgspec.to_builtins(transcript.messages())))
            _, assistant = await bridge.messages(id_of(own.session))
            assert applied < len(json.dumps(assistant)) / 2
            called = [part["callID"] for part in assistant["parts"] if part["type"] == "tool"]
            assert called == [each["toolCallId"] for each in updates]
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn

    run(main())
