"""The pictures that programs draw: they are still, and show what the programs show now."""

import re
from html import unescape
from pathlib import Path

from tools.pictures.terminal import record

README = Path(__file__).resolve().parents[1] / "README.md"
PICTURES = README.parent / "docs" / "pictures"
FIRST, LAST = "?Write", "Reject"
"""What the first line of the permission and its last answer have."""


def lines_of(picture: str) -> list[str]:
    """The lines of text in a picture of a terminal, from top to bottom, without their spaces."""
    found: dict[int, str] = {}
    for number, text in re.findall(r'<text[^>]*clip-path="url\(#terminal-line-(\d+)\)"[^>]*>([^<]*)</text>', picture):
        found[int(number)] = found.get(int(number), "") + unescape(text)
    return [without_spaces(found[number]) for number in sorted(found)]


def without_spaces(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_the_picture_of_the_terminal_is_still_and_shows_a_permission() -> None:
    picture = (PICTURES / "terminal.svg").read_text()
    lines = lines_of(picture)

    assert re.findall("animat|opacity|@keyframes", picture) == []
    assert lines[0] == "$sandbox-agentrunmock"
    assert any("Allowonce" in line for line in permission(lines))


def test_readme_opens_with_the_picture_of_the_permission() -> None:
    pictures = re.findall(r"^!\[[^\]]*permission[^\]]*\]\(([^)]+)\)|^!\[", README.read_text(), re.MULTILINE)

    assert pictures[0] == "docs/pictures/terminal.svg"


def test_the_picture_of_the_terminal_shows_what_the_program_shows() -> None:
    drawn = lines_of((PICTURES / "terminal.svg").read_text())
    now = [without_spaces(line) for line in record().plain.splitlines()]

    assert permission(drawn) == permission(now), "python -m tools.pictures"


def permission(lines: list[str]) -> list[str]:
    """The lines from the permission to its last answer, but for empty ones."""
    begin = next(at for at, line in enumerate(lines) if FIRST in line)
    end = next(at for at, line in enumerate(lines) if at > begin and LAST in line)
    return [line for line in lines[begin : end + 1] if line]
