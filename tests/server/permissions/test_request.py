"""What agents ask permission for, in the shapes that eight real agents have it in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.permissions.budget import STEPS, StepBudget
from sandboxagent.server.permissions.commands import Simple, Unread
from sandboxagent.server.permissions.request import Asked, ToolRequest, read_request

CWD = "/srv/app"

# As the real agents wrote them, shortened.
SHAPES: dict[str, dict[str, Any]] = {
    "claude write": {
        "name": "Write",
        "kind": "edit",
        "rawInput": {"file_path": "/srv/app/x", "content": "/etc/passwd"},
        "content": [{"type": "diff", "path": "/srv/app/x"}],
        "locations": [{"path": "/srv/app/x"}],
    },
    "gemini write": {
        "kind": "edit",
        "title": "Writing to x",
        "content": [{"type": "diff", "path": "/srv/app/x"}],
        "locations": [{"path": "/srv/app/x"}],
    },
    "opencode write": {
        "kind": "edit",
        "locations": [{"path": "/srv/app/x"}],
        "rawInput": {
            "filepath": "/srv/app/x",
            "diff": "Index: /srv/app/x\n--- /srv/app/x\t\n+++ /srv/app/x\n@@\n-/a\n+/b",
        },
    },
    "qwen write": {
        "kind": "edit",
        "rawInput": {"file_path": "/srv/app/x", "content": "a"},
        "_meta": {"toolName": "write_file"},
    },
    "copilot write": {
        "kind": "edit",
        "rawInput": {
            "fileName": "/srv/app/x",
            "diff": "\ndiff --git a/srv/app/x b/srv/app/x\n--- a/dev/null\n+++ b/srv/app/x\n@@\n+/etc/passwd",
        },
    },
    "goose write": {"kind": "other", "rawInput": {"path": "/srv/app/x", "before": "/a", "after": "/b"}},
    "codex patch": {"kind": "edit", "locations": [{"path": "/srv/app/x"}]},
    "a link": {"kind": "read", "rawInput": {"uri": "file:///srv/app/x"}},
}
COMMANDS: dict[str, dict[str, Any]] = {
    "claude": {"name": "Bash", "kind": "execute", "rawInput": {"command": "make a", "description": "/etc/x"}},
    "codex": {"kind": "execute", "rawInput": {"command": "make a", "cwd": CWD}},
    "codex, older": {"kind": "execute", "rawInput": {"command": ["make", "a"], "cwd": CWD}},
    "codex, shell": {"kind": "execute", "rawInput": {"command": ["bash", "-lc", "make a"]}},
    "opencode": {"kind": "execute", "rawInput": {"command": "make a"}, "locations": []},
    "qwen": {"kind": "execute", "rawInput": {"command": "make a", "description": "d", "is_background": False}},
    "copilot": {"kind": "execute", "title": "does it", "rawInput": {"command": "make a", "commands": ["make a"]}},
    "goose": {"kind": "other", "title": "shell · make a", "rawInput": {"command": "make a"}},
    "amp": {"rawInput": {"cmd": "make a"}},
    "arguments apart": {"rawInput": {"command": "make", "args": ["a"]}},
}


def read(call: dict[str, Any], **more: Any) -> ToolRequest:
    return read_params({"toolCall": {"toolCallId": "1", **call}, **more})


def read_params(params: Any, *, command_in_title: bool = False) -> ToolRequest:
    return read_request(Asked(params, "someone", CWD, (), command_in_title), StepBudget(STEPS, str))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_paths_of_every_agent_are_found_and_texts_are_none(shape: dict[str, Any]) -> None:
    request = read(shape)
    assert {*request.paths, *request.perhaps_paths} == {"/srv/app/x"}
    assert request.paths_known
    assert request.parts == ()
    assert request.is_readable


@pytest.mark.parametrize("shape", COMMANDS.values(), ids=COMMANDS)
def test_the_commands_of_every_agent_are_found(shape: dict[str, Any]) -> None:
    request = read(shape)
    plain = [part.words for part in request.parts if isinstance(part, Simple) and not part.runs_others]
    assert set(plain) == {("make", "a")}
    assert not any(isinstance(part, Unread) for part in request.parts)
    assert request.only_command


@pytest.mark.parametrize(
    ("call", "tool"),
    [
        ({"name": "Bash"}, "Bash"),
        ({"_meta": {"toolName": "edit"}}, "edit"),
        ({"_meta": {"claudeCode": {"toolName": "Edit"}}}, "Edit"),
        ({"title": "Bash"}, None),
        ({"name": 5}, None),
    ],
)
def test_the_tool_is_called_as_the_agent_calls_it(call: dict[str, Any], tool: str | None) -> None:
    assert read(call).tool == tool


@pytest.mark.parametrize(
    "call",
    [
        {"kind": "execute"},
        {"kind": "execute", "rawInput": {}},
        {"kind": "execute", "title": "make", "rawInput": {"description": "make"}},
        {"kind": "other"},
        {},
        {"rawInput": {"command": {"a": 1}}},
        {"rawInput": {"command": ["make", 5]}},
        {"rawInput": {"command": "make", "args": "a"}},
        {"rawInput": {"commands": []}},
        {"rawInput": {"command": None}},
    ],
)
def test_a_command_that_is_not_told_is_unknown(call: dict[str, Any]) -> None:
    assert any(isinstance(part, Unread) for part in read(call).parts)


def test_the_title_is_the_command_only_of_those_who_tell_it_there() -> None:
    params = {"toolCall": {"toolCallId": "1", "kind": "execute", "title": "make a"}}
    (told,) = read_params(params, command_in_title=True).parts
    (untold,) = read_params(params).parts
    assert isinstance(told, Simple)
    assert isinstance(untold, Unread)


@pytest.mark.parametrize(
    "more",
    [{"additionalPermissions": {}}, {"url": "http://x"}, {"dangerouslyDisableSandbox": True}, {"directories": []}],
)
def test_a_command_with_something_else_is_not_only_a_command(more: dict[str, Any]) -> None:
    assert not read({"kind": "execute", "rawInput": {"command": "make", **more}}).only_command


def test_every_text_that_may_be_a_path_is_one() -> None:
    request = read({"kind": "move", "rawInput": {"from": "a", "dest": ["b", {"x": "c"}], "changes": {"/d/e": 1}}})
    assert set(request.perhaps_paths) == {"a", "b", "c"}
    assert set(request.paths) == {"/d/e", "x"}


def test_paths_that_are_not_told_are_not_known() -> None:
    assert not read({"kind": "edit"}).paths_known
    assert read({"kind": "fetch"}).paths_known
    assert read({"kind": "fetch", "rawInput": {"url": "http://a/b"}}).perhaps_paths == ()
    deep: Any = "x"
    for _ in range(30):
        deep = [deep]
    assert not read({"kind": "edit", "rawInput": {"path": "a", "deep": deep}}).paths_known


def test_a_command_begins_where_it_says_and_goes_where_it_goes() -> None:
    request = read({"kind": "execute", "rawInput": {"command": "cd a; cd /b; ls", "workdir": "sub"}})
    assert request.folder == "/srv/app/sub"
    assert set(request.folders) == {"/srv/app/sub", "/srv/app/sub/a", "/b"}
    assert request.folders_known
    for command in ("cd -", "cd $x", "cd", "pushd ~/x", "cd a b"):
        assert not read({"kind": "execute", "rawInput": {"command": command}}).folders_known
    assert not read({"kind": "execute", "rawInput": {"command": ";".join(["cd a"] * 9)}}).folders_known


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"toolCall": 5},
        {"toolCall": {}},
        {"toolCall": {"kind": 5}},
        {"toolCall": {"rawInput": "rm -rf /"}},
        {"toolCall": {"name": ["x"]}},
        {"toolCall": {"locations": {}}},
    ],
)
def test_another_shape_is_not_readable(params: dict[str, Any]) -> None:
    assert not read_params(params).is_readable


def test_a_question_in_the_form_of_a_permission_is_found_out() -> None:
    assert read({"_meta": {"qwenInteractionKind": "user_question", "qwenQuestions": []}}).is_question
    assert read({"_meta": {"kind": "a question"}}).is_question
    assert not read({"_meta": {"toolName": "edit"}}).is_question


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_MEMBERS = ("name", "kind", "title", "rawInput", "locations", "content", "_meta", "toolCallId")
CALLS = st.dictionaries(st.sampled_from(_MEMBERS), _JSON, max_size=8)
INPUTS = st.dictionaries(
    st.sampled_from(("command", "cmd", "commands", "args", "cwd", "path", "file_path", "x")), _JSON
)


@given(_JSON | st.fixed_dictionaries({"toolCall": CALLS | st.fixed_dictionaries({"rawInput": INPUTS})}))
def test_nothing_makes_it_fail(params: Any) -> None:
    read_params(params if isinstance(params, dict) else {"toolCall": params})
