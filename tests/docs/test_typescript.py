"""TypeScript in the pages: all of it is type-checked against the SDK; what is marked so is run, as it stands.

It is run as plain JavaScript, by Node 20 where the machine has one: that is what a reader may have.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxagent.server.agents.install.tools import bundled_node
from tests.docs.pages import TYPESCRIPT, name_of
from tests.docs.props import PROPS
from tests.docs.snippets import Block, joined, programs, short
from tests.docs.stage import Stage, stage

LONGEST = 240.0
"""Seconds for the compiler, on a machine that is busy."""
OPTIONS = {
    "target": "ES2022",
    "module": "NodeNext",
    "lib": ["ES2023", "ESNext.Disposable", "DOM", "DOM.AsyncIterable"],
    "strict": True,
    "noUncheckedIndexedAccess": True,
    "exactOptionalPropertyTypes": True,
    "skipLibCheck": True,
    "types": ["node"],
    "outDir": "out",
    "rootDir": "code",
}
PROGRAMS = programs("typescript")
pytestmark = pytest.mark.xdist_group("snippets in TypeScript")  # They are compiled once, together.


def name_in(workshop: Path, program: list[Block]) -> str:
    return f"{short(program[0].page)}-{program[0].line}"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a program that has the SDK installed."""
    assert (TYPESCRIPT / "dist" / "index.js").exists(), "the TypeScript SDK is not built; ./dev check does that"
    directory = tmp_path_factory.mktemp("typescript")
    (directory / "node_modules").mkdir()
    (directory / "node_modules" / "sandboxagent").symlink_to(TYPESCRIPT)
    for each in (TYPESCRIPT / "node_modules").iterdir():
        if not each.name.startswith("."):
            (directory / "node_modules" / each.name).symlink_to(each)
    return directory


@pytest.fixture(scope="module")
def here() -> Iterator[Stage]:
    """One server for all of them: the code is compiled with its address."""
    with stage() as opened:
        for page in {name_of(program[0].page) for program in PROGRAMS}:
            PROPS.get(page, lambda stage: None)(opened)
        yield opened


@pytest.fixture(scope="module")
def complaints(workshop: Path, here: Stage) -> dict[str, list[str]]:
    """What the compiler says, by snippet."""
    (workshop / "code").mkdir()
    for program in PROGRAMS:
        # An export makes a module of it, in which `await` may stand at the top.
        code = here.filled_in(joined(program)) + "export {};\n"
        (workshop / "code" / f"{name_in(workshop, program)}.ts").write_text(code)
    (workshop / "package.json").write_text('{"type": "module"}')
    (workshop / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["code"]}))
    done = tsc("--project", str(workshop), "--pretty", "false")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        where = re.match(r".*code/([\w-]+)\.ts", line)
        found.setdefault(where[1] if where else "", []).append(line)
    assert found.get("", []) == []
    return found


def oldest_node() -> str:
    """Node 20, if the machine has one; else ours, which is newer."""
    found = shutil.which("node")
    if found is not None:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=LONGEST).stdout
        if version.startswith("v20."):
            return found
    return str(bundled_node().program)


def tsc(*arguments: str) -> subprocess.CompletedProcess[str]:
    compiler = TYPESCRIPT / "node_modules" / "typescript" / "bin" / "tsc"
    command = [str(bundled_node().program), str(compiler), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env={**os.environ, "NO_COLOR": "1"})


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program[0]))
def test_a_program_has_the_types_that_the_sdk_has(
    program: list[Block], workshop: Path, complaints: dict[str, list[str]]
) -> None:
    assert complaints.get(name_in(workshop, program), []) == []


@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if each[0].mark == "run"], ids=lambda program: str(program[0])
)
def test_a_program_runs(program: list[Block], workshop: Path, here: Stage) -> None:
    plain = workshop / f"{name_in(workshop, program)}.mjs"
    plain.write_text(here.filled_in(joined(program)))
    done = here.run(oldest_node(), str(plain))

    assert done.returncode == 0, done.stderr + done.stdout


def test_no_page_has_syntax_that_node_20_does_not_know() -> None:
    assert [str(block) for program in PROGRAMS for block in program if "await using" in block.code] == []


def test_at_least_one_program_of_the_docs_is_run() -> None:
    assert [program for program in PROGRAMS if program[0].mark == "run"]
