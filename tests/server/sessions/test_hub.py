"""What comes at an awkward moment, between clients, sessions and a fake of an agent process. Contract, section 5."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxagent.protocol.envelope import META, parse
from sandboxagent.protocol.errors import AgentNotReading, AlreadyAnswered, LogUnavailable, UnknownSession
from sandboxagent.server.agents.options import MODE
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import session_channel
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event
from tests.support.shapes import SHAPES
from tests.support.world import Json, World, envelope, run, world

ALLOW: Json = {"outcome": {"outcome": "selected", "optionId": "yes"}}
REJECT: Json = {"outcome": {"outcome": "selected", "optionId": "no"}}
CANCELLED: Json = {"outcome": {"outcome": "cancelled"}}


@pytest.mark.requirement("5.bad-agents-stall")
def test_a_prompt_that_could_not_be_sent_does_not_swallow_what_the_agent_asks_next() -> None:
    async def main() -> None:
        async with world() as own:
            own.process.reads = False
            answer = await own.request("session/prompt", {"sessionId": "s", "prompt": []})
            assert parse(answer.line).error()["code"] == AgentNotReading.rpc_code
            own.process.reads = True
            own.asks(5)
            assert [one.agent_id for one in own.hub.pending.of_session(own.session)] == [b"5"]

    run(main())


@pytest.mark.requirement("5.cancel-answers-pending")
def test_cancel_while_an_allowing_answer_is_written_to_disk_wins() -> None:
    async def main() -> None:
        async with world() as own:
            asked = own.asks(7)
            waiting: list[Callable[[Exception | None], None]] = []
            own.log.when_committed = lambda _, callback: waiting.append(callback)  # type: ignore[method-assign]
            answer = own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            with pytest.raises(AlreadyAnswered):
                await own.requests.answer(own.client, envelope(id=asked, result=CANCELLED))
            repeat = own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            cancel = envelope(method="session/cancel", params={"sessionId": "s"})
            await own.requests.notify(own.client, cancel)
            for callback in waiting:
                callback(None)
            with pytest.raises(AlreadyAnswered) as refused:
                await answer
            assert refused.value.fields["outcome"] == "cancelled"
            with pytest.raises(AlreadyAnswered):
                await repeat
            answers = [one["result"] for one in own.process.sent if one.get("id") == 7]
            assert answers == [{"outcome": {"outcome": "cancelled"}}]
            assert own.hub.pending.of_session(own.session) == []

    run(main())


@pytest.mark.requirement("3.answer-changes-nothing")
def test_an_answer_that_changes_nothing_is_no_conflict() -> None:
    async def main() -> None:
        async with world() as own:
            asked = own.asks(7)
            await own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            await own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            await own.requests.answer(own.client, envelope(id=asked, error={"code": -32800, "message": "cancelled"}))
            for other in (CANCELLED, REJECT):
                with pytest.raises(AlreadyAnswered):
                    await own.requests.answer(own.client, envelope(id=asked, result=other))
            second = own.asks(8)
            await own.requests.notify(own.client, envelope(method="session/cancel", params={"sessionId": "s"}))
            await own.requests.answer(own.client, envelope(id=second, result=CANCELLED))
            for other in (ALLOW, REJECT):
                with pytest.raises(AlreadyAnswered):
                    await own.requests.answer(own.client, envelope(id=second, result=other))

    run(main())


@pytest.mark.requirement("3.answer-changes-nothing")
def test_the_same_answer_of_another_client_is_a_conflict() -> None:
    async def main() -> None:
        async with world() as own:
            other = own.hub.connections.open("a", {})
            own.hub.attach(other, own.session)
            asked = own.asks(7)
            await own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            with pytest.raises(AlreadyAnswered):
                await own.requests.answer(other, envelope(id=asked, result=ALLOW))

    run(main())


@pytest.mark.requirement("5.first-answer-wins")
def test_an_answer_that_could_not_be_kept_may_be_given_again() -> None:
    async def main() -> None:
        async with world() as own:
            asked = own.asks(7)
            when_committed = own.log.when_committed
            full = LogUnavailable("disk full")
            own.log.when_committed = lambda _, callback: callback(full)  # type: ignore[method-assign]
            with pytest.raises(LogUnavailable, match="disk full"):
                await own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            assert own.process.sent == []
            own.log.when_committed = when_committed  # type: ignore[method-assign]
            await own.requests.answer(own.client, envelope(id=asked, result=ALLOW))
            assert [one["result"] for one in own.process.sent] == [ALLOW]

    run(main())


@pytest.mark.requirement("5.answer-unasked")
def test_what_belongs_to_the_call_of_a_live_connection_is_not_pending_for_another() -> None:
    async def main() -> None:
        async with world() as own:
            other = own.hub.connections.open("a")
            own.hub.attach(other, own.session)
            call = own.request("x/login", {"sessionId": "s"})
            await own.process.has_been_sent(1)
            own.asks(9, "elicitation/create", requestId=own.sent("x/login")["id"], message="Password?")

            assert len(own.listing.pending(own.client, [own.session])) == 1
            assert own.listing.pending(other, [own.session]) == []

            own.hub.close_connection(own.client, "gone")
            assert len(own.listing.pending(other, [own.session])) == 1, "now no other client can answer"
            own.says(id=own.sent("x/login")["id"], result={})
            await call

    run(main())


@pytest.mark.requirement("6.delete")
def test_a_setting_that_is_answered_after_a_delete_does_not_bring_the_session_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db") as own:
            setting = own.request("session/set_mode", {"sessionId": "s", "modeId": "plan"})
            await own.process.has_been_sent(1)
            deletion = own.request("session/delete", {"sessionId": "s"})
            await own.process.has_been_sent(2)
            own.says(id=own.sent("session/delete")["id"], result={})
            assert parse((await deletion).line).succeeded
            own.says(id=own.sent("session/set_mode")["id"], result={})
            assert parse((await setting).line).succeeded
            assert own.hub.find_session("s") is None
        database = Database(tmp_path / "log.db")
        again = Log(database, Limits())
        try:
            assert Hub(again).store.page(None, None, 10) == []
            assert await again.history("s", 0, again.position + 1, 10) == []
        finally:
            again.close()

    run(main())


@pytest.mark.requirement("5.held-updates")
@pytest.mark.parametrize(
    "answer", [{"error": {"code": -32050, "message": "no"}}, {"result": {}}], ids=["error", "no id"]
)
def test_messages_held_for_a_session_that_failed_to_open_are_released(answer: Json) -> None:
    async def main() -> None:
        async with world() as own:
            call = own.request("session/new", {"cwd": "/", "mcpServers": []})
            await own.process.has_been_sent(1)
            before = own.log.position
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "early"}}
            own.says(method="session/update", params={"sessionId": "unborn", "update": update})
            own.asks(77, sessionId="unborn", options=[])
            assert own.log.position == before, "held"
            assert len(own.process.sent) == 1
            own.says(id=own.sent("session/new")["id"], **answer)
            await call

            found = own.log.in_memory(own.client.channels(), before, own.log.limits.tail_bytes)
            assert found is not None
            shown, _ = found
            assert [json.loads(line)["params"]["update"] for chunk in shown for line in chunk.lines] == [update]
            (refusal,) = [one for one in own.process.sent if one.get("id") == 77]
            assert refusal["error"]["code"] == -32002

    run(main())


def updates_told(own: World) -> list[str]:
    chunks, _ = own.log.in_memory([session_channel("s")], 0, 1 << 20) or ([], True)
    return [json.loads(line)["params"]["update"]["sessionUpdate"] for chunk in chunks for line in chunk.lines]


@pytest.mark.requirement("6.change-told")
def test_an_agent_has_a_moment_to_tell_of_a_change_itself() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.mark_reported()
            task = own.request("session/set_mode", {"sessionId": "s", "modeId": "plan"})
            await own.process.has_been_sent(1)
            asked_at = own.hub.monotonic()
            own.says(id=own.sent("session/set_mode")["id"], result={})
            await task
            own.hub.report_changes(asked_at - 1)
            assert updates_told(own) == []
            own.says(
                method="session/update",
                params={"sessionId": "s", "update": {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}},
            )
            own.hub.report_changes(own.hub.monotonic())
            assert updates_told(own) == ["current_mode_update", "config_option_update"]
            own.hub.report_changes(own.hub.monotonic())
            assert len(updates_told(own)) == 2

    run(main())


@pytest.mark.requirement("6.change-told")
def test_nothing_is_reported_of_a_session_that_has_ended_or_is_gone() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.choose(MODE, "plan")
            own.hub.note_changed_offers(own.session)
            own.hub.move(own.session, Event.EXITED, termination={"reason": "error"})
            own.hub.report_changes(own.hub.monotonic())
            own.hub.note_changed_offers(own.session)
            own.hub.move(own.session, Event.DELETE)
            own.hub.report_changes(own.hub.monotonic())
            chunks, _ = own.log.in_memory([session_channel("s")], 0, 1 << 20) or ([], True)
            methods = [json.loads(line)["method"] for chunk in chunks for line in chunk.lines]
            assert "session/update" not in methods

    run(main())


@pytest.mark.requirement("6.set-any-way")
@pytest.mark.parametrize("result", [None, {}, {"_meta": {"x": 1}}])
def test_an_option_is_answered_with_all_options_whatever_its_agent_answers(result: object) -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("session/set_config_option", {"sessionId": "s", "configId": "mode", "value": "plan"})
            await own.process.has_been_sent(1)
            own.says(id=own.sent("session/set_mode")["id"], result=result)
            answer = parse((await task).line).result()
            assert [(one["id"], one["currentValue"]) for one in answer.pop("configOptions")] == [("mode", "plan")]  # type: ignore[attr-defined]
            assert answer == (result or {})

    run(main())


@pytest.mark.requirement("6.set-any-way")
def test_an_agent_that_answers_an_option_with_nothing_is_taken_at_its_word() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.facts.offers = SHAPES["claude"].offers
            task = own.request("session/set_config_option", {"sessionId": "s", "configId": "mode", "value": "plan"})
            await own.process.has_been_sent(1)
            own.says(id=own.sent("session/set_config_option")["id"], result={})
            await task
            assert own.session.mode == "plan"
            assert own.session.facts.offers["modes"]["currentModeId"] == "plan"  # type: ignore[index]

    run(main())


def attaching(path: str) -> Json:
    """A prompt that has to wait for a file."""
    return {"sessionId": "s", "prompt": [], "_meta": {META: {"attachments": [{"path": path}]}}}


@pytest.mark.requirement("8.order")
def test_a_prompt_does_not_overtake_one_that_waits_for_its_files() -> None:
    async def main() -> None:
        async with world() as own:
            first = own.request("session/prompt", attaching("/"), "first")
            second = own.request("session/prompt", {"sessionId": "s", "prompt": ["second"]}, "second")
            await own.process.has_been_sent(1)
            assert own.sent("session/prompt")["params"]["prompt"][0]["uri"] == "file:///"
            own.says(id=own.sent("session/prompt")["id"], result={"stopReason": "end_turn"})
            await first
            await own.process.has_been_sent(2)
            assert own.sent("session/prompt")["params"]["prompt"] == ["second"]
            own.says(id=own.sent("session/prompt")["id"], result={"stopReason": "end_turn"})
            await second

    run(main())


@pytest.mark.requirement("8.gone")
def test_a_prompt_whose_session_goes_while_its_files_are_looked_at_is_not_sent() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = own.request("session/prompt", attaching("/"))
            await asyncio.sleep(0)
            own.hub.move(own.session, Event.DELETE)
            answer = await prompt
            assert parse(answer.line).error()["code"] == UnknownSession.rpc_code
            assert own.process.sent == []

    run(main())
