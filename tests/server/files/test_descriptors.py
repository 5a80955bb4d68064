"""Renaming, also without replacing; a file that takes its place when it is whole: contract, section 13."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.server.files.descriptors import Place
from sandboxagent.server.files.replace import Replacement, rename


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
def test_rename_of_a_missing_file_or_into_itself_raises(directory: int, tmp_path: Path, replace: bool) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        rename(directory, b"missing", directory, b"new", replace=replace)
    with pytest.raises(OSError, match="Invalid argument"):
        rename(directory, b"folder", directory, b"folder/inside", replace=replace)


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    directory = os.open(tmp_path, os.O_PATH)
    yield Place(directory, b"file", None)
    os.close(directory)


def test_nothing_is_seen_of_a_file_that_is_not_whole(place: Place, tmp_path: Path) -> None:
    file = Replacement(place)
    file.write(b"half")
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".sandbox-agent-")] == []
    file.close()
    assert os.listdir(tmp_path) == []


def test_what_others_made_meanwhile_is_replaced_unless_it_must_be_new(place: Place, tmp_path: Path) -> None:
    file = Replacement(place)
    file.write(b"ours")
    (tmp_path / "file").write_text("theirs")
    with pytest.raises(FileExistsError):
        file.commit(new=True)
    assert (tmp_path / "file").read_text() == "theirs"
    facts = file.commit()
    file.close()
    assert (tmp_path / "file").read_text() == "ours"
    assert (tmp_path / "file").stat().st_ino == facts.st_ino
    assert os.listdir(tmp_path) == ["file"]


def test_a_check_that_raises_changes_nothing(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs")
    file = Replacement(place)

    def check(old: os.stat_result | None) -> None:
        assert old is not None
        raise KeyError(old.st_size)

    with pytest.raises(KeyError, match="6"):
        file.commit(check)
    file.close()
    assert (tmp_path / "file").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["file"]


def test_a_new_file_has_the_mode_of_any_other(place: Place, tmp_path: Path) -> None:
    file = Replacement(place)
    file.commit(new=True)
    file.close()
    (tmp_path / "other").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
