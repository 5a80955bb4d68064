"""The threat model promises only what a test proves."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
MODEL = PAGE[PAGE.index("## Threat model") : PAGE.index("## What this does not protect from")]
ROWS = re.findall(r"^\| (?!cannot|-)(.+?) \| (.+?) \|$", MODEL, re.MULTILINE)


def names_of_tests() -> set[str]:
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if "node_modules" not in file.parts]
    return {name for file in files for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)}


def test_the_model_has_rows() -> None:
    assert len(ROWS) > 30


def test_each_line_of_the_threat_model_names_an_existing_test() -> None:
    named = {promise: set(re.findall(r"`(test_\w+)`", proofs)) for promise, proofs in ROWS}
    assert [promise for promise, tests in named.items() if not tests] == [], "no test proves these"
    there = names_of_tests()
    assert {promise: tests - there for promise, tests in named.items() if tests - there} == {}
