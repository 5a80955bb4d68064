"""The site of the docs: the pages of the repository, laid out for Zensical, which makes HTML of them.

The pages are written for readers of the repository, so their links lead to its files. On the site the pages lie
elsewhere, and a link to a program leads to a page that shows it. The site loads nothing from another host, and works
from a folder, search included.
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
    "benchmarks": "benchmarks/index.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "examples": "examples/index.md",
    "examples/README.md": "examples/index.md",
    "sdks/typescript/README.md": "typescript-package.md",
}
"""Where files of the repository are on the site. The rest of docs/ is at its top; everything else keeps its path."""
LANGUAGES = {"dts": "typescript", "caddyfile": "text", "walk": "text"}
"""Names of languages that the highlighter knows by another name, or not at all."""
SHOWN = {".py": "python", ".ts": "typescript", ".html": "html", ".toml": "toml", "": "text"}
"""Files that get a page of their own when a page links to them."""

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FILE_NAME = re.compile(r"`?[\w./-]+\.md`?")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def place_of(file: Path) -> Path | None:
    """Where a file of the repository is on the site; None when the site does not have it."""
    name = file.relative_to(ROOT).as_posix()
    if name in PAGES:
        return Path(PAGES[name])
    if name.startswith("docs/"):
        return file.relative_to(ROOT / "docs")
    if file.suffix in (".md", ".svg"):
        return Path(name)
    return Path(f"{name}.md") if file.is_file() and file.suffix in SHOWN else None


def lay_out(directory: Path) -> None:
    """Write the configuration, and all pages with what they link to. Files that are right already stay untouched."""
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
    """A page as the site needs it, and the files that it links to."""
    linked: list[Path] = []

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if "://" in target:
            return link[0]
        meant = (file.parent / target).resolve()
        there = place_of(meant) if meant.is_relative_to(ROOT) else None
        if there is None or not meant.exists():
            return link[0]  # The build complains about it.
        source = _source_of(meant, there)
        linked.append(source)
        if _FILE_NAME.fullmatch(words) and (title := _TITLE.search(source.read_text())):
            words = title[1]  # In the repository a page is called by its file.
        return f"[{words}]({relpath(there, place.parent)}{anchor or ''})"

    text = "".join(
        _renamed(part) if is_fence else _LINK.sub(moved, part) for is_fence, part in _parts(file.read_text())
    )
    return text, linked


def build(directory: Path) -> subprocess.CompletedProcess[str]:
    """Make the site, in `site` of a directory where the pages are laid out. A link that leads nowhere is a failure."""
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _source_of(file: Path, place: Path) -> Path:
    """The file that a page is made of: a folder stands for its page, the front page for that of the docs."""
    if place == Path("index.md"):
        return ROOT / "docs" / "README.md"
    return file / "README.md" if file.is_dir() else file


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """A text in pieces: those that are fenced, and those that are not."""
    end = 0
    for fence in _FENCE.finditer(text):
        yield False, text[end : fence.start()]
        yield True, fence[0]
        end = fence.end()
    yield False, text[end:]


def _renamed(fence: str) -> str:
    # Words behind the language are for our tests; the site would take the fence for a line of text.
    return re.sub(r"^( *```)(\w+)[^\n]*", lambda match: match[1] + LANGUAGES.get(match[2], match[2]), fence, count=1)


def _shown(file: Path) -> str:
    """A page that shows a file."""
    name = file.relative_to(ROOT).as_posix()
    return f"# {name}\n\n````{SHOWN[file.suffix]}\n{file.read_text().rstrip()}\n````\n"


def _put(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def clear(directory: Path) -> None:
    """Remove what an earlier run laid out."""
    shutil.rmtree(directory, ignore_errors=True)
