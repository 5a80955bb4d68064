"""The rule that nearly allows a request, and the reason why it does not."""

from posixpath import normpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.permissions.nearest import find_glued_stars, find_nearest
from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import Policy, read_rules

RULES = [
    {"command": "git push", "action": "reject"},
    {"command": "git status*", "action": "allow"},
    {"command": "npm test", "action": "allow"},
    {"command": "git log *", "action": "allow"},
    {"command": "make", "cwd": "/srv/tools", "action": "allow"},
    {"kind": "edit", "path": "src/*", "agent": "claude", "action": "allow"},
    {"kind": "read", "path": "docs", "action": "allow"},
    {"kind": "read", "path": "notes.txt", "action": "allow"},
    {"tool": "lint", "cwd": "/srv/tools", "action": "allow"},
]


def policy(rules: list[Any]) -> Policy:
    return Policy(read_rules(rules, "server"), "/home/me", normpath)


def asked(agent: str | None = "claude", **call: Any) -> Asked:
    return Asked({"toolCall": {"toolCallId": "1", **call}}, agent, "/work")


def command(text: str) -> Asked:
    return asked(kind="execute", rawInput={"command": text})


@pytest.mark.parametrize(
    ("request_", "number", "words"),
    [
        (command("git status --short"), 2, ["part of its last word", "`git status *`"]),
        (command("npm test --watch"), 3, ["exactly `npm test`", "`npm test *`"]),
        (command("npm test > log"), 3, ["plain words only"]),
        (command("git log --output=x"), 4, ["--output"]),
        (command("git log -- ../x"), 4, ["../x", "lead out"]),
        (command("make"), 5, ["outside the directories"]),
        (asked(name="Lint", rawInput={}), 9, ["another folder"]),
        (asked(kind="edit", rawInput={"path": "src/a/b.py"}), 6, ["within one folder", "`src/**`"]),
        (asked("codex", kind="edit", rawInput={"path": "src/b.py"}), 6, ["`claude`", "`codex`"]),
        (asked(None, kind="edit", rawInput={"path": "src/b.py"}), 6, ["`claude`", "none"]),
        (asked(kind="read", rawInput={"path": "docs/a.md"}), 7, ["folder itself", "`docs/**`"]),
        (asked(kind="read", rawInput={"path": "/srv/notes.txt"}), 8, ["beneath the session", "`**/notes.txt`"]),
    ],
)
def test_nearest_rule_is_named_with_the_reason(request_: Asked, number: int, words: list[str]) -> None:
    (miss,) = find_nearest(policy(RULES), request_)

    assert miss.rule.number == number
    assert all(word in miss.why for word in words), miss.why


@pytest.mark.parametrize(
    "request_",
    [
        command("git status"),
        command("ls"),
        command("gitstatus --short"),
        asked(kind="edit", rawInput={"path": "lib/a"}),
        asked(),
    ],
)
def test_allowed_and_distant_requests_have_no_nearest_rule(request_: Asked) -> None:
    assert find_nearest(policy(RULES), request_) == ()


def test_each_part_of_a_command_has_its_own_nearest_rule() -> None:
    found = find_nearest(policy(RULES), command("git status --short; ls; npm test x"))

    assert [(miss.rule.number, miss.part) for miss in found] == [(2, "git status --short"), (3, "npm test x")]


def test_a_written_advice_allows_the_request() -> None:
    advised = [*RULES, {"command": "git status *", "action": "allow"}, {"path": "src/**", "action": "allow"}]

    assert policy(advised).decide(command("git status --short"), ()).action == "allow"
    assert policy(advised).decide(asked(kind="edit", rawInput={"path": "src/a/b.py"}), ()).action == "allow"


def test_a_request_that_takes_too_many_steps_has_no_nearest_rule() -> None:
    found = find_nearest(Policy(read_rules(RULES, "server"), "/home/me", normpath, 3), command("git status --short"))

    assert found == ()


@pytest.mark.parametrize(
    ("text", "glued"),
    [
        ("git status*", True),
        ("git*", True),
        ("git *", False),
        ("*", False),
        ("git status", False),
        ("/^git .*/", False),
    ],
)
def test_a_star_at_the_end_of_a_word_is_noted(text: str, glued: bool) -> None:
    (rule,) = read_rules([{"command": text, "action": "allow"}], "server")

    assert find_glued_stars(rule) == ([text] if glued else [])


def test_a_star_in_a_rule_that_rejects_is_not_noted() -> None:
    (rule,) = read_rules([{"command": "git push*", "action": "reject"}], "server")

    assert find_glued_stars(rule) == []


@given(st.text(alphabet=st.sampled_from('git statulogpmnx-*;|>"$ '), max_size=40))
def test_a_command_that_is_allowed_has_no_nearest_rule(text: str) -> None:
    if policy(RULES).decide(command(text), ()).action == "allow":
        assert find_nearest(policy(RULES), command(text)) == ()
