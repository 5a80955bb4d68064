"""Permission modes: how much an agent may do without asking."""

from typing import Literal

import pytest
from msgspec.structs import replace

from sandboxagent.protocol.errors import InvalidParams
from sandboxagent.protocol.views import Features
from sandboxagent.server.agents.manifest import Agent, load_manifest
from sandboxagent.server.agents.options import PermissionMode, find_permission_mode, mode_rules, read_wished_mode
from sandboxagent.server.permissions.rules import read_rules

Asks = Literal["always", "mode", "configured", "never"]


def agent(asks: Asks | None = None, **modes: str) -> Agent:
    features = None if asks is None else Features(permissions=asks, questions="none")
    facts = {"id": "a", "title": "A", "description": "", "source": "path", "command": (), "env": {}}
    return Agent(**facts, permission_modes=modes, features=features)


def offers(*modes: str) -> dict[str, object]:
    return {"modes": {"currentModeId": modes[0], "availableModes": [{"id": mode} for mode in modes]}} if modes else {}


def known(of: Agent, told: dict[str, object]) -> object:
    with pytest.raises(InvalidParams) as refused:
        find_permission_mode(of, told, "no such mode")
    return refused.value.fields["available"]


def test_a_mode_of_the_agents_own_is_meant_by_its_id() -> None:
    assert find_permission_mode(agent(), offers("ask", "yolo"), "yolo") == PermissionMode("yolo")


def test_a_mode_may_be_told_as_an_option() -> None:
    option = {"id": "m", "category": "mode", "currentValue": "x", "options": [{"value": "x"}, {"value": "plan"}]}

    assert find_permission_mode(agent(), {"configOptions": [option]}, "plan") == PermissionMode("plan")


def test_alternative_name_means_the_agents_own_mode_while_it_has_that() -> None:
    named = agent("mode", acceptEdits="autoEdit")

    assert find_permission_mode(named, offers("default", "autoEdit"), "acceptEdits") == PermissionMode("autoEdit")
    assert find_permission_mode(named, offers("default"), "acceptEdits") == PermissionMode("default", "acceptEdits")


def test_an_agents_own_id_counts_before_another_name() -> None:
    assert find_permission_mode(agent(None, plan="chat"), offers("plan", "chat"), "plan") == PermissionMode("plan")


def test_rules_stand_in_on_top_of_the_mode_in_which_the_agent_asks() -> None:
    assert find_permission_mode(agent("mode", default="approve"), offers("auto", "approve"), "plan") == PermissionMode(
        "approve", "plan"
    )
    assert find_permission_mode(agent("always"), {}, "read-only") == PermissionMode(None, "read-only")
    assert find_permission_mode(agent(), {}, "bypassPermissions") == PermissionMode(None, "bypassPermissions")


@pytest.mark.parametrize(
    ("asks", "modes", "all_of_them"),
    [
        ("always", (), ["default", "bypassPermissions", "acceptEdits", "plan", "read-only"]),
        ("mode", ("auto",), ["auto", "default", "bypassPermissions", "acceptEdits"]),
        ("mode", ("default",), ["default", "bypassPermissions", "acceptEdits", "plan", "read-only"]),
        ("configured", (), ["default", "bypassPermissions", "acceptEdits"]),
        (None, (), ["default", "bypassPermissions", "acceptEdits"]),
        ("never", ("low", "high"), ["bypassPermissions"]),
    ],
)
def test_rules_forbid_nothing_to_an_agent_that_does_not_ask(
    asks: Asks | None, modes: tuple[str, ...], all_of_them: list[str]
) -> None:
    assert known(agent(asks), offers(*modes)) == all_of_them


def test_rules_about_kinds_are_of_no_use_with_an_agent_that_tells_none() -> None:
    vague = replace(agent("always"), tells_kinds=False)

    assert known(vague, {}) == ["default", "bypassPermissions"]


@pytest.mark.parametrize("name", ["default", "acceptEdits", "bypassPermissions", "plan", "read-only", None])
def test_the_rules_of_a_mode_are_rules(name: str | None) -> None:
    before, after = mode_rules(name)

    assert [rule.action for rule in read_rules(before, "session")] == (
        ["reject"] if name in ("plan", "read-only") else []
    )
    assert [rule.action for rule in read_rules(after, "session")] == (
        ["allow"] if name in ("acceptEdits", "bypassPermissions") else []
    )


def test_wished_mode_must_be_a_name() -> None:
    assert read_wished_mode({"permissionMode": "plan"}) == "plan"
    assert read_wished_mode({"permissionMode": None}) is None
    assert read_wished_mode({}) is None
    with pytest.raises(InvalidParams):
        read_wished_mode({"permissionMode": 7})


def test_every_agent_we_know_asks_for_nothing_when_that_is_wished() -> None:
    told = {
        "claude": offers("default", "acceptEdits", "plan", "auto"),
        "codex": offers("read-only", "workspace-write", "agent", "agent-full-access"),
        "gemini": offers("default", "autoEdit", "yolo", "plan"),
    }

    meant = {
        each.id: find_permission_mode(each, told.get(each.id, {}), "bypassPermissions")
        for each in load_manifest(None).agents
    }

    assert meant["codex"] == PermissionMode("agent-full-access")
    assert meant["gemini"] == PermissionMode("yolo")
    # As root it does not offer it.
    assert meant["claude"] == PermissionMode("default", "bypassPermissions")
    assert meant["pi"] == PermissionMode(None, "bypassPermissions")
