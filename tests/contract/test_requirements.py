"""The manifest of requirements and the tests agree, both ways."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CONTRACT = Path(__file__).resolve().parent
TESTS = CONTRACT.parent
MANIFESTS = sorted((CONTRACT / "requirements").glob("*.toml"))


@dataclass(frozen=True)
class Marked:
    """A test, and the requirements it is marked with."""

    name: str
    ids: tuple[str, ...]


def requirements(manifest: Path) -> dict[str, str]:
    return tomllib.loads(manifest.read_text())["requirements"]


def all_requirements() -> dict[str, str]:
    return {id: sentence for manifest in MANIFESTS for id, sentence in requirements(manifest).items()}


def marked_tests(folder: Path) -> list[Marked]:
    """Every test in a folder that has a mark, or should.

    A mark counts for what it is written on: a test, one of its parameters, or its class.
    """
    return [test for file in sorted(folder.rglob("test_*.py")) for test in marks_of(file)]


@cache
def marks_of(file: Path) -> tuple[Marked, ...]:
    text = file.read_text()
    if "mark.requirement" not in text and CONTRACT not in file.parents:
        return ()  # Most of hundreds of files: no test in it has a mark.
    module = ast.parse(text)
    everywhere = tuple(id for node in module.body if isinstance(node, ast.Assign) for id in marks(node))
    return tuple(
        Marked(
            f"{file.relative_to(TESTS)}::{node.name}",
            (*inherited, *(id for decorator in node.decorator_list for id in marks(decorator))),
        )
        for node, inherited in _functions(module, everywhere)
    )


def _functions(
    parent: ast.Module | ast.ClassDef, inherited: tuple[str, ...]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, tuple[str, ...]]]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            own = tuple(id for decorator in node.decorator_list for id in marks(decorator))
            yield from _functions(node, (*inherited, *own))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node, inherited


def marks(tree: ast.AST) -> Iterator[str]:
    """The ids of `pytest.mark.requirement("…")` in a piece of code; it may name several."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requirement":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: an id is written out, not computed"
                assert isinstance(argument.value, str), f"line {node.lineno}: an id is a string"
                yield argument.value


def test_every_requirement_has_a_test() -> None:
    tested = {id for test in marked_tests(TESTS) for id in test.ids}

    assert sorted(all_requirements().keys() - tested) == []


def test_every_mark_names_a_requirement() -> None:
    known = all_requirements()

    assert [(test.name, id) for test in marked_tests(TESTS) for id in test.ids if id not in known] == []


def test_every_contract_test_proves_a_requirement() -> None:
    tests = [test for test in marked_tests(CONTRACT) if "/test_requirements.py::" not in test.name]

    assert tests, "found no tests at all"
    assert [test.name for test in tests if not test.ids] == []


def test_requirements_stand_in_the_file_of_their_section() -> None:
    misplaced = [
        (manifest.name, id)
        for manifest in MANIFESTS
        for id in requirements(manifest)
        if manifest.stem != f"section_{id.partition('.')[0]}"
    ]

    assert MANIFESTS
    assert misplaced == []


def test_requirements_are_sentences_said_once() -> None:
    sentences = list(all_requirements().values())

    assert [one for one in sentences if not one[:1].strip() or not one.endswith(".")] == []
    assert [one for one in set(sentences) if sentences.count(one) > 1] == []
