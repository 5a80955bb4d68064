"""Rules as they are written: what is understood, and what is complained about."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent.permissions.rules import KEYS, MOST_RULES, Mistake, RuleTable, read_rules


@pytest.mark.parametrize(
    ("rule", "key", "words"),
    [
        ({"tool": "Bash"}, None, ["no action"]),
        ({"tool": "Bash", "action": "alow"}, "action", ["'alow'", '"allow"']),
        ({"action": "allow"}, None, ["no condition", 'tool = "*"']),
        ({"action": "allow", "name": "x", "reason": "y"}, None, ["no condition"]),
        ({"comand": "ls", "action": "allow"}, "comand", ["did you mean command?"]),
        ({"tool": 5, "action": "allow"}, "tool", ["tool", "got 5"]),
        ({"tool": "", "action": "allow"}, "tool", ["tool"]),
        ({"tool": [], "action": "allow"}, "tool", ["tool"]),
        ({"tool": "*", "action": "ask", "remember": True}, "remember", ["rules that allow"]),
        ({"kind": "exec", "action": "allow"}, "kind", ["did you mean execute?"]),
        ({"path": "a/../b", "action": "allow"}, "path", [".."]),
        ({"path": "~root/x", "action": "allow"}, "path", ["home"]),
        ({"command": "git status; rm x", "action": "allow"}, "command", ["more than one plain command"]),
        ({"command": "git 'x", "action": "allow"}, "command", ["cannot be read"]),
        ({"command": " ", "action": "allow"}, "command", ["empty"]),
        ({"command": "/(a+)+/", "action": "allow"}, "command", ["repeats a group"]),
        ({"matches": {"cmd": 5}, "action": "allow"}, "matches", ["cmd"]),
        ({"matches": {"url": "/(/"}, "action": "allow"}, "matches", ["regular expression"]),
        ({"tool": "x", "context": "main", "action": "allow"}, "context", ['"thread"']),
        (5, None, ["expected a table"]),
    ],
)
def test_a_mistake_is_named(rule: Any, key: str | None, words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        read_rules([{"tool": "*", "action": "ask"}, rule], "server")
    assert (caught.value.index, caught.value.key) == (1, key)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("raw", [{}, "x", None, [{"tool": "*", "action": "ask"}] * (MOST_RULES + 1)])
def test_what_is_no_list_of_rules_is_refused(raw: Any) -> None:
    with pytest.raises(Mistake) as caught:
        read_rules(raw, "server")
    assert caught.value.index is None


def test_a_rule_has_all_that_was_written() -> None:
    raw = {"tool": "Bash", "action": "allow", "name": "n", "reason": "r", "remember": True}
    (rule,) = read_rules([raw], "session")
    assert (rule.number, rule.action, rule.source) == (1, "allow", "session")
    assert (rule.name, rule.reason, rule.remember) == ("n", "r", True)


def test_the_shape_of_amp_is_understood_and_to_delegate_is_to_ask() -> None:
    rules = read_rules(
        [
            {"tool": "Bash", "matches": {"cmd": ["git *", "/^ls$/"]}, "action": "allow", "context": "thread"},
            {"tool": "Bash", "matches": {"cmd": "gh *"}, "action": "delegate", "to": "my-helper"},
            {"tool": "edit_file", "matches": {"path": ".*"}, "action": "reject", "message": "no dots"},
            {"tool": "x", "matches": {"deep": {"a": [1, True, None, "b*"]}}, "action": "ask"},
        ],
        "server",
    )
    assert [rule.action for rule in rules] == ["allow", "ask", "reject", "ask"]
    assert rules[2].reason == "no dots"


@pytest.mark.parametrize("kind", ["*", "e*", "[re]*", ["read", "*_mode"]])
def test_a_kind_may_be_a_glob(kind: Any) -> None:
    assert read_rules([{"kind": kind, "action": "ask"}], "server")


def test_a_folder_alone_is_no_condition() -> None:
    with pytest.raises(Mistake, match="no condition"):
        read_rules([{"cwd": "/srv", "action": "allow"}], "server")


def test_every_key_is_described() -> None:
    assert tuple(KEYS) == RuleTable.__struct_fields__


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["allow", "ask", "/x/", "edit"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from([*KEYS, "x"]), _VALUES, max_size=6) | _VALUES, max_size=3))
def test_rules_are_taken_or_refused(raw: list[Any]) -> None:
    try:
        rules = read_rules(raw, "server")
    except Mistake:
        return
    assert all(rule.conditions for rule in rules)
    assert len(rules) == len(raw)
