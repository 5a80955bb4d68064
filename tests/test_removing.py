"""Trees deleted: contract, section 13."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from sandbox_agent.errors import ShuttingDown
from sandbox_agent.removing import DEEPEST, remove, remove_path


@pytest.fixture
def directory(tmp_path: Path) -> Generator[int]:
    directory = os.open(tmp_path, os.O_PATH)
    yield directory
    os.close(directory)


@pytest.mark.parametrize("depth", [1, DEEPEST - 1, DEEPEST, DEEPEST + 1, DEEPEST + 2, 3 * DEEPEST])
def test_a_tree_of_any_depth_goes_with_few_descriptors(directory: int, tmp_path: Path, depth: int) -> None:
    here = tmp_path / "tree"
    for level in range(depth):
        here /= f"d{level}"
        here.mkdir(parents=True)
        (here / "file").touch()
        (here / "empty").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    most: list[int] = []

    def stopped() -> bool:
        most.append(len(os.listdir("/proc/self/fd")))
        return False

    remove(directory, b"tree", stopped)
    assert os.listdir(tmp_path) == []
    assert max(most) - before <= 2 * DEEPEST + 5


def test_links_and_special_files_go_and_what_they_lead_to_stays(directory: int, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree" / "hard").hardlink_to(tmp_path / "kept" / "file")
    os.mkfifo(tmp_path / "tree" / "fifo")
    remove(directory, b"tree", lambda: False)
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"]


def test_it_can_be_stopped(directory: int, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    with pytest.raises(ShuttingDown):
        remove(directory, b"tree", lambda: True)
    assert (tmp_path / "tree" / "sub").exists()


def test_a_path_that_is_deeper_than_any_path_can_say_is_deleted(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(2500):
        os.mkdir("dd", dir_fd=here)
        below = os.open("dd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_path(tmp_path / "dd")
    assert os.listdir(tmp_path) == []
    remove_path(tmp_path / "dd")
    remove_path(tmp_path / "none" / "dd")
