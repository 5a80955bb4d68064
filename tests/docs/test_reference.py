"""The pages of the reference are what the code says."""

import re
from pathlib import Path

import pytest

from tools.reference import pages

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
NAMES = sorted(path.name for path in REFERENCE.glob("*.md") if path.name != "typescript.md")
"""The page of the TypeScript SDK is written by its compiler, and tested with it."""


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text() == pages()[name], "./dev docs"


def test_every_page_is_written_by_a_program() -> None:
    assert sorted(pages()) == NAMES


def test_every_field_of_the_reference_has_a_sentence() -> None:
    silent = [
        f"{page.name}: {line}"
        for page in sorted(REFERENCE.glob("*.md"))
        for line in page.read_text().splitlines()
        if line.startswith("|") and re.split(r"(?<!\\)\|", line)[-2].strip() in ("", "–")
    ]

    assert silent == []


def test_every_row_of_a_table_in_the_reference_is_one_line() -> None:
    """A line break ends a table, and the rest of the sentence stands below it."""
    lines = [(page.name, line) for page in REFERENCE.glob("*.md") for line in page.read_text().splitlines()]

    assert [each for each in lines if each[1].startswith("|") and not each[1].endswith("|")] == []
