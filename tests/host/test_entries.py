"""What clients see of a directory, however large: contract, section 13."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_agent.file_errors import BadPath, FileNotFound
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.transfer.entries import read_entry, read_page

HUGE = """
import os, resource, sys
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.transfer.entries import read_page
confined = Confined([sys.argv[1]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = read_page(confined, sys.argv[1], None, 3)
second = read_page(confined, sys.argv[1], first.next_cursor, 3)
assert [entry.name for entry in first.entries + second.entries] == [f"n{number:06}" for number in range(6)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_page_of_a_huge_directory_takes_the_memory_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "n000000").touch()
    for number in range(1, 50_000):
        # Links of one file: a name for each is all that matters.
        target = tmp_path / "n000000" if number % 30_000 else tmp_path / "second"
        target.touch()
        os.link(target, tmp_path / f"n{number:06}")
    result = subprocess.run([sys.executable, "-c", HUGE, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 2 * 1024, "KiB that it took"


def test_times_that_no_calendar_has_are_shown_as_the_last_it_has(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    confined = Confined([str(tmp_path)])
    for nanoseconds in (-(1 << 62), 1 << 62, 0, -1):
        os.utime(tmp_path / "file", ns=(0, nanoseconds))
        assert read_entry(confined, str(tmp_path / "file")).modified.endswith("Z")


def test_what_goes_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    confined = Confined([str(tmp_path)])
    assert read_page(confined, str(tmp_path), None, 10).entries == []
    with pytest.raises(FileNotFound):
        read_page(confined, str(tmp_path / "gone"), None, 10)
    with pytest.raises(BadPath):
        read_page(confined, str(tmp_path), "not base64!", 10)


def test_the_root_has_a_name() -> None:
    assert read_entry(Confined(["/"]), "/").name == "/"
