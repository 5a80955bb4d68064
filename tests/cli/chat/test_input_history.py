"""What was typed in earlier runs: kept in a private file, bounded."""

import os
import stat
from pathlib import Path

from sandboxagent.cli.chat.input_history import MAX_BYTES, MAX_ENTRIES, MAX_TEXT_BYTES, InputHistory


def test_what_was_typed_is_there_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "data" / "input-history"
    history = InputHistory(path)
    for text in ("hello", "two\nlines", "two\nlines", " a secret", "  ", "日本"):
        history.add(text)

    assert InputHistory(path).load() == ["hello", "two\nlines", "日本"]


def test_only_you_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "input-history"
    path.touch(0o644)
    path.chmod(0o644)

    InputHistory(path).add("hello")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "input-history"
    history = InputHistory(path)
    history.add("x" * MAX_TEXT_BYTES)
    assert history.load() == []

    for number in range(50):
        history.add(f"{number} ".ljust(MAX_TEXT_BYTES - 100, "x"))

    assert path.stat().st_size <= 2 * MAX_BYTES
    assert history.load()[-1].startswith("49 ")

    path.write_bytes(b'"y"\n' * 3 * MAX_ENTRIES)
    assert len(history.load()) == MAX_ENTRIES


def test_a_link_or_a_pipe_in_its_place_is_not_followed(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    (tmp_path / "other").write_text('"not ours"\n')
    link.symlink_to(tmp_path / "other")
    os.mkfifo(pipe)

    for path in (link, pipe):
        InputHistory(path).add("hello")
        assert InputHistory(path).load() == []
    assert (tmp_path / "other").read_text() == '"not ours"\n'


def test_lines_that_are_broken_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "input-history"
    path.write_bytes(b'"one"\n{"half\n\xff\n7\n"two"\n')

    assert InputHistory(path).load() == ["one", "two"]


def test_a_directory_that_cannot_be_written_costs_the_history_alone(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")

    InputHistory(tmp_path / "data" / "input-history").add("hello")

    assert InputHistory(tmp_path / "data" / "input-history").load() == []
