"""What clients see of a directory, however large; moving and deleting, while others do so: contract, section 13."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import BadPath, FileConflict, FileNotFound, FileProblem, OutsideRoots, ShuttingDown
from sandboxagent.server.files.changes import delete, make_directory, move
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.entries import read_entry, read_page
from sandboxagent.server.files.roots import Roots
from tests.support.running import BOUND
from tests.support.swapping import exchange, swapping

HUGE = """
import os, resource, sys
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.entries import read_page
confined = Confined([sys.argv[1]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = read_page(confined, sys.argv[1], None, 3)
second = read_page(confined, sys.argv[1], first.next_cursor, 3)
assert [entry.name for entry in first.entries + second.entries] == [f"n{number:06}" for number in range(6)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_page_of_a_huge_directory_takes_the_memory_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "n000000").touch()
    for number in range(1, 50_000):
        # Links of one file: a name for each is all that matters.
        target = tmp_path / "n000000" if number % 30_000 else tmp_path / "second"
        target.touch()
        os.link(target, tmp_path / f"n{number:06}")
    result = subprocess.run([sys.executable, "-c", HUGE, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 2 * 1024, "KiB that it took"


def test_times_that_no_calendar_has_are_shown_as_the_last_it_has(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    confined = Confined([str(tmp_path)])
    for nanoseconds in (-(1 << 62), 1 << 62, 0, -1):
        os.utime(tmp_path / "file", ns=(0, nanoseconds))
        assert read_entry(confined, str(tmp_path / "file")).modified.endswith("Z")


def test_what_goes_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    confined = Confined([str(tmp_path)])
    assert read_page(confined, str(tmp_path), None, 10).entries == []
    with pytest.raises(FileNotFound):
        read_page(confined, str(tmp_path / "gone"), None, 10)
    with pytest.raises(BadPath):
        read_page(confined, str(tmp_path), "not base64!", 10)


def test_the_root_has_a_name() -> None:
    assert read_entry(Confined(["/"]), "/").name == "/"


ROUNDS = 400


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    return tmp_path / "root"


@pytest.fixture
def roots(root: Path) -> Roots:
    return Roots([str(root)], "/")


def never() -> bool:
    return False


def test_changes_through_a_directory_that_becomes_a_link_stay_inside(roots: Roots, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "evil").symlink_to("../outside")
    seen: set[type] = set()
    with swapping(exchange(root / "sub", root / "evil")):
        for turn in range(ROUNDS):
            for work in (
                lambda: delete(roots, f"{root}/sub/file", recursive=True, stopped=never),
                lambda turn=turn: move(roots, f"{root}/sub/file", f"{root}/{turn}", overwrite=True, stopped=never),
                lambda: move(roots, f"{root}/missing", f"{root}/sub/file", overwrite=True, stopped=never),
                lambda turn=turn: make_directory(roots, f"{root}/sub/{turn}"),
            ):
                try:
                    work()
                    seen.add(type(None))
                except FileProblem as error:
                    seen.add(type(error))
    assert {OutsideRoots, FileNotFound} <= seen
    assert os.listdir(root.parent / "outside") == ["file"]


def test_of_movers_to_one_name_one_wins_and_nothing_is_lost(roots: Roots, root: Path) -> None:
    for turn in range(30):
        results: list[str] = []
        for each in range(4):
            (root / f"{turn}-{each}").write_text(str(each))

        def go(each: int, turn: int = turn, results: list[str] = results) -> None:
            try:
                move(roots, f"{root}/{turn}-{each}", f"{root}/{turn}", overwrite=False, stopped=never)
                results.append("moved")
            except FileConflict:
                results.append("refused")

        threads = [threading.Thread(target=go, args=[each]) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
        assert sorted(results) == ["moved", "refused", "refused", "refused"]
        assert len(list(root.glob(f"{turn}*"))) == 4
        for left in root.glob(f"{turn}*"):
            left.unlink()


def test_two_may_delete_the_same_tree(roots: Roots, root: Path) -> None:
    for _ in range(20):
        for number in range(20):
            (root / "tree" / f"sub{number}" / "deep").mkdir(parents=True)

        def go() -> None:
            with suppress(FileNotFound):
                delete(roots, str(root / "tree"), recursive=True, stopped=never)

        threads = [threading.Thread(target=go) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
        assert os.listdir(root) == []


def test_a_tree_that_another_process_fills_is_deleted_or_said_to_be_full(roots: Roots, root: Path) -> None:
    (root / "tree").mkdir()
    stop = threading.Event()

    def fill() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(OSError):
                (root / "tree" / str(number)).touch()

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        with suppress(FileConflict):
            delete(roots, str(root / "tree"), recursive=True, stopped=never)
    finally:
        stop.set()
        filler.join(BOUND)


def test_what_takes_long_ends_with_the_server(roots: Roots, root: Path) -> None:
    for number in range(10):
        (root / "tree" / str(number)).mkdir(parents=True)
    roots.close()
    with pytest.raises(ShuttingDown):
        delete(roots, str(root / "tree"), recursive=True, stopped=roots.stopped)


def test_many_may_make_the_same_directory(roots: Roots, root: Path) -> None:
    failed: list[FileProblem] = []

    def go(turn: int) -> None:
        try:
            make_directory(roots, f"{root}/{turn}/a/b/c")
        except FileProblem as error:
            failed.append(error)

    for turn in range(30):
        threads = [threading.Thread(target=go, args=[turn]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
    assert failed == []
