"""Text files for agents: contract, section 5."""

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import FileFailed, InvalidParams, NoSuchFile
from sandboxagent.server.files.text import TextFiles
from tests.support.running import BOUND

LIMIT = 1000


class Workspace:
    """A folder, and what an agent gets of the files in it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.files = TextFiles(LIMIT, **settings)

    def read(self, name: str, line: int | None = None, limit: int | None = None) -> str:
        return self.files.read([str(self.folder)], str(self.folder / name), line, limit)

    def write(self, name: str, content: str) -> None:
        self.files.write([str(self.folder)], str(self.folder / name), content)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_what_was_written_is_read(workspace: Workspace) -> None:
    workspace.write("new/folder/file", "grün\r\n\0𝄞")
    assert workspace.read("new/folder/file") == "grün\r\n\0𝄞"
    assert (workspace.folder / "new/folder/file").read_bytes() == "grün\r\n\0𝄞".encode()
    workspace.write("new/folder/file", "")
    assert workspace.read("new/folder/file") == ""


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (None, None, "a\nb\nc\nd"),
        (1, None, "a\nb\nc\nd"),
        (0, None, "a\nb\nc\nd"),
        (2, None, "b\nc\nd"),
        (2, 2, "b\nc\n"),
        (None, 1, "a\n"),
        (4, 10, "d"),
        (4, None, "d"),
        (5, None, ""),
        (99, 1, ""),
        (2, 0, ""),
    ],
)
def test_lines_count_from_one_and_keep_their_ends(
    workspace: Workspace, line: int | None, limit: int | None, expected: str
) -> None:
    workspace.write("file", "a\nb\nc\nd")
    assert workspace.read("file", line, limit) == expected


@given(
    lines=st.lists(st.text(alphabet="a\r ä", max_size=6), max_size=20),
    ending=st.sampled_from(["", "\n"]),
    line=st.integers(1, 25),
    limit=st.none() | st.integers(0, 25),
    block=st.integers(1, 9),
)
def test_lines_are_the_same_however_the_file_falls_into_blocks(
    lines: list[str], ending: str, line: int, limit: int | None, block: int
) -> None:
    content = "\n".join(lines) + ending
    expected = [each + "\n" for each in content.split("\n")]
    expected[-1] = expected[-1][:-1]
    end = None if limit is None else line - 1 + limit
    with TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), block=block)
        workspace.write("file", content)
        assert workspace.read("file", line, limit) == "".join(expected[line - 1 : end])


def test_what_is_too_large_is_refused_with_what_to_do_and_its_parts_are_given(workspace: Workspace) -> None:
    workspace.write("file", "0123456789\n" * 200)
    with pytest.raises(InvalidParams, match="line and limit") as refused:
        workspace.read("file")
    assert refused.value.fields == {"path": str(workspace.folder / "file"), "limit": LIMIT}
    assert workspace.read("file", 199, None) == "0123456789\n" * 2
    assert workspace.read("file", 100, 50) == "0123456789\n" * 50
    with pytest.raises(InvalidParams):
        workspace.read("file", 1, 150)


def test_bytes_that_are_no_text_are_refused_and_said_where(workspace: Workspace) -> None:
    (workspace.folder / "file").write_bytes(b"one\ntwo\xff\n")
    with pytest.raises(InvalidParams, match="not UTF-8 text: byte 7") as refused:
        workspace.read("file")
    assert refused.value.fields["byte"] == 7
    with pytest.raises(InvalidParams, match="byte 7"):
        workspace.read("file", 2)
    assert workspace.read("file", 1, 1) == "one\n"


def test_each_refusal_names_the_path_and_the_rule(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.folder / "folder").mkdir()
    os.mkfifo(workspace.folder / "fifo")
    for name, error, words in [
        ("missing", NoSuchFile, "No such file or directory"),
        ("../outside", InvalidParams, "cwd and additionalDirectories"),
        ("/etc/passwd", InvalidParams, "cwd and additionalDirectories"),
        ("folder", InvalidParams, "Is a directory"),
        ("fifo", InvalidParams, "not a regular file"),
        ("a\0b", InvalidParams, "NUL"),
        ("x" * 256, InvalidParams, "name too long"),
    ]:
        with pytest.raises(error, match=words) as refused:
            workspace.read(name)
        assert refused.value.fields["path"] == str(workspace.folder / name)
    with pytest.raises(InvalidParams, match="absolute"):
        workspace.files.read([str(workspace.folder)], "relative", None, None)
    with pytest.raises(InvalidParams, match="cwd and additionalDirectories"):
        workspace.write("../outside", "text")


def test_a_full_disk_is_said_and_leaves_the_old_file(workspace: Workspace) -> None:
    workspace.write("file", "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(FileFailed) as refused:
            workspace.write("file", "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.fields["errno"] == "EFBIG"
    assert os.listdir(workspace.folder) == ["file"]
    assert workspace.read("file") == "old"


LARGE = """
import resource, sys
from sandboxagent.server.files.text import TextFiles
from sandboxagent.protocol.errors import InvalidParams
folder = sys.argv[1]
files = TextFiles(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert files.read([folder], folder + "/large", 2, 1) == "found\\n"
try:
    files.read([folder], folder + "/large", None, None)
except InvalidParams as error:
    assert error.fields["limit"] == 1 << 20
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_huge_file_does_not_enter_memory(workspace: Workspace) -> None:
    with (workspace.folder / "large").open("wb") as file:
        # Sparse: it has one line of 128 MiB, and then what is looked for.
        file.seek(1 << 27)
        file.write(b"\nfound\nand more")
    command = [sys.executable, "-c", LARGE, str(workspace.folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 16 * 1024, "KiB that reading took"


def test_a_file_that_is_too_large_is_not_read_to_find_that_out(tmp_path: Path) -> None:
    hasty = Workspace(tmp_path, timeout=-1.0)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    for line in (None, 0, 1):
        with pytest.raises(InvalidParams, match="read a part of it") as refused:
            hasty.read("large", line)
        assert refused.value.fields["limit"] == LIMIT
    with pytest.raises(FileFailed, match="takes longer"):
        hasty.read("large", 2)


def test_a_line_is_looked_for_in_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, scan=10_000, block=100)
    (tmp_path / "file").write_text("x" * 9_990 + "\nfound\n" + "x" * 900 + "\nfar\n")
    assert workspace.read("file", 2, 1) == "found\n"
    with pytest.raises(InvalidParams, match="not in the first 10000 bytes") as refused:
        workspace.read("file", 5)
    assert refused.value.fields == {"path": str(tmp_path / "file"), "limit": 10_000}
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidParams, match="not in the first 10000 bytes"):
        workspace.read("sparse", 2, 1)


def test_reading_ends_when_the_server_does(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, scan=1 << 50)
    with (workspace.folder / "endless").open("wb") as file:
        file.truncate(1 << 40)
    refused: list[FileFailed] = []

    def read() -> None:
        try:
            workspace.read("endless", 2)
        except FileFailed as error:
            refused.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    workspace.files.close()
    thread.join(BOUND)
    assert refused


def test_a_search_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileFailed, match=r"takes longer than 0\.05 s"):
        Workspace(tmp_path, timeout=0.05).read("endless", 2)
