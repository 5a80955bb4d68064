"""The witness: what was noted last is read back, whichever half of the file is torn; a link is not followed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.log.damage import CommitRecord, CommitRecordUnreadable, Statement, read_statement


def noted(path: Path, *statements: Statement) -> None:
    commit_record = CommitRecord(path)
    for statement in statements:
        commit_record.note(statement)
    commit_record.close()


def test_what_was_noted_last_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "commit_record"
    assert read_statement(path) is None

    noted(path, *(Statement(2, commits, 100) for commits in range(1, 8)))

    assert read_statement(path) == Statement(2, 7, 100)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_line_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "commit_record"
    noted(path, Statement(2, 1, 100), Statement(2, 2, 100))
    content = path.read_bytes()
    path.write_bytes(content[:180] + b"\0" * (len(content) - 180))

    assert read_statement(path) == Statement(2, 1, 100)


@given(garbage=st.binary(min_size=1, max_size=600))
def test_garbage_is_unreadable_and_never_believed(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(garbage)

    with pytest.raises(CommitRecordUnreadable):
        read_statement(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "commit_record").symlink_to(precious)

    with pytest.raises(OSError, match="symbolic links"):
        CommitRecord(tmp_path / "commit_record")
    assert precious.read_text() == "precious"
