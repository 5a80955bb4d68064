"""The guide to permission rules tells the truth: its rules are in order, and decide its examples as it says."""

import re
import tomllib
from pathlib import Path
from posixpath import normpath

import pytest

from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import KEYS, Policy, read_rules

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "permissions.md").read_text()
BLOCKS = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
BEFORE, PATHS = GUIDE.split("\n## Paths\n")


def read_table(text: str) -> list[tuple[str, str]]:
    """What stands in the first cells of tables, and the action in the second ones."""
    rows = re.findall(r"^\| (`.*`[^|]*) \| (allow|ask|reject)\b", text, re.MULTILINE)
    found = [(each, action) for cell, action in rows for each in re.findall(r"`` ?(.+?) ?``(?!`)|`([^`]+)`", cell)]
    return [("".join(each).replace("\\|", "|"), action) for each, action in found]


EXAMPLES, PATH_EXAMPLES = read_table(BEFORE), read_table(PATHS)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_rules_is_in_order(block: str) -> None:
    assert read_rules(tomllib.loads(block)["rules"], "server")


@pytest.mark.parametrize(("found", "action"), EXAMPLES)
def test_every_command_is_decided_as_it_says(found: str, action: str) -> None:
    policy = Policy(read_rules(tomllib.loads(BLOCKS[0])["rules"], "server"), "/home/me", normpath)
    call = {"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": found}}
    decision = policy.decide(Asked({"toolCall": call}, "claude", "/srv/app"), ())
    assert decision.action == action, decision.why


@pytest.mark.parametrize(("found", "action"), PATH_EXAMPLES)
def test_every_path_is_decided_as_it_says(found: str, action: str) -> None:
    rules = [{"path": "**/.env", "action": "reject"}, {"path": "./**", "action": "allow"}]
    call = {"toolCallId": "1", "kind": "read", "rawInput": {"path": found}}
    policy = Policy(read_rules(rules, "server"), "/home/me", normpath)
    assert policy.decide(Asked({"toolCall": call}, "claude", "/srv/app"), ()).action == action


def test_examples_are_found() -> None:
    assert len(BLOCKS) == 2
    assert len(EXAMPLES) >= 20
    assert len(PATH_EXAMPLES) >= 15


def test_every_key_is_documented() -> None:
    assert [key for key in KEYS if f"`{key}`" not in GUIDE] == []
