"""The rules to start with were attacked, and hold: no hostile command is allowed, and honest ones are."""

import os
import tomllib
from pathlib import Path
from posixpath import normpath
from typing import Any

import pytest

from sandbox_agent.permissions.file import read_starter
from sandbox_agent.permissions.request import Asked
from sandbox_agent.permissions.rules import Decision, Policy, read_rules

HERE = Path(__file__).parent
CWD, HOME = "/srv/app", "/home/me"
RULES = read_rules(tomllib.loads(read_starter())["rules"], "server")


def listed(name: str) -> list[str]:
    lines = (HERE / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


HOSTILE, HONEST = listed("hostile_commands.txt"), listed("honest_commands.txt")


def decide(call: dict[str, Any], cwd: str = CWD, resolve: Any = normpath) -> Decision:
    policy = Policy(RULES, HOME, resolve)
    return policy.decide(Asked({"toolCall": {"toolCallId": "1", **call}}, "claude", cwd, (f"{cwd}-docs",)), ())


def running(text: object, **more: Any) -> dict[str, Any]:
    return {"name": "Bash", "kind": "execute", "rawInput": {"command": text, **more}}


@pytest.mark.requirement("7.starter")
def test_no_hostile_command_is_allowed() -> None:
    assert [command for command in HOSTILE if decide(running(command)).action == "allow"] == []


def test_every_honest_command_is_allowed() -> None:
    decisions = {command: decide(running(command)) for command in HONEST}
    assert {command: made.why for command, made in decisions.items() if made.action != "allow"} == {}


def test_the_tables_are_large() -> None:
    assert len(HOSTILE) > 350
    assert len(HONEST) > 50


@pytest.mark.parametrize(
    "wrapping", ["{}; pwd", "pwd && {}", "pwd | {}", "bash -c '{}'", "(cd src && {})", "{} > /dev/null"]
)
def test_no_hostile_command_is_allowed_in_company(wrapping: str) -> None:
    texts = [wrapping.replace("{}", command) for command in HOSTILE if "'" not in command]
    assert [text for text in texts if decide(running(text)).action == "allow"] == []


@pytest.mark.parametrize(
    "call",
    [
        running("npm test", cwd="/srv/evil"),
        running("npm test", workdir="../evil"),
        running("npm test", Cwd="/srv/evil"),
        running("npm test", cwd=CWD, workdir="/srv/evil"),
        running("npm test", cwd="~/evil"),
        running("npm test", cwd=["/srv/evil"]),
        running("npm test", cwd="file:///srv/evil"),
        running("npm test", env={"PATH": "/srv/evil"}),
        running("npm test", dangerouslyDisableSandbox=True),
        running("npm test", Command="id"),
        running("npm test", CMD="id"),
        running("npm", args=["test", "--prefix", "/srv/evil"]),
        running("npm", Args=["test", "--prefix", "/srv/evil"]),
        running("npm test", args=[], Args=["--prefix", "/srv/evil"]),
        running(["npm", "test", "--prefix", "/srv/evil"]),
        running(["bash", "-c", "npm test; id"]),
        running(["npm test", "x"]),
        {"kind": "execute", "title": "npm test"},
        {"kind": "execute", "title": "npm test", "rawInput": {"description": "npm test"}},
        {"kind": "read", "rawInput": {"path": "/etc/passwd"}},
        {"kind": "read", "rawInput": {"path": "a", "PATH": "/etc/passwd"}},
        {"kind": "read", "rawInput": {"path": ".env"}},
        {"kind": "read", "rawInput": {"path": "src/a"}, "locations": [{"path": "/etc/passwd"}]},
        {"kind": "read", "rawInput": {"uri": "file://src/etc/passwd"}},
        {"kind": "read", "rawInput": {"uri": "file:///etc/passwd"}},
        {"kind": "read", "rawInput": {"uri": "src://../../etc/passwd"}},
        {"kind": "read", "rawInput": {"path": "a", "then": "cat /etc/passwd"}},
        {"kind": "read", "rawInput": {"path": "a", "options": {"command": "id"}}},
        {"kind": "edit", "rawInput": {"path": "src/a"}},
        {"kind": "edit", "rawInput": {"path": ".git/hooks/pre-commit"}},
        {"kind": "other", "rawInput": {"path": ".git/config"}},
    ],
)
def test_a_hostile_request_is_not_allowed(call: dict[str, Any]) -> None:
    assert decide(call).action != "allow"


@pytest.mark.parametrize(
    "call",
    [
        running("npm test", cwd=CWD),
        running("npm test", cwd="packages/a", timeout=5, description="Runs the tests"),
        running("npm test", workdir=f"{CWD}-docs"),
        running("npm", args=["test"]),
        running(["bash", "-lc", "npm test"], cwd=CWD),
        {"kind": "read", "rawInput": {"file_path": f"{CWD}/src/a.py", "offset": 1, "limit": 20}},
        {"kind": "read", "rawInput": {"uri": f"file://{CWD}/src/a.py"}},
    ],
)
def test_an_honest_request_is_allowed(call: dict[str, Any]) -> None:
    decision = decide(call)
    assert decision.action == "allow", decision.why


def test_a_link_does_not_lead_out(tmp_path: Path) -> None:
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    (app / "src").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("x")
    (app / "out").symlink_to(elsewhere)
    (app / "plain.txt").symlink_to(elsewhere / "secret")
    (app / "env.txt").symlink_to(app / ".env")
    for command in (
        "cat plain.txt",
        "cat out/secret",
        "cd out && npm test",
        "ls out",
        "cat env.txt",
        "cd src && cat ../out/x",
    ):
        assert decide(running(command), str(app), os.path.realpath).action != "allow", command
    assert decide(running("npm test", cwd="out"), str(app), os.path.realpath).action != "allow"
    assert decide(running("cat src/a"), str(app), os.path.realpath).action == "allow"
