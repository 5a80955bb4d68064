"""Fenced blocks of the pages, and what is said of them in a comment in front:

    <!-- snippet: skip because … -->   it is not run here; its syntax is still looked at
    <!-- snippet: continues -->        it goes on where the block of its language before it ended (python, typescript)
    <!-- snippet: run -->              it is run and not only type-checked (typescript)

A Python block is a program of its own. The shell blocks of a page are one terminal: all of them run one after another.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT, name_of, pages

LANGUAGES = {"ts": "typescript", "tsx": "typescript", "js": "javascript", "bash": "sh", "yml": "yaml"}
"""Other names of languages."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- snippet: (?P<mark>.*?) -->\s*$")
_SKIP = "skip because "


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of code, from 1."""

    page: Path
    line: int
    language: str
    code: str
    mark: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def skipped(self) -> str | None:
        """Why it is not run."""
        return self.mark.removeprefix(_SKIP) if self.mark.startswith(_SKIP) else None

    @property
    def in_place(self) -> str:
        """Its code with as many empty lines in front that lines count as they do in the page."""
        return "\n" * (self.line - 1) + self.code


def blocks(language: str = "") -> list[Block]:
    """Every block of every page, or those of one language."""
    return [block for page in pages() for block in blocks_of(page) if language in ("", block.language)]


def blocks_of(page: Path, language: str = "") -> list[Block]:
    """The blocks of a page, in its order."""
    return [block for block in _read_blocks(page) if language in ("", block.language)]


@cache
def _read_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        name = LANGUAGES.get(fence["language"], fence["language"])
        before = text[: fence.start()]
        mark = _MARK.search(before)
        indent = fence["indent"]
        code = re.sub(rf"^{indent}", "", fence["code"], flags=re.MULTILINE)
        found.append(Block(page, before.count("\n") + 2, name, code, mark["mark"] if mark else ""))
    return found


def programs(language: str) -> list[list[Block]]:
    """The blocks that are run, each with those that it continues in front of it."""
    found: list[list[Block]] = []
    for page in pages():
        for block in blocks_of(page, language):
            if block.skipped is not None:
                continue
            if block.mark == "continues" and found and found[-1][0].page == page:
                found[-1].append(block)
            else:
                found.append([block])
    return found


def joined(several: list[Block]) -> str:
    """Their code as one text, every line where it is in the page."""
    lines: list[str] = []
    for block in several:
        lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    return "\n".join(lines) + "\n"


def short(page: Path) -> str:
    """A page's name, as that of a file."""
    return page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "-").lower()
