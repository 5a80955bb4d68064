"""Searching: what is found, what is not, and that a path turned elsewhere tells nothing."""

import json
import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import BadRequest
from sandboxagent.protocol.files import Match
from sandboxagent.server.files.confined import Confined, Outside
from sandboxagent.server.files.roots import encode_name
from sandboxagent.server.files.search import MAX_LINE, Query, Search, SearchLimits
from sandboxagent.server.processes.children import OWNER, ProcessTrees
from tests.support.client import run

POOL = Pool("test", 4)


def search(root: Path, *, at: str = "", limits: SearchLimits | None = None, **query: object) -> tuple[list[Match], str]:
    """What is found, by path and line, and why there may be more."""

    async def main() -> tuple[list[Match], str]:
        asked = Query(**{"text": None, "name": None} | query)  # type: ignore[arg-type]
        searched = Search(Confined([str(root)]), f"{root}{at}", asked, limits or SearchLimits(), POOL)
        found = [match async for batch in searched.run(ProcessTrees(secrets.token_hex(8))) for match in batch]
        found.sort(key=lambda match: (match.path, match.line or 0))
        return found, searched.reason or ""

    return run(main())


def names(root: Path, **query: object) -> list[str]:
    return [match.path.removeprefix(f"{root}/") for match in search(root, **query)[0]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src/deep").mkdir(parents=True)
    (root / "src/one.py").write_text("first\nsays Hello, hello\n")
    (root / "src/deep/two.txt").write_text("hello\n")
    (root / ".gitignore").write_text("build/\n")
    (root / "build").mkdir()
    (root / "build/made.py").write_text("hello\n")
    (root / ".hidden").write_text("hello\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.py").write_text("hello secret\n")
    (root / "link").symlink_to("../outside")
    (root / "secret.py").symlink_to("../outside/secret.py")
    return root


def test_a_text_is_found_with_line_and_column(root: Path) -> None:
    found, reason = search(root, text="hello", case="sensitive")
    assert found == [
        Match(f"{root}/src/deep/two.txt", 1, 1, "hello"),
        Match(f"{root}/src/one.py", 2, 13, "says Hello, hello"),
    ]
    assert reason == ""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"text": "hello"}, ["src/deep/two.txt", "src/one.py"]),
        ({"text": "Hello"}, ["src/one.py"]),
        ({"text": "Hello", "case": "ignore"}, ["src/deep/two.txt", "src/one.py"]),
        ({"text": "h.llo"}, []),
        ({"text": "^h.llo$", "regex": True}, ["src/deep/two.txt"]),
        ({"text": "hello", "name": "*.py"}, ["src/one.py"]),
        ({"text": "hello", "hidden": True}, [".hidden", "src/deep/two.txt", "src/one.py"]),
        ({"text": "hello", "ignored": True}, ["build/made.py", "src/deep/two.txt", "src/one.py"]),
        ({"text": "secret"}, []),
        ({"text": "--files"}, []),
        ({"name": "*.py"}, ["src/one.py"]),
        ({"name": "TWO"}, ["src/deep/two.txt"]),
        ({"name": "src/**"}, ["src/deep/two.txt", "src/one.py"]),
        ({"name": "made", "ignored": True}, ["build/made.py"]),
        ({"name": "-x"}, []),
    ],
)
def test_what_is_asked_for_is_found_and_nothing_else(root: Path, query: dict[str, object], expected: list[str]) -> None:
    assert names(root, **query) == expected


def test_names_that_are_odd_are_found(root: Path) -> None:
    for name in (b"caf\xe9", b"new\nline", b"quote\"'"):
        Path(os.fsdecode(bytes(root) + b"/" + name)).write_text("needle\n")
    expected = sorted(encode_name(os.fsdecode(name)) for name in (b"caf\xe9", b"new\nline", b"quote\"'"))
    assert names(root, text="needle") == expected
    assert set(expected) <= set(names(root, name="*"))
    for name in expected:
        assert names(root, name=name) == [name]


def test_lines_that_are_not_text_or_very_long_are_sent_in_part(root: Path) -> None:
    (root / "latin").write_bytes(b"caf\xe9 needle\n")
    (root / "long").write_text("x" * 50_000 + "needle" + "y" * 50_000 + "\n")
    (root / "huge").write_text("x" * 3_000_000 + "needle\n")
    found, reason = search(root, text="needle")
    by_name = {Path(match.path).name: match for match in found}
    assert by_name["latin"].text == "caf\ufffd needle"
    long = by_name["long"]
    assert long.text is not None
    assert (long.column, long.textTruncated, len(str(long.text))) == (50_001, True, MAX_LINE)
    assert "needle" in str(long.text)
    assert "huge" not in by_name
    assert reason == "lines"


def test_there_are_limits_on_results_bytes_and_time(root: Path) -> None:
    (root / "many").write_text("needle\n" * 5000)
    found, reason = search(root, text="needle", limits=SearchLimits(results=10))
    assert (len(found), reason) == (10, "results")
    found, reason = search(root, text="needle", limits=SearchLimits(results=10_000, bytes=1000))
    assert len(found) < 5000
    assert reason == "bytes"
    _, reason = search(root, text="needle", limits=SearchLimits(seconds=0.000001))
    assert reason == "time"
    assert search(root, text="needle", limits=SearchLimits(results=5000))[1] == ""


def test_time_counts_also_while_nothing_that_comes_is_wanted(root: Path) -> None:
    (root / "many").write_text("needle\n" * 500_000)
    limits = SearchLimits(results=1_000_000, seconds=0.1)
    assert search(root, text="needle", name="other", limits=limits) == ([], "time")


@pytest.mark.parametrize("text", ["(", "[z-a]", "a{9999999}", "(?P<n>", "\\"])
def test_a_pattern_that_is_none_is_refused_with_the_reason(root: Path, text: str) -> None:
    with pytest.raises(BadRequest, match="ripgrep"):
        search(root, text=text, regex=True)


def test_a_directory_that_is_none_or_outside_is_an_error(root: Path) -> None:
    for at, error in [
        ("/none", FileNotFoundError),
        ("/src/one.py", NotADirectoryError),
        ("/link", Outside),
        ("/../outside", Outside),
    ]:
        with pytest.raises(error):
            search(root, at=at, text="x")


def test_ripgrep_ends_when_its_reader_stops(root: Path) -> None:
    (root / "many").write_text("needle\n" * 200_000)

    async def main() -> None:
        owner = secrets.token_hex(8)
        limits = SearchLimits(results=1_000_000)
        batches = Search(Confined([str(root)]), str(root), Query("needle", None), limits, POOL).run(ProcessTrees(owner))
        await anext(batches)
        assert _processes_of(owner)
        await batches.aclose()
        assert not _processes_of(owner)

    run(main())


def test_a_folder_that_becomes_a_link_tells_nothing(root: Path) -> None:
    """In a loop: an attacker exchanges a directory for a link that leads out, while ripgrep is on its way."""
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            with suppress(OSError):
                (root / "src").rename(root / "was")
                (root / "src").symlink_to("../outside")
            with suppress(OSError):
                (root / "src").unlink()
                (root / "was").rename(root / "src")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(15):
            found, _ = search(root, text="hello")
            assert not [match for match in found if "secret" in json.dumps([match.path, str(match.text)])]
    finally:
        over.set()
        swapping.join()


def _processes_of(owner: str) -> list[str]:
    """The process ids of what this owner's children started. Other tests and agents search at the same time."""
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and f"{OWNER}={owner}" in _environment(pid)]


def _environment(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return []
