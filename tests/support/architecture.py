"""The parts of docs/architecture.md that are written from the code: `python -m tests.support.architecture`."""

import re

from tests.docs.pages import DOCS
from tests.support.call_stacks import Stack
from tests.support.walking import SCENES

PAGE = DOCS / "architecture.md"
_BLOCK = re.compile(r"^```walk ([\w-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_THEN = "then"


def read_walks(text: str) -> dict[str, str]:
    """The blocks of walks in the page, by name."""
    return dict(_BLOCK.findall(text))


def write_walk(stacks: list[Stack]) -> str:
    """The stacks of a walk as its block has them: a function on each line, and a word between two stacks."""
    return f"{_THEN}\n".join("".join(f"{step}\n" for step in stack.steps) for stack in stacks)


def with_walks(text: str, walks: dict[str, str]) -> str:
    """The page with these blocks in place of those of the same names."""
    return _BLOCK.sub(lambda block: f"```walk {block[1]}\n{walks.get(block[1], block[2])}```", text)


def main() -> None:
    """Write the page anew."""
    found = {name: write_walk(stacks) for scene, _ in SCENES for name, stacks in scene().items()}
    text = PAGE.read_text()
    missing = sorted(found.keys() - read_walks(text).keys())
    if missing:
        raise SystemExit(f"{PAGE}: give these walks a place, each an empty block: {', '.join(missing)}")
    PAGE.write_text(with_walks(text, found))


if __name__ == "__main__":
    main()
