"""Lay out the pages of the repository as a site of docs, and build it with Zensical.

The pages are written for readers of the repository, so their links lead to files of the repository. On the site, pages
have other paths, and a link to a program leads to a page that shows the program. The site loads nothing from another
host. It works from a folder, search included.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

PAGES = {
    "docs/README.md": "index.md",
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.md",
    "RELEASING.md": "releasing.md",
    "benchmarks": "benchmarks/index.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "examples": "examples/index.md",
    "examples/README.md": "examples/index.md",
    "sdks/typescript/README.md": "typescript-package.md",
}
"""Paths of files of the repository on the site. Other files of docs/ go to its top; all others keep their path."""
LANGUAGES = {"dts": "typescript", "caddyfile": "text", "walk": "text"}
"""The highlighter's names for languages that it knows by another name, or not at all."""
SHOWN = {".py": "python", ".ts": "typescript", ".html": "html", ".toml": "toml", "": "text"}
"""Kinds of files that get a page of their own if a page links to them, with their languages."""

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FILE_NAME = re.compile(r"`?[\w./-]+\.md`?")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def place_of(file: Path) -> Path | None:
    """Return the path of a repository's file on the site; None when it is not on the site."""
    name = file.relative_to(ROOT).as_posix()
    if name in PAGES:
        return Path(PAGES[name])
    if name.startswith("docs/"):
        return file.relative_to(ROOT / "docs")
    if file.suffix in (".md", ".svg"):
        return Path(name)
    return Path(f"{name}.md") if file.is_file() and file.suffix in SHOWN else None


def lay_out(directory: Path) -> None:
    """Write the configuration, all pages and the files that they link to. Unchanged files are not written again."""
    _put(directory / "zensical.toml", (HERE / "zensical.toml").read_bytes())
    pages = directory / "pages"
    for asset in (HERE / "assets").iterdir():
        _put(pages / "assets" / asset.name, asset.read_bytes())
    seen: set[Path] = set()
    waiting = [ROOT / "docs" / "README.md"]
    while waiting:
        file = waiting.pop()
        place = place_of(file)
        if place is None or place in seen:
            continue
        seen.add(place)
        if file.suffix == ".md":
            text, linked = page_of(file, place)
            waiting += linked
            _put(pages / place, text.encode())
        elif place.suffix == ".md":
            _put(pages / place, _shown(file).encode())
        else:
            _put(pages / place, file.read_bytes())


def page_of(file: Path, place: Path) -> tuple[str, list[Path]]:
    """Return a page as the site needs it, and the files that it links to."""
    linked: list[Path] = []

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if "://" in target:
            return link[0]
        meant = (file.parent / target).resolve()
        there = place_of(meant) if meant.is_relative_to(ROOT) else None
        if there is None or not meant.exists():
            return link[0]  # The build reports the broken link.
        source = _source_of(meant, there)
        linked.append(source)
        if _FILE_NAME.fullmatch(words) and (title := _TITLE.search(source.read_text())):
            words = title[1]  # In the repository, a link to a page has the name of its file.
        return f"[{words}]({relpath(there, place.parent)}{anchor or ''})"

    text = "".join(
        _renamed(part) if is_fence else _LINK.sub(moved, part) for is_fence, part in _parts(file.read_text())
    )
    return text, linked


def build(directory: Path) -> subprocess.CompletedProcess[str]:
    """Build the site, into `site` of a directory with laid out pages. A broken link is a failure."""
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _source_of(file: Path, place: Path) -> Path:
    """Return the source of a page: a folder's README, and for the front page that of docs/."""
    if place == Path("index.md"):
        return ROOT / "docs" / "README.md"
    return file / "README.md" if file.is_dir() else file


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Split a text into fenced blocks and the parts between them."""
    end = 0
    for fence in _FENCE.finditer(text):
        yield False, text[end : fence.start()]
        yield True, fence[0]
        end = fence.end()
    yield False, text[end:]


def _renamed(fence: str) -> str:
    # Text after the language is for our tests. With it, the site would show the fence as a line of text.
    return re.sub(r"^( *```)(\w+)[^\n]*", lambda match: match[1] + LANGUAGES.get(match[2], match[2]), fence, count=1)


def _shown(file: Path) -> str:
    """Make a page that shows a file."""
    name = file.relative_to(ROOT).as_posix()
    return f"# {name}\n\n````{SHOWN[file.suffix]}\n{file.read_text().rstrip()}\n````\n"


def _put(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def clear(directory: Path) -> None:
    """Remove the directory of an earlier run."""
    shutil.rmtree(directory, ignore_errors=True)
