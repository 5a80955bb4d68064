"""Who holds a data directory, and what is believed of what is found there."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sandbox_agent.data_directory import LOCK, NOTICE, Held, Notice, held, holder, notice, noticed
from sandbox_agent.processes.table import read

LOOKING = """
import sys
from pathlib import Path
from sandbox_agent.data_directory import holder
while True:
    holder(Path(sys.argv[1]))
"""


def mine(**changes: object) -> Notice:
    process = read(os.getpid())
    assert process is not None
    about = Notice(os.getpid(), process.start, "http://127.0.0.1:1", "1", "2026-01-31T12:00:00.000Z", None, False)
    return msgspec.structs.replace(about, **changes)


def leave(directory: Path, about: Notice) -> None:
    (directory / NOTICE).write_bytes(msgspec.json.encode(about))


def test_it_is_held_by_one_at_a_time_who_is_named(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(Held) as refused, held(tmp_path):
            pass
        assert refused.value.pid == os.getpid()
    assert holder(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()


def test_who_looks_does_not_keep_anybody_from_taking_it(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    process = subprocess.Popen([sys.executable, "-c", LOOKING, str(tmp_path)])
    try:
        for _ in range(200):
            with held(tmp_path):
                pass
    finally:
        process.kill()
        process.wait()


def test_what_a_server_says_is_there_as_long_as_it_runs(tmp_path: Path) -> None:
    with held(tmp_path):
        assert notice(tmp_path) is None
        with noticed(tmp_path, mine()):
            assert notice(tmp_path) == mine()
            assert (tmp_path / NOTICE).stat().st_mode & 0o777 == 0o600
        assert notice(tmp_path) is None
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_what_a_crash_has_left_is_not_believed(tmp_path: Path) -> None:
    leave(tmp_path, mine())
    # Nobody holds the directory.
    (tmp_path / LOCK).write_text(str(os.getpid()))
    assert notice(tmp_path) is None
    with held(tmp_path):
        # Somebody does, and the rest is true.
        assert notice(tmp_path) is not None
        # Another one has left it, or one who had the same process id.
        for change in ({"pid": 1}, {"process_start": 1}):
            leave(tmp_path, mine(**change))
            assert notice(tmp_path) is None
        for content in (b"", b"{}", b"\xff", b"[1]"):
            (tmp_path / NOTICE).write_bytes(content)
            assert notice(tmp_path) is None


def test_a_lock_without_a_number_is_held_by_somebody(tmp_path: Path) -> None:
    with held(tmp_path):
        (tmp_path / LOCK).write_text("")
        assert holder(tmp_path) == 0
        assert notice(tmp_path) is None


def test_a_notice_that_cannot_be_written_is_no_reason_to_end(tmp_path: Path) -> None:
    (tmp_path / NOTICE).mkdir()
    with held(tmp_path), noticed(tmp_path, mine()):
        assert notice(tmp_path) is None
