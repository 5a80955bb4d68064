"""A folder that is run from is not removed, and one that is being removed is not run from; also between processes."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sandbox_agent.agents.launch import IN_USE, REMOVED, FolderGone, FolderLock, Launch, remove_unused

HOLDER = """
import sys
from pathlib import Path
from sandbox_agent.agents.launch import FolderLock
held = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "1-abc"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "program").write_text("x")
    return folder


def test_a_program_is_searched_for_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "it"
    program.write_text("#!/bin/sh\n")
    assert Launch(("it",)).program(str(tmp_path)) is None, "it is not executable"

    program.chmod(0o755)

    assert Launch(("it", "acp")).program(str(tmp_path)) == str(program)
    assert Launch((str(program),)).program("") == str(program)


def test_values_of_the_environment_are_not_in_the_representation() -> None:
    assert "hush" not in repr(Launch(("it",), {"KEY": "hush"}))


def test_a_folder_that_is_held_is_not_removed(folder: Path) -> None:
    held = [Launch(("it",), folder=folder).lock_folder() for _ in range(2)]

    remove_unused(folder)
    assert folder.is_dir()

    held[0].release()
    held[0].release()
    remove_unused(folder)
    assert folder.is_dir(), "one is still there"

    held[1].release()
    remove_unused(folder)
    assert list(folder.parent.iterdir()) == []


def test_a_folder_that_another_process_holds_is_not_removed_until_that_has_ended(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        remove_unused(folder)
        assert (folder / "bin" / "program").is_file()
        other.kill()

    remove_unused(folder)
    assert not folder.exists()


def test_a_folder_that_is_gone_cannot_be_held(folder: Path) -> None:
    remove_unused(folder)

    with pytest.raises(FolderGone):
        FolderLock(folder)


def test_a_folder_that_is_being_removed_cannot_be_held(folder: Path) -> None:
    mark = os.open(folder / IN_USE, os.O_RDONLY | os.O_CREAT)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(FolderGone):
            FolderLock(folder)
    finally:
        os.close(mark)


def test_no_folder_needs_no_hold() -> None:
    Launch(("it",)).lock_folder().release()


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder where not even root may create a file")
def test_a_folder_that_we_may_not_write_can_be_run_from() -> None:
    FolderLock(Path("/sys")).release()


def test_whoever_gets_a_hold_finds_the_folder_whole_however_removal_and_start_race(tmp_path: Path) -> None:
    for number in range(200):
        folder = tmp_path / f"{number}-abc"
        folder.mkdir()
        (folder / "program").write_text("x")
        barrier = threading.Barrier(2)

        def remove(folder: Path = folder, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            remove_unused(folder)

        remover = threading.Thread(target=remove)
        remover.start()
        barrier.wait()
        try:
            held = FolderLock(folder)
        except FolderGone:
            remover.join()
            assert not folder.exists()
        else:
            remover.join()
            assert (folder / "program").read_text() == "x"
            held.release()
        remover.join()

    assert not any(path.name.startswith(REMOVED) for path in tmp_path.iterdir())
