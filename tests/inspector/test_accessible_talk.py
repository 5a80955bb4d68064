"""Axe finds nothing wrong with a conversation, in light and in dark."""

from collections.abc import Generator

import pytest

from tests.inspector.browsing import Tab
from tests.inspector.talking import Conversation, conversation
from tests.support.running import Server


@pytest.fixture
def talk(tab: Tab, server: Server) -> Generator[Conversation]:
    with conversation(tab, server) as opened:
        yield opened


@pytest.fixture
def scripted_talk(tab: Tab, server: Server) -> Generator[Conversation]:
    with conversation(tab, server, "scripted") as opened:
        yield opened


def test_axe_finds_nothing_wrong_with_a_conversation(scripted_talk: Conversation) -> None:
    talk = scripted_talk
    table = "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\n- [x] done\n\n[a link](https://example.org)"
    diff = {"type": "diff", "path": "/a.py", "oldText": "a = 1\n", "newText": "a = 2\n"}
    talk.play(
        ["update", {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}],
        ["update", {"sessionUpdate": "plan", "entries": [{"content": "step", "priority": "low", "status": "pending"}]}],
        [
            "update",
            {
                "sessionUpdate": "tool_call",
                "toolCallId": "c1",
                "title": "Edit",
                "kind": "edit",
                "status": "completed",
                "content": [diff],
                "rawInput": {"a": 1},
            },
        ],
        ["say", table],
        [
            "update",
            {"sessionUpdate": "usage_update", "used": 10, "size": 100, "cost": {"amount": 0.5, "currency": "USD"}},
        ],
        ["respond_error", -32000, "no more credit"],
    )
    talk.shows(".failure")
    talk.tab.is_accessible()
    talk.tab.theme("dark")
    talk.tab.is_accessible()


@pytest.mark.parametrize("word", ["permission", "question", "form"])
def test_axe_finds_nothing_wrong_with_what_waits(talk: Conversation, word: str) -> None:
    talk.say(word)
    talk.shows(".request")

    talk.tab.is_accessible()
    talk.tab.theme("dark")
    talk.tab.is_accessible()
    talk.session.cancel()
