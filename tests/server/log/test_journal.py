"""The file of the journal: what was written there is read back, wherever it was cut, and nothing that is older."""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.server.log.damage import CommitRecord, Statement, read_statement, read_tallies
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.log.journal import HALF_BYTES, Group, Half, Journal, open_journal, read_journal
from sandboxagent.server.log.recovery import open_database
from sandboxagent.server.log.session_index import IndexEntry

HEAD = struct.Struct("<QIII")


def chunk(first: int, *lines: bytes) -> Chunk:
    return Chunk(first, list(lines) or [b"{}"], Direction.FROM_AGENT, "s", session_channel("s"), 1.5, "tag", request=7)


def group(first: int) -> Group:
    return Group([chunk(first)], {"s": b"%d" % first})


@contextmanager
def opened(directory: Path) -> Iterator[Journal]:
    commit_record = CommitRecord(directory / "commit_record")
    commit_record.note(Statement(2, 0, 0))
    journal = Journal(directory / "journal", commit_record)
    yield journal
    journal.close()
    commit_record.close()


def written(directory: Path, *transactions: tuple[int, list[Group]]) -> Path:
    with opened(directory) as journal:
        for number, groups in transactions:
            assert journal.begin(number, groups[0])
            assert all(journal.append(each) for each in groups[1:])
    return directory / "journal"


def test_a_record_has_all_of_a_group(tmp_path: Path) -> None:
    entry = IndexEntry("s", "mock", "s", None, "/", "holder", 1.0, None)
    outcomes = {("scope", "key"): (b"digest", b"answer"), ("scope", "begun"): (b"digest", None), ("scope", "x"): None}
    whole = Group([chunk(3, b"{}", b"[]")], {"s": b"record"}, {"s": entry}, outcomes=outcomes)

    assert read_journal(written(tmp_path, (5, [whole]))) == [Half(5, [whole])]


def test_both_halves_are_read_in_the_order_of_their_transactions(tmp_path: Path) -> None:
    first, second = [group(1), group(2)], [group(3)]

    assert read_journal(written(tmp_path, (5, first), (6, second))) == [Half(5, first), Half(6, second)]
    assert read_tallies(tmp_path / "commit_record") == {5: 2, 6: 1}


def test_nothing_older_is_read_behind_what_is_new(tmp_path: Path) -> None:
    old, new = [group(at) for at in range(1, 9)], [group(20)]

    assert read_journal(written(tmp_path, (5, old), (6, old), (7, new))) == [Half(6, old), Half(7, new)]
    # Not even with the same number, which a witness that is gone cannot keep from being given again.
    assert read_journal(written(tmp_path, (7, new), (6, new))) == [Half(6, new), Half(7, new)]


