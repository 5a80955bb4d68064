"""The log of a server in the background."""

import subprocess
import sys
from pathlib import Path

from sandboxagent.server.server_log import log_file, open_log

SCRIPT = """
import logging, os, sys
from pathlib import Path
from sandboxagent.server.server_log import ReportHandler

logging.basicConfig(level="INFO", handlers=[ReportHandler(Path(sys.argv[1]), 10_000)], format="%(message)s")
for number in range(int(sys.argv[2])):
    logging.info("report number=%d %s", number, "x" * 80)
os.write(1, b"the end on stdout\\n")
os.write(2, b"the end on stderr\\n")
"""


def run(path: Path, count: int, into: Path) -> None:
    log = open_log(into, 10_000)
    command = [sys.executable, "-c", SCRIPT, str(path), str(count)]
    with open(log, "wb") as file:
        subprocess.run(command, stdout=file, stderr=file, check=True, timeout=60)


def test_log_of_a_running_server_is_bounded_and_one_older_file_is_kept(tmp_path: Path) -> None:
    path = log_file(tmp_path)
    path.parent.mkdir()
    run(path, 1000, path)
    old = path.with_suffix(".log.1")
    assert sorted(path.parent.iterdir()) == [path, old]
    assert all(file.stat().st_size < 10_500 for file in (path, old))
    lines = (old.read_text() + path.read_text()).split("\n")[:-3]
    numbers = [int(line.split()[1].removeprefix("number=")) for line in lines]
    # No report is lost at the change, and stdout went along.
    assert numbers == list(range(numbers[0], 1000))
    assert path.read_text().endswith("the end on stdout\nthe end on stderr\n")


def test_another_file_that_stderr_was_sent_to_is_left_alone(tmp_path: Path) -> None:
    path, other = log_file(tmp_path), tmp_path / "other.log"
    path.parent.mkdir()
    run(path, 500, other)
    assert other.stat().st_size > 40_000
    assert list(path.parent.iterdir()) == []
