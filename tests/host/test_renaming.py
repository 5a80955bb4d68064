"""rename(2), also without replacing."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from sandbox_agent.host.paths.nodes import rename


@pytest.fixture
def directory(tmp_path: Path) -> Generator[int]:
    directory = os.open(tmp_path, os.O_PATH)
    yield directory
    os.close(directory)


def test_what_is_there_is_replaced_only_when_that_is_meant(directory: int, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    (tmp_path / "two").write_text("two")
    with pytest.raises(FileExistsError):
        rename(directory, b"one", directory, b"two", replace=False)
    assert (tmp_path / "two").read_text() == "two"
    rename(directory, b"one", directory, b"two", replace=True)
    rename(directory, b"two", directory, b"three\xff", replace=False)
    assert os.listdir(os.fsencode(tmp_path)) == [b"three\xff"]


@pytest.mark.parametrize("replace", [False, True])
def test_what_is_missing_and_what_cannot_be_is_said(directory: int, tmp_path: Path, replace: bool) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        rename(directory, b"missing", directory, b"new", replace=replace)
    with pytest.raises(OSError, match="Invalid argument"):
        rename(directory, b"folder", directory, b"folder/inside", replace=replace)
