"""What is shown of what an agent asks, and what a typed answer means. The dialogs are in test_run_on_a_terminal.py."""

from typing import Any

import pytest

from sandboxagent import PermissionRequest
from sandboxagent.cli.chat.blocks import plain
from sandboxagent.cli.chat.render import Marks, Showing
from sandboxagent.cli.chat.requests import chosen, describe_request
from sandboxagent.protocol.acp import RequestPermissionRequest
from sandboxagent.protocol.decode import read


def shown(**call: Any) -> list[str]:
    facts = {"sessionId": "s", "toolCall": {"toolCallId": "1", **call}, "options": []}
    asked = read(facts, RequestPermissionRequest)
    request = PermissionRequest("0", "s", asked.tool_call, asked.options)
    return [plain(line) for line in describe_request(request, Showing(Marks(), cwd="/srv/app"))]


@pytest.mark.parametrize(
    ("typed", "several", "expected"),
    [
        ("2", False, ["b"]),
        ("my own words", False, ["my own words"]),
        ("1,2", False, ["1,2"]),
        ("2, 1,2", True, ["b", "a"]),
        ("a, or b", True, ["a, or b"]),
        ("3", False, None),
        ("0", False, None),
        ("1,9", True, None),
        ("", True, []),
    ],
)
def test_a_typed_answer_is_numbers_or_a_text(typed: str, several: bool, expected: list[str] | None) -> None:
    assert chosen(typed, ["a", "b"], several=several) == expected


def test_where_there_is_nothing_to_choose_from_a_number_is_a_text() -> None:
    assert chosen("2", [], several=False) == ["2"]


def test_a_command_is_shown_as_it_is_to_be_run() -> None:
    assert shown(rawInput={"command": "make\ntest"}) == ["  $ make", "    test"]
    assert shown(rawInput={"command": ["git", "push"], "cwd": "/srv/app"}) == ["  $ git push"]
    assert shown(rawInput={"command": "rm -r *", "cwd": "/"}) == ["  $ rm -r *", "  in /"]
    assert shown(rawInput={"cmd": "\x1b[8mhidden"}) == ["  $ \\x1b[8mhidden"]


def test_a_change_is_shown_line_by_line_with_its_file() -> None:
    new = {"type": "diff", "path": "/srv/app/new.txt", "newText": "hello\n"}
    old = {"type": "diff", "path": "/elsewhere/old.txt", "oldText": "a\n", "newText": "b\n"}

    assert shown(content=[new, old]) == [
        "  new.txt (new file)",
        "  +hello",
        "  /elsewhere/old.txt",
        "  -a",
        "  +b",
    ]


def test_anything_else_is_shown_as_the_agent_has_it() -> None:
    assert shown(rawInput={"url": "https://example.com"}) == ["  {", '    "url": "https://example.com"', "  }"]
    assert shown(content=[{"type": "content", "content": {"type": "text", "text": "why\nnot"}}]) == ["  why", "  not"]
    assert shown() == []
