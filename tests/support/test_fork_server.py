import os
import signal
import subprocess
from pathlib import Path

import pytest

from sandboxagent.core.discovery import read_server_record
from tests.support.fork_server import Forkery, fork_server
from tests.support.running import BOUND, alive, eventually


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_forked_ends_with_the_tests_however_they_end(killed: bool, tmp_path: Path) -> None:
    fork_server = Forkery()
    places = ["--data-dir", str(tmp_path / "data"), "--config-dir", str(tmp_path)]
    with (tmp_path / "out").open("w") as out, Path(os.devnull).open() as nothing:
        descriptors = [nothing.fileno(), out.fileno(), out.fileno()]
        server = fork_server.fork(["server", "--port", "0", "--no-persist", *places], os.environ, descriptors)
    eventually(lambda: "listening" in (tmp_path / "out").read_text(), "the start of the server")

    if killed:
        fork_server._process.kill()
    fork_server._close()

    eventually(lambda: not alive(server.pid), "the end of the server")


def test_a_stand_in_has_the_streams_the_directory_and_the_exit_code_of_the_program(tmp_path: Path) -> None:
    command = [*fork_server().stand_in, "agents", "nonsense"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "nonsense" in done.stderr


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGUSR1, -signal.SIGKILL)])
def test_a_stand_in_passes_signals_on_and_ends_as_the_program_does(
    sent: signal.Signals, code: int, tmp_path: Path
) -> None:
    with stand_in(tmp_path) as started:
        server = server_of(tmp_path)
        started.send_signal(sent)

        assert started.wait(timeout=BOUND) == code
        assert not alive(server)


def test_forked_python_file_has_its_arguments_neighbours_and_warnings(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'hello'")
    file = tmp_path / "program.py"
    file.write_text("import sys, neighbour\nprint(neighbour.WORD, input(), sys.argv)\nleft = open(__file__)\nexit(3)\n")
    command = [*fork_server().python, str(file), "word"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, input="you\n")

    assert (done.returncode, done.stdout) == (3, f"hello you {[str(file), 'word']}\n")
    assert "ResourceWarning: unclosed file" in done.stderr


def test_a_stand_in_that_is_killed_leaves_no_program(tmp_path: Path) -> None:
    with stand_in(tmp_path) as started:
        server = server_of(tmp_path)
        started.kill()

        eventually(lambda: not alive(server), "the end of the server")


def stand_in(directory: Path) -> "subprocess.Popen[bytes]":
    """A server that listens."""
    places = ["--data-dir", str(directory / "data"), "--config-dir", str(directory)]
    command = [*fork_server().stand_in, "server", "--port", "0", *places]
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert started.stdout is not None
    assert b"listening" in started.stdout.readline()
    return started


def server_of(directory: Path) -> int:
    notice = read_server_record(directory / "data")
    assert notice is not None
    assert alive(notice.pid)
    return notice.pid
