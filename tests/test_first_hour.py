"""The README as a new user walks it: installed where nothing else is, what it shows works there."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxagent.server.agents.install.tools import bundled_node
from tests.docs.snippets import blocks_of
from tests.support.installing import LONGEST, ROOT, install_tarball, install_wheel, run

README = ROOT / "README.md"
pytestmark = pytest.mark.xdist_group("the first hour")  # The packages are installed once.


class Place:
    """A machine with the server installed, an empty home, and a directory to be in."""

    def __init__(self, factory: pytest.TempPathFactory, directory: Path) -> None:
        self.programs = install_wheel(factory, directory, "[server]")
        self.here = directory / "here"
        self.here.mkdir()
        self.environment = {"HOME": str(self.here), "PATH": f"{self.programs}:{os.defpath}", "LANG": "C.UTF-8"}

    def run(self, *command: str) -> str:
        return run(*command, cwd=self.here, env=self.environment)

    def close(self) -> None:
        """End a server that a command has left in the background, if it has."""
        stop = [str(self.programs / "sandbox-agent"), "daemon", "stop"]
        subprocess.run(stop, cwd=self.here, env=self.environment, capture_output=True, timeout=LONGEST)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    opened = Place(tmp_path_factory, tmp_path_factory.mktemp("first-hour"))
    yield opened
    opened.close()


def program(language: str) -> str:
    """The README's program in a language."""
    (block,) = blocks_of(README, language)
    return block.code


def test_the_commands_of_the_readme_work_one_after_another(place: Place) -> None:
    shown = next(block.code for block in blocks_of(README, "sh") if block.skipped is None)
    commands = [shlex.split(line, comments=True) for line in shown.splitlines()]
    assert [command[:2] for command in commands] == [["sandbox-agent", "run"], ["sandbox-agent", "sessions"]]

    said, listed = (place.run(str(place.programs / command[0]), *command[1:]) for command in commands)

    assert "You said: hello" in said
    assert re.search(r"mock .*idle", listed), listed


def test_a_session_goes_on_after_its_server_was_killed(place: Place) -> None:
    program = str(place.programs / "sandbox-agent")
    status = json.loads(place.run(program, "daemon", "status", "--json"))
    os.kill(status["pid"], signal.SIGKILL)

    assert "You said: again" in place.run(program, "run", "-c", "mock", "again")
    assert json.loads(place.run(program, "daemon", "status", "--json"))["pid"] != status["pid"]
    assert len(json.loads(place.run(program, "sessions", "list", "--json"))["sessions"]) == 1


def test_the_python_program_answers(place: Place) -> None:
    file = place.here / "program.py"
    file.write_text(program("python"))

    assert "You said: hello" in place.run(str(place.programs / "python"), "-W", "error", str(file))


def test_the_typescript_program_answers(place: Place, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    project = install_tarball(tmp_path_factory, tmp_path)
    (project / "program.mjs").write_text(program("typescript"))

    assert "You said: hello" in place.run(str(bundled_node().program), str(project / "program.mjs"))


def test_the_readme_names_the_platforms_and_the_licence() -> None:
    text = README.read_text()

    assert re.search(r"Linux.*glibc.*x86-64 and arm64", text)
    assert all(word in text for word in ("Python 3.11", "Node 20", "Apache License 2.0", "CHANGELOG.md"))
