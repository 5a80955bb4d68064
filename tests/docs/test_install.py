"""One story of how to install: every page names the same files and the extras that there are."""

import re
import tomllib

from sandboxagent import __version__
from tests.docs.pages import DOCS, ROOT, name_of
from tests.docs.snippets import blocks

WHEEL, TARBALL = f"dist/sandboxagent-{__version__}-py3-none-any.whl", f"dist/sandboxagent-{__version__}.tgz"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ELSEWHERE = {"RELEASING.md"}
"""It publishes: there, packages come from an index."""


def installed() -> dict[str, set[str]]:
    """What pages install of ours, by page."""
    found: dict[str, set[str]] = {}
    for block in blocks("sh"):
        for words in re.findall(r"^\s*(?:pip|npm) install (.*?)(?:\s{2,}#.*)?$", block.code, re.MULTILINE):
            ours = {word.strip("'\"") for word in words.split() if re.search("sandbox-?agent|^'?[.]", word)}
            if ours and name_of(block.page) not in ELSEWHERE:
                found.setdefault(name_of(block.page), set()).update(ours)
    return found


def test_every_page_installs_the_files_that_dev_pack_makes() -> None:
    allowed = {WHEEL, TARBALL, *(f"{WHEEL}[{extra}]" for extra in EXTRAS)}
    found = installed()

    assert {page: files - allowed for page, files in found.items() if files - allowed} == {}
    assert {"README.md", "docs/quickstart.md", "docs/guides/python.md", "docs/guides/typescript.md"} <= set(found)


def test_readme_and_quickstart_have_the_same_first_lines() -> None:
    first = {name_of(block.page): block.code for block in reversed(blocks("sh"))}

    assert first["README.md"] == first["docs/quickstart.md"]
    assert WHEEL in first["README.md"]


def test_the_quickstart_says_which_extra_when() -> None:
    text = (DOCS / "quickstart.md").read_text()
    table = re.findall(r"^\| [^|]+ \| `\[(\w+)\]` \| ", text, re.MULTILINE)

    assert sorted(table) == sorted(EXTRAS)
    assert "sandboxagent[terminal,websocket]" in EXTRAS["server"], "`[server]` has all of both"
    assert any(each.startswith("sandboxagent[server") for each in EXTRAS["fleet"]), "`[fleet]` has all of `[server]`"
