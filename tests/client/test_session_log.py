"""A session's log as the stream would have had it: others' prompts where they belong, once; a gap once."""

from collections.abc import Callable
from typing import Any

import pytest

from sandboxagent import Gap, SessionItem, TurnEnded, TurnStarted, text_of
from sandboxagent.client.incoming import LogReader, Notification
from sandboxagent.client.session import Updates
from sandboxagent.core.cursor import Cursor
from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import UserMessageChunk
from tests.support.client import run

Json = dict[str, Any]
SESSION = "s-1"


def heard(id: int, envelope: Json) -> Notification:
    return Notification(id, envelope["method"], envelope["params"], 10)


def notification(method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": {"sessionId": SESSION, **params}}


def prompt(text: str, prompt_id: str | None = None) -> Json:
    meta = {} if prompt_id is None else {"_meta": {"sandboxagent.dev": {"promptId": prompt_id}}}
    content = [{"type": "text", "text": text}]
    return {**notification("session/prompt", prompt=content, **meta), "id": 7}


def turn(state: str, at: int, prompt_id: str | None = None) -> Json:
    named = {} if prompt_id is None else {"promptId": prompt_id}
    return notification("_sandboxagent/session/turn", turnId=f"turn-{at}", state=state, **named)


def says(text: str, kind: str = "agent_message_chunk") -> Json:
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    return notification("session/update", update=update)


class Log:
    """A session's log, whose pages the server would give."""

    def __init__(self, *events: tuple[int, Json]) -> None:
        self.events = list(events)
        self.gap: Json | None = None
        self.failures = 0
        self.calls = 0

    async def call(self, method: str, params: Json) -> Json:
        assert method == methods.EVENTS
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")
        before = params.get("before") or 10**9
        page = [
            {"id": id, "at": "now", "direction": direction(envelope), "envelope": envelope}
            for id, envelope in self.events
            if params["after"] < id < before
        ]
        gap = self.gap if self.gap and self.gap["resumesAt"] > params["after"] + 1 else None
        return {"events": page, "next": None} | ({"gap": gap} if gap else {})

    def updates(
        self, own: Callable[[str], bool] = lambda name: False, after: int = 0
    ) -> tuple[Updates, Cursor[Notification]]:
        past = LogReader(self.call, SESSION, own)
        feed = Cursor(past, after, 10**6, is_live=True)
        return Updates(feed, past), feed


def direction(envelope: Json) -> str:
    return "fromClient" if "id" in envelope else "fromAgent"


def shown(items: list[SessionItem]) -> list[str]:
    """Items in a word each."""
    words = {TurnStarted: "started", TurnEnded: "ended", Gap: "gap"}
    return [words.get(type(item)) or _text(item) for item in items]


def _text(item: object) -> str:
    return f"prompt {item.content.text}" if isinstance(item, UserMessageChunk) else text_of(item)


async def rest(updates: Updates, feed: Cursor[Notification]) -> list[str]:
    feed.close()
    return shown([item async for item in updates])


def test_the_prompt_of_another_stands_before_what_its_agent_says() -> None:
    async def main() -> None:
        log = Log((4, prompt("hi")), (5, turn("started", 4)), (6, says("yes")), (7, turn("ended", 4)))
        updates, feed = log.updates()
        feed.fall_behind()
        assert await rest(updates, feed) == ["started", "prompt hi", "yes", "ended"]
        assert log.calls == 1, "the page had it"

    run(main())


def test_prompt_stands_before_decisions_of_its_turn() -> None:
    async def main() -> None:
        decided = notification("_sandboxagent/session/decision", kind="permission", outcome="answered", by={})
        log = Log((4, prompt("hi")), (5, turn("started", 4)), (6, decided), (7, says("yes")))
        updates, feed = log.updates()
        feed.fall_behind()
        assert await rest(updates, feed) == ["started", "prompt hi", "", "yes"]

    run(main())


def test_prompt_is_shown_when_the_log_ends_at_the_start_of_its_turn() -> None:
    """What the stream showed of it was let go, and the agent thinks."""

    async def main() -> None:
        log = Log((4, prompt("hi")), (5, turn("started", 4)))
        updates, feed = log.updates()
        feed.fall_behind()
        assert shown([await anext(updates)]) == ["started"]
        feed.push(heard(7, says("yes")))
        assert await rest(updates, feed) == ["prompt hi", "yes"]

    run(main())


def test_prompt_is_shown_when_the_reader_falls_behind_after_the_start() -> None:
    async def main() -> None:
        log = Log((4, prompt("hi")), (5, turn("started", 4)), (7, says("yes")))
        updates, feed = log.updates()
        feed.push(heard(5, turn("started", 4)))
        feed.fall_behind()
        assert await rest(updates, feed) == ["started", "prompt hi", "yes"]

    run(main())


def test_prompt_in_log_and_stream_is_shown_once() -> None:
    async def main() -> None:
        log = Log((4, prompt("hi")), (5, turn("started", 4)))
        updates, feed = log.updates()
        feed.fall_behind()
        assert shown([await anext(updates)]) == ["started"]
        feed.push(heard(6, says("hi", "user_message_chunk")))
        feed.push(heard(7, says("yes")))
        assert shown([await anext(updates), await anext(updates)]) == ["prompt hi", "yes"]
        log.events.append((8, says("more")))
        feed.fall_behind()
        assert await rest(updates, feed) == ["more"]

    run(main())


@pytest.mark.parametrize("kind", ["available_commands_update", "current_mode_update", "usage_update"])
def test_agents_echo_replaces_the_prompt_even_after_unrelated_updates(kind: str) -> None:
    async def main() -> None:
        incidental = notification("session/update", update={"sessionUpdate": kind})
        echo = says("hi", "user_message_chunk")
        log = Log((4, prompt("hi")), (5, turn("started", 4)), (6, incidental), (7, echo), (8, says("yes")))
        updates, feed = log.updates()
        feed.fall_behind()
        assert await rest(updates, feed) == ["started", "", "prompt hi", "yes"]

    run(main())


def test_a_turn_in_which_nothing_was_said_shows_its_prompt_before_it_ends() -> None:
    async def main() -> None:
        taken_back = turn("ended", 6)
        log = Log((4, prompt("hi")), (5, turn("started", 4)), (7, taken_back), (8, turn("ended", 4)))
        updates, feed = log.updates()
        feed.fall_behind()
        assert await rest(updates, feed) == ["started", "ended", "prompt hi", "ended"]

    run(main())


def test_ones_own_prompts_are_not_shown() -> None:
    async def main() -> None:
        log = Log((4, prompt("hi", "mine")), (5, turn("started", 4, "mine")), (6, says("yes")))
        updates, feed = log.updates(own="mine".__eq__)
        feed.fall_behind()
        assert await rest(updates, feed) == ["started", "yes"]
        assert log.calls == 1

    run(main())


def test_a_prompt_that_cannot_be_read_is_read_again_and_nothing_is_lost() -> None:
    async def main() -> None:
        log = Log((4, prompt("hi")), (5, turn("started", 4)), (7, says("yes")))
        updates, feed = log.updates()
        feed.push(heard(5, turn("started", 4)))
        feed.push(heard(7, says("yes")))
        assert shown([await anext(updates)]) == ["started"]
        log.failures = 1
        with pytest.raises(ConnectionError):
            await anext(updates)
        assert await rest(updates, feed) == ["prompt hi", "yes"]

    run(main())


def test_a_gap_comes_once_also_when_nothing_comes_after_it() -> None:
    async def main() -> None:
        log = Log()
        log.gap = {"after": 3, "resumesAt": 50}
        updates, feed = log.updates(after=3)
        feed.fall_behind()
        assert shown([await anext(updates)]) == ["gap"]
        feed.fall_behind()
        log.events.append((50, says("on")))
        assert await rest(updates, feed) == ["on"]

    run(main())
