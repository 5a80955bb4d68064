"""docs/reference/typescript.md is what the declarations say."""

import subprocess
from pathlib import Path

from tests.sdk_typescript.node import LONGEST, SDK, node

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "typescript.md"


def test_the_page_is_what_the_declarations_say() -> None:
    program = SDK / "scripts" / "reference.mjs"
    done = subprocess.run([node(), program, "--print"], capture_output=True, text=True, timeout=LONGEST)

    assert done.returncode == 0, done.stderr
    assert PAGE.read_text() == done.stdout, "node sdks/typescript/scripts/reference.mjs"


def test_every_export_is_described() -> None:
    lines = PAGE.read_text().splitlines()

    assert [line for line in lines if line.startswith("| [`") and line.endswith("|  |")] == []
    headings = [number for number, line in enumerate(lines) if line.startswith("### ")]
    assert headings
    assert [lines[number] for number in headings if not lines[number + 2]] == []


def test_every_field_is_described() -> None:
    assert [line for line in PAGE.read_text().splitlines() if line.endswith("| – |")] == []
