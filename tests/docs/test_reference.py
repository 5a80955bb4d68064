"""The pages of the reference are what the code says."""

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
