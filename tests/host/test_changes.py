"""Moving and deleting, while others do the same: contract, section 13."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox_agent.errors import ShuttingDown
from sandbox_agent.file_errors import FileConflict, FileNotFound, FileProblem, OutsideRoots
from sandbox_agent.host.paths.roots import Roots
from sandbox_agent.host.transfer.changes import delete, make_directory, move
from tests.support.running import BOUND
from tests.support.swapping import exchange, swapping

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


def test_deleting_and_moving_through_a_directory_that_becomes_a_link_reaches_nothing_outside(
    roots: Roots, root: Path
) -> None:
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