def test_a_half_that_is_full_takes_nothing_and_the_next_one_does(tmp_path: Path) -> None:
    large = Group([chunk(1, b"x" * (HALF_BYTES // 3))])
    with opened(tmp_path) as journal:
        assert not journal.begin(5, Group([chunk(1, b"x" * HALF_BYTES)]))
        assert journal.begin(5, large)
        assert journal.append(large)
        assert not journal.append(large)
        assert journal.begin(6, large)
        assert journal.append(group(9))

    assert read_journal(tmp_path / "journal") == [Half(5, [large, large]), Half(6, [large, group(9)])]


def test_wherever_it_is_cut_what_comes_before_is_read(tmp_path: Path) -> None:
    groups = [group(1), group(2), group(3)]
    path = written(tmp_path, (5, [group(1)]), (6, groups))
    content = path.read_bytes()
    ends = [0]
    while (length := HEAD.unpack_from(content, ends[-1])[2]) > 0:
        ends.append(ends[-1] + HEAD.size + length)
    assert len(ends) == 4
    for cut in range(ends[-1]):
        for rest in (b"", bytes(HALF_BYTES - cut)):
            path.write_bytes(content[:cut] + rest)
            whole = sum(end <= cut for end in ends[1:])

            assert read_journal(path) == ([Half(6, groups[:whole])] if whole else [])


@given(content=st.binary(max_size=200), at=st.integers(0, 300))
@settings(max_examples=50)
def test_garbage_is_no_record(tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(bytes(at) + content)

    assert read_journal(path) == []


def as_the_first_servers_wrote_it(path: Path, commits: int) -> None:
    """The same records without halves: each says which transaction it follows."""
    (kept,) = read_journal(path)
    content, at, first = path.read_bytes(), HALF_BYTES, bytearray()
    for place in range(len(kept.groups)):
        length = HEAD.unpack_from(content, at)[2]
        body = content[at + HEAD.size : at + HEAD.size + length]
        first += HEAD.pack(commits, place, length, crc32(body, crc32(b"%d %d" % (commits, place)))) + body
        at += HEAD.size + length
    path.write_bytes(first)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_journal_without_halves_is_taken_over_and_what_it_lacks_is_told(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "log.db"
    database = open_database(path).database
    database.write(group(1))
    commits = database.commits
    database.close()
    journal = written(tmp_path, (1, [group(2), group(3)]))
    as_the_first_servers_wrote_it(journal, commits)
    journal.rename(tmp_path / "log.db.journal")
    commit_record = CommitRecord(tmp_path / "log.db.witness")
    for _ in range(2):
        commit_record.note(Statement(2, commits, 3, journaled=2 + lost))
    commit_record.close()

    database, damage, _ = open_database(path)

    assert [each.first for each in database.history("s", 0, 100, 100, 1 << 20)] == [1, 2, 3]
    assert database.index.records(["s"]) == {"s": b"3"}
    database.close()
    assert (damage.reason is not None) == bool(lost)
    if lost:
        assert "log.db.journal lacks 1 write" in str(damage.reason)
    database = open_database(path).database
    assert [each.first for each in database.history("s", 0, 100, 100, 1 << 20)] == [1, 2, 3]
    database.close()


def test_a_journal_that_is_left_of_another_log_is_not_read(tmp_path: Path) -> None:
    written(tmp_path, (50, [group(1)])).rename(tmp_path / "log.db.journal")

    database, damage, _ = open_database(tmp_path / "log.db")

    assert database.history("s", 0, 100, 100, 1 << 20) == []
    assert damage.reason is None
    database.close()


def test_the_file_is_the_users_alone_and_a_link_is_not_followed(tmp_path: Path) -> None:
    path = written(tmp_path, (1, [group(1)]))
    assert path.stat().st_mode & 0o777 == 0o600
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path.unlink()
    path.symlink_to(precious)
    commit_record = CommitRecord(tmp_path / "commit_record")

    assert open_journal(path, commit_record) is None
    assert precious.read_text() == "precious"
    commit_record.close()


def test_where_no_file_can_be_mapped_there_is_no_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "journal").mkdir()
    commit_record = CommitRecord(tmp_path / "commit_record")

    assert open_journal(tmp_path / "journal", commit_record) is None
    assert "log has no journal" in caplog.text
    assert read_statement(tmp_path / "commit_record") is None
    commit_record.close()


@pytest.mark.parametrize("name", ["journal", "commit_record"])
def test_a_file_that_was_made_shorter_is_an_error_and_no_end_of_the_server(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as journal:
        assert journal.begin(1, group(1))
        os.truncate(tmp_path / name, 0)

        with pytest.raises(OSError, match="made shorter"):
            journal.append(group(2))
        with pytest.raises(OSError, match="made shorter"):
            journal.begin(2, group(2))


@pytest.mark.parametrize("name", ["journal", "commit_record"])
@pytest.mark.parametrize("harm", ["deleted", "replaced", "made shorter"])
def test_a_journal_that_a_start_would_not_find_is_not_ready(tmp_path: Path, name: str, harm: str) -> None:
    path = tmp_path / name
    with opened(tmp_path) as journal:
        journal.prepare()
        assert journal.is_ready
        match harm:
            case "deleted":
                path.unlink()
            case "replaced":
                (tmp_path / "other").write_bytes(path.read_bytes())
                (tmp_path / "other").rename(path)
            case _:
                os.truncate(path, 300)

        with pytest.raises(OSError, match=name):
            journal.prepare()
        assert not journal.is_ready
