"""The guide to permission rules tells the truth: its rules are in order, and decide its examples as it says."""

import re
import tomllib
from pathlib import Path
from posixpath import normpath

import pytest

from sandbox_agent.permissions.request import Asked
from sandbox_agent.permissions.rules import KEYS, Policy, read_rules

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "permissions.md").read_text()
BLOCKS = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
ROWS = re.findall(r"^\| (`.*`) \| (allow|ask|reject)\b", GUIDE, re.MULTILINE)
EXAMPLES = [(command, action) for cell, action in ROWS for command in re.findall(r"`` ?(.+?) ?``(?!`)|`([^`]+)`", cell)]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_rules_is_in_order(block: str) -> None:
    assert read_rules(tomllib.loads(block)["rules"], "server")


@pytest.mark.parametrize(("found", "action"), EXAMPLES)
def test_every_command_is_decided_as_it_says(found: tuple[str, str], action: str) -> None:
    policy = Policy(read_rules(tomllib.loads(BLOCKS[0])["rules"], "server"), "/home/me", normpath)
    call = {"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "".join(found)}}
    decision = policy.decide(Asked({"toolCall": call}, "claude", "/srv/app"), ())
    assert decision.action == action, decision.why


def test_examples_are_found() -> None:
    assert len(BLOCKS) == 2
    assert len(EXAMPLES) >= 20


def test_every_key_is_documented() -> None:
    assert [key for key in KEYS if f"`{key}`" not in GUIDE] == []
