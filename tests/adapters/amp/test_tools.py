"""Amp's tools as tool calls of ACP."""

from pathlib import Path
from typing import Any

import pytest

from sandboxagent.adapters.amp.tools import tool_call

Json = dict[str, Any]


def locations(tool: str, **arguments: object) -> list[Json]:
    found: Any = tool_call("t1", tool, arguments)["locations"]
    return found


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\ntwo and a half\n")
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("one\n", "1\n", 1),
        ("three\ntwo and", "3", 3),
        ("three", "three and more", 3),
        # It is there twice, or not, or the change has put it elsewhere.
        ("two", "2", None),
        ("four", "4", None),
        ("three", "before\nthree", None),
        ("", "all", None),
    ],
)
def test_an_edit_names_its_line_where_that_is_certain(file: str, old: str, new: str, line: int | None) -> None:
    assert locations("edit_file", path=file, old_str=old, new_str=new) == [
        {"path": file} if line is None else {"path": file, "line": line}
    ]


def test_an_edit_of_a_file_that_cannot_be_read_names_no_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    for name in ("binary", "none", "."):
        path = str(tmp_path / name)
        assert locations("edit_file", path=path, old_str="a", new_str="b") == [{"path": path}]


def test_a_file_that_is_written_whole_begins_at_its_first_line(file: str) -> None:
    assert locations("create_file", path=file, content="new") == [{"path": file, "line": 1}]
    assert locations("Read", path=file) == [{"path": file}]
