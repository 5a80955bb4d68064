"""The parts of docs/architecture.md that are written from the code: `python -m tests.support.architecture [walks]`."""

import ast
import re
import sys
from itertools import groupby
from pathlib import Path

from tests.docs.pages import DOCS
from tests.docs.source import SOURCE
from tests.support.call_stacks import Stack

PAGE = DOCS / "architecture.md"
_BEGIN, _END = "<!-- modules: begin -->\n", "<!-- modules: end -->\n"
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


def read_modules(text: str) -> str:
    """The tables of modules in the page."""
    return text.partition(_BEGIN)[2].partition(_END)[0]


def write_modules() -> str:
    """A table for each package, with the first line of each module's docstring."""
    tables: list[str] = []
    for package, modules in groupby(sorted(SOURCE.rglob("*.py"), key=_place), key=lambda module: module.parent):
        rows = [f"| `{_name(each)}` | {first_line(each)} |\n" for each in modules if each.name != "__init__.py"]
        name = "" if package == SOURCE else f"**`{_name(package)}/`** "
        head = f"{name}{first_line(package / '__init__.py')}\n\n| module | purpose |\n|---|---|\n"
        tables.append("".join([head, *rows]))
    return "\n" + "\n".join(tables) + "\n"


def with_modules(text: str, tables: str) -> str:
    """The page with these tables of modules."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin
    assert end
    return f"{before}{begin}{tables}{end}{after}"


def first_line(module: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]


def _place(module: Path) -> tuple[str, str]:
    return _name(module.parent), module.name


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def main(only: list[str]) -> None:
    """Write the page anew, or only its `walks`."""
    # It starts servers of every kind, which those that only read the page do not need.
    from tests.support.walking import SCENES

    found = {name: write_walk(stacks) for scene, _ in SCENES for name, stacks in scene().items()}
    text = PAGE.read_text()
    missing = sorted(found.keys() - read_walks(text).keys())
    if missing:
        raise SystemExit(f"{PAGE}: give these walks a place, each an empty block: {', '.join(missing)}")
    PAGE.write_text(with_walks(text if only == ["walks"] else with_modules(text, write_modules()), found))


if __name__ == "__main__":
    main(sys.argv[1:])
