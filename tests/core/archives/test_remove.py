"""Trees deleted: contract, section 13."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.core.archives.remove import MAX_DEPTH, discard, remove
from sandboxagent.protocol.errors import ShuttingDown


@pytest.fixture
def directory(tmp_path: Path) -> Generator[int]:
    directory = os.open(tmp_path, os.O_PATH)
    yield directory
    os.close(directory)


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, 3 * MAX_DEPTH])
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
    assert max(most) - before <= 2 * MAX_DEPTH + 5


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


def deep_tree(top: Path, levels: int) -> None:
    """Deeper than a path can be long."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_discarding_takes_a_tree_that_is_deeper_than_recursion_reaches(tmp_path: Path) -> None:
    deep_tree(tmp_path / "tree", 3000)

    discard(tmp_path / "tree")

    assert os.listdir(tmp_path) == []


def test_discarding_leaves_what_it_cannot_delete_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep_tree(tmp_path / "tree", 2 * MAX_DEPTH)
    (tmp_path / "tree" / "a" / "kept").mkdir(parents=True)
    (tmp_path / "tree" / "z").touch()
    # Not even root deletes a directory that something is mounted on.
    mounted = tmp_path / "tree" / "a" / "kept"
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], capture_output=True).returncode != 0:
        pytest.skip("needs to mount something that cannot be deleted")
    try:
        discard(tmp_path / "tree")
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["tree", "tree/a", "tree/a/kept"]
        assert f"not deleted path={tmp_path / 'tree'} reason=" in caplog.text
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_discarding_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")

    discard(tmp_path / "link")

    assert os.listdir(tmp_path) == ["kept"]


def test_discarding_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    discard(tmp_path / "absent" / "tree")
    discard(tmp_path / "tree")
