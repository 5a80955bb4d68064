"""Running npm or uv: what it prints, how it ends, and that nothing of it stays."""

import asyncio
import sys
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sandboxagent.server.agents.install.tools import Finished, Runner
from sandboxagent.server.processes.children import ProcessTrees
from tests.support.running import alive, eventually

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "ONLY": "this"}


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class House:
    """A runner and the lines it got."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runner = Runner(ProcessTrees(f"test-{uuid.uuid4()}"))
        self.told: list[str] = []
        self.heard = asyncio.Event()

    def tell(self, line: str) -> None:
        self.told.append(line)
        self.heard.set()

    async def python(self, script: str, *arguments: str) -> Finished:
        command = [sys.executable, "-I", "-S", "-c", script, *arguments]
        return await self.runner.run(command, ENVIRONMENT, self.directory, self.tell)


def test_both_streams_are_heard_line_by_line_and_in_order(tmp_path: Path) -> None:
    house = House(tmp_path)
    script = """
import os
for number in range(3):
    os.write(1, b"out %d\\n" % number)
    os.write(2, b"err %d\\r\\n" % number)
os.write(1, b"end")
"""

    async def main() -> None:
        done = await house.python(script)
        assert done.code == 0
        assert house.told == ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2", "end"]
        assert done.text.splitlines() == house.told

    run(main())


def test_how_it_ended_is_said(tmp_path: Path) -> None:
    house = House(tmp_path)

    async def main() -> None:
        assert (await house.python("raise SystemExit(7)")).code == 7
        assert (await house.python("import os; os.kill(os.getpid(), 9)")).code is None

    run(main())


def test_it_sees_its_environment_its_directory_and_no_input(tmp_path: Path) -> None:
    house = House(tmp_path)
    script = "import os, sys; print(*os.environ, '|', os.getcwd(), '|', sys.stdin.read())"

    async def main() -> None:
        await house.python(script)
        names, directory, given = house.told[0].split("|")
        # A shell and Python add some of their own, and we the marks by which we find our children.
        added = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
        assert {name for name in names.split() if "SANDBOX" not in name} - added == ENVIRONMENT.keys()
        assert (directory.strip(), given.strip()) == (str(tmp_path), "")

    run(main())


def test_arguments_are_not_read_by_a_shell(tmp_path: Path) -> None:
    house = House(tmp_path)
    odd = ["$HOME", "`id`", "a b", "", "'\"", "*", "-x", "\n", ";touch x"]

    async def main() -> None:
        await house.python("import sys; print(sys.argv[1:])", *odd)
        assert house.told == [str(odd)]

    run(main())


def test_what_is_kept_of_endless_output_is_bounded_and_is_the_end_of_it(tmp_path: Path) -> None:
    house = House(tmp_path)
    script = "for n in range(200_000): print('line', n)\nprint('x' * 3_000_000)\nprint('last')"

    async def main() -> None:
        done = await house.python(script)
        assert done.text.endswith("last")
        assert len(done.text) <= 4096

    run(main())


def test_a_program_that_is_not_there_fails(tmp_path: Path) -> None:
    house = House(tmp_path)

    async def main() -> None:
        done = await house.runner.run([str(tmp_path / "no-such")], ENVIRONMENT, tmp_path, house.tell)
        assert done.code in (126, 127)
        with pytest.raises(OSError, match="No such file"):
            await house.runner.run(["true"], ENVIRONMENT, tmp_path / "no-such-directory", house.tell)

    run(main())


def test_its_whole_tree_ends_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    house = House(tmp_path)
    script = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(3600)
"""

    async def main() -> None:
        running = asyncio.create_task(house.python(script))
        await house.heard.wait()
        pids = [int(pid) for pid in house.told[0].split()]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        eventually(lambda: not any(map(alive, pids)), "the end of the tree")

    run(main())


def test_what_it_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    house = House(tmp_path)
    script = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print(child.pid)
"""

    async def main() -> None:
        assert (await house.python(script)).code == 0
        eventually(lambda: not alive(int(house.told[0])), "the end of what it started")

    run(main())
