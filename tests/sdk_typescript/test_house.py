"""The house rules, as far as they hold for TypeScript: sizes, names, comments, and no `any`."""

import re

from tests.sdk_typescript.node import SDK

MAX_MODULE, WIDTH = 600, 120
MODULES = {path.relative_to(SDK / "src").as_posix(): path.read_text() for path in sorted((SDK / "src").rglob("*.ts*"))}
TESTS = {path.relative_to(SDK).as_posix(): path.read_text() for path in sorted((SDK / "tests").rglob("*.ts"))}
SCRIPTS = {path.name: path.read_text() for path in sorted((SDK / "scripts").glob("*.mjs"))}
SOURCES = {**MODULES, **TESTS, **SCRIPTS}

EMPTY_WORDS = {"base", "common", "helper", "helpers", "manager", "managers", "service", "services", "util", "utils"}
EXPORT = re.compile(r"export (async )?(abstract )?(class|function|interface|type|const) \w")
UNTYPED = re.compile(r"[:<|,(] *any\b(?![\w ])|\bas any\b|@ts-(?:ignore|expect-error|nocheck)|eslint-")


def test_no_module_is_too_long() -> None:
    assert {"stream.ts", "client.ts"} <= MODULES.keys()
    assert {name: text.count("\n") for name, text in SOURCES.items() if text.count("\n") > MAX_MODULE} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [name for name in SOURCES if EMPTY_WORDS & set(re.split(r"[/.]", name))] == []


def test_no_line_is_too_long() -> None:
    # What a test plants among the sources, or expects, may be a text of any length.
    lines = [
        (name, line) for name, text in SOURCES.items() for line in text.splitlines() if not re.match(r'\s*"', line)
    ]

    assert [(name, line) for name, line in lines if len(line) > WIDTH] == []


def test_a_module_says_what_lives_there() -> None:
    assert [name for name, text in SOURCES.items() if not text.startswith("/**")] == []


def test_nothing_is_any_and_no_complaint_is_silenced() -> None:
    assert {name: UNTYPED.findall(text) for name, text in MODULES.items() if UNTYPED.search(text)} == {}


def test_everything_that_is_exported_is_described() -> None:
    for name, text in MODULES.items():
        lines = text.splitlines()
        exported = [number for number, line in enumerate(lines) if EXPORT.match(line)]

        assert [lines[number] for number in exported if not lines[number - 1].endswith("*/")] == [], name
