"""What the pages show works: programs run, shell lines run in one terminal, files are what they claim to be."""

import ast
import json
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from sandboxagent.server.agents.manifest import load_manifest
from sandboxagent.server.permissions.file import load_rules
from tests.docs.pages import name_of, pages
from tests.docs.props import PROPS
from tests.docs.snippets import Block, blocks, blocks_of, joined, programs, short
from tests.docs.stage import Stage, stage
from tests.support.fork_server import fork_server

PROGRAMS = {"sh", "python", "typescript"}
FILES = {"json", "toml", "yaml", "dockerfile", "nginx", "caddyfile", "ini", "html"}
SIGNATURES = {"pyi", "dts"}
"""Those of TypeScript are written by its compiler."""
WALKS = {"walk"}
"""Of architecture.md: `tests/test_walks.py` looks at them."""
KNOWN = {"", *PROGRAMS, *FILES, *SIGNATURES, *WALKS}
MARKS = ("", "continues", "run")
SKIPPED = {
    "docs/architecture.md": 1,
    "docs/acp.md": 4,
    "README.md": 3,
    "RELEASING.md": 2,
    "docs/deployment.md": 3,
    "docs/files.md": 1,
    "docs/fleet.md": 9,
    "docs/guides/chat-app.md": 1,
    "docs/guides/http.md": 1,
    "docs/guides/keys-per-tenant.md": 1,
    "docs/guides/model-gateways.md": 2,
    "docs/guides/python.md": 2,
    "docs/guides/terminal.md": 2,
    "docs/guides/troubleshooting.md": 1,
    "docs/guides/typescript.md": 2,
    "docs/inspector.md": 2,
    "docs/opencode.md": 3,
    "docs/quickstart.md": 3,
    "examples/README.md": 1,
    "sdks/typescript/README.md": 1,
}
"""How many blocks of each page are not run. One more is a decision, not an accident."""

RUNNER = Path(__file__).with_name("python_snippet.py")


def of(language: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", blocks(language), ids=str)


# --- all of them ------------------------------------------------------------------------------------------------------


def test_every_block_is_in_a_language_that_is_looked_at() -> None:
    assert [str(block) for block in blocks() if block.language not in KNOWN] == []


def test_every_mark_is_understood_and_every_skip_has_a_reason() -> None:
    marks = {str(block): block.mark for block in blocks() if block.skipped is None and block.mark not in MARKS}
    reasons = {str(block): block.skipped for block in blocks() if block.skipped is not None}

    assert marks == {}
    assert {where: why for where, why in reasons.items() if len(why.split()) < 3} == {}


def test_no_more_blocks_are_skipped_than_was_decided() -> None:
    assert dict(Counter(name_of(block.page) for block in blocks() if block.skipped is not None)) == SKIPPED


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[Stage]:
    """A server for all programs of a worker; each has directories of its own."""
    with stage() as opened:
        yield opened


@pytest.mark.parametrize("program", programs("python"), ids=lambda program: str(program[0]))
def test_a_python_program_runs(program: list[Block], shared: Stage) -> None:
    page = program[0].page
    here = Stage(shared.server, shared.directory / f"{short(page)}-{program[0].line}")
    PROPS.get(name_of(page), lambda stage: None)(here)
    file = here.put("snippet.py", here.filled_in(joined(program)))
    done = here.run(*fork_server().python, str(RUNNER), str(file), str(page))

    assert done.returncode == 0, done.stderr + done.stdout


@of("python")
def test_a_python_block_is_python(block: Block) -> None:
    compile(block.in_place, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def test_every_signature_is_python() -> None:
    for block in blocks("pyi"):
        is_function = block.code.startswith(("def ", "async def "))
        compile(f"{block.in_place.rstrip()}: ..." if is_function else block.in_place, str(block.page), "exec")


@pytest.mark.parametrize("page", [page for page in pages() if blocks_of(page, "sh")], ids=name_of)
def test_the_shell_lines_of_a_page_run_one_after_another(page: Path, shared: Stage) -> None:
    script = [block for block in blocks_of(page, "sh") if block.skipped is None]
    if not script:
        return
    here = Stage(shared.server, shared.directory / f"{short(page)}-shell")
    PROPS.get(name_of(page), lambda stage: None)(here)
    file = here.put(page.name, here.filled_in(joined(script)))
    done = here.run("bash", "-e", "-o", "pipefail", str(file))

    assert done.returncode == 0, done.stderr + done.stdout
    assert "urn:sandbox-agent:error:" not in done.stdout, done.stdout


@of("sh")
def test_a_shell_block_is_a_shells(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr


# --- files ------------------------------------------------------------------------------------------------------------


def test_every_json_block_is_json() -> None:
    for block in blocks("json"):
        try:
            json.loads(block.code)
        except ValueError as error:
            pytest.fail(f"{block}: {error}")


FRAMES = [block for block in blocks("html") if not block.code.startswith("<!doctype html>")]
"""Parts of pages. A whole page is tried in a browser (`tests/browser/test_chat_app.py`)."""


@pytest.mark.parametrize("block", FRAMES, ids=str)
def test_an_html_block_shows_a_page_of_the_inspector_in_a_frame(block: Block) -> None:
    frames: list[dict[str, str | None]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag == "iframe"
            frames.append(dict(attrs))

    Reader().feed(block.code)
    [frame] = frames
    assert frame["title"]
    assert "/ui/embed/" in (frame["src"] or "")


@of("toml")
def test_a_toml_block_is_what_the_server_reads(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(block.code)
    readers: dict[str, Callable[[Path], object]] = {"agents": load_manifest, "rules": load_rules}
    keys = list(tomllib.loads(block.code))

    assert len(keys) == 1, "a block is one kind of file"
    readers[keys[0]](file)


@of("yaml")
def test_a_yaml_block_is_yaml(block: Block) -> None:
    assert list(yaml.safe_load_all(block.code))
