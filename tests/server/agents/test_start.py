"""One process: started, shaken hands with, verified and ended; its folder held while it runs.

A folder that is run from is not removed, and one that is being removed is not run from; also between processes. What
many callers get of a process is in test_supervisor.py.
"""

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from sandboxagent.protocol.envelope import Envelope, parse
from sandboxagent.protocol.errors import AgentBootFailed, AgentTimeout, ShuttingDown
from sandboxagent.server.agents.handshake import Handshake
from sandboxagent.server.agents.launch import IN_USE, REMOVED, FolderGone, FolderLock, Launch, remove_unused
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.agents.running import RunningAgent
from sandboxagent.server.agents.start import AgentStarter, _Start, _take_over  # pyright: ignore[reportPrivateUsage]
from sandboxagent.server.agents.supervisor import MAX_START_TRIES, Supervisor
from tests.support.running import BOUND, SCRIPTED, alive, eventually
from tests.support.workshop import Workshop, run

IT = Agent(id="it", title="It", description="", source="path", command=(), env={"FROM": "agent", "OWN": "agent"})


class SilentListener:
    def receive(self, running: RunningAgent, blob: bytes) -> None: ...
    def oversized(self, running: RunningAgent, head: bytes) -> None: ...
    def exited(self, running: RunningAgent, exit: Exit) -> None: ...


def launch(*flags: str, folder: Path | None = None, **env: str) -> Launch:
    return Launch((sys.executable, "-I", "-S", str(SCRIPTED), *flags), env, folder)


async def start(starter: AgentStarter, it: Launch) -> RunningAgent:
    return await starter.start(IT, it, {}, SilentListener(), lambda _running, _exit: None)


def test_verifying_hears_what_an_agent_says_of_itself_and_ends_it_again(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            handshake = await shop.starter.verify(IT, launch("--state", str(state)))
            assert handshake.capabilities["loadSession"] is True
            assert not alive(json.loads(state.read_text())["started"])

    run(main())


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--exit-at-once"], AgentBootFailed),
        (["--bad-handshake"], AgentBootFailed),
        (["--bad-handshake", "silent"], AgentTimeout),
    ],
)
def test_verifying_what_does_not_answer_fails_with_its_stderr(
    tmp_path: Path, flags: list[str], error: type[Exception]
) -> None:
    async def main() -> None:
        # Long enough for a busy machine to start what answers, or ends.
        async with Workshop(tmp_path, boot_timeout=0.5 if error is AgentTimeout else BOUND) as shop:
            with pytest.raises(error) as failed:
                await shop.starter.verify(IT, launch(*flags))
            assert "stderr" in failed.value.fields  # type: ignore[attr-defined]

    run(main())


class Pipe:
    """A process that has answered, and says more than anybody takes."""

    key, exit = "it-1", None

    def __init__(self) -> None:
        self.listener: Any = None
        self.paused = 0

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.paused = 0


class Hearing(SilentListener):
    def __init__(self) -> None:
        self.heard, self.oversized_heads = bytearray(), list[bytes]()

    def receive(self, running: RunningAgent, blob: bytes) -> None:
        self.heard += blob

    def oversized(self, running: RunningAgent, head: bytes) -> None:
        self.oversized_heads.append(head)


def test_lines_said_while_the_companion_is_reached_wait_and_none_is_lost() -> None:
    async def main() -> None:
        answered: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        answered.set_result(parse(b'{"jsonrpc":"2.0","id":1,"result":{}}'))
        pipe: Any = Pipe()
        boot, hearing = _Start("it", answered, None), Hearing()
        said = [
            b'{"jsonrpc":"2.0","method":"x/say","params":{"n":%d,"text":"%b"}}' % (number, b"x" * (1 << 20))
            for number in range(10)
        ]
        for line in said[:7]:
            boot.lines(pipe, line + b"\n")
        boot.oversized(pipe, b"a line that was too long")
        assert not pipe.paused
        # What comes after the pause was in the pipe already.
        boot.lines(pipe, b"".join(line + b"\n" for line in said[7:9]))
        assert pipe.paused
        boot.lines(pipe, said[9] + b"\n")
        running = RunningAgent(IT, pipe, Handshake(Raw(b"{}"), {}), hearing, lambda _running, _exit: None)
        _take_over(running, boot)
        assert not pipe.paused
        assert hearing.heard == b"".join(line + b"\n" for line in said)
        assert hearing.oversized_heads == [b"a line that was too long"]

    run(main())


def test_its_folder_is_held_until_it_has_ended_by_whatever_cause(tmp_path: Path) -> None:
    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            for cause in ("stop", "kill"):
                folder = tmp_path / cause
                folder.mkdir()
                running = await start(shop.starter, launch(folder=folder))
                remove_unused(folder)
                assert folder.is_dir()
                if cause == "stop":
                    await shop.starter.stop(running)
                else:
                    os.kill(running.process.pid, 9)
                    await running.process.exited()
                remove_unused(folder)
                assert not folder.exists()

    run(main())


def test_a_failed_start_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            with pytest.raises(AgentBootFailed):
                await start(shop.starter, launch("--exit-at-once", folder=tmp_path / "folder"))
            with pytest.raises(AgentBootFailed):
                await start(shop.starter, Launch(("/no/such/program",), {}, tmp_path / "folder"))
            remove_unused(tmp_path / "folder")
            assert not (tmp_path / "folder").exists()

    run(main())


def test_what_is_being_removed_is_not_started(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            with pytest.raises(FolderGone):
                await start(shop.starter, launch("--state", str(state), folder=tmp_path / "gone"))
            assert not state.exists()

    run(main())


def test_what_was_replaced_between_the_look_and_the_start_is_looked_up_again(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    looked: list[Path] = []

    async def provide(agent: Agent) -> Launch:
        """The first is gone when it is to be started, as when another process installs at that moment."""
        folder = folders[len(looked)]
        looked.append(folder)
        if folder.name == "second":
            folder.mkdir()
        return launch(folder=folder)

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            supervisor = Supervisor(SilentListener(), shop.starter, provide)
            running = await supervisor.process(IT)
            assert running.alive
            assert looked == folders
            await supervisor.close(0.1)

    run(main())


def test_what_is_always_gone_is_given_up(tmp_path: Path) -> None:
    looked: list[Agent] = []

    async def provide(agent: Agent) -> Launch:
        looked.append(agent)
        return launch(folder=tmp_path / "gone")

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            supervisor = Supervisor(SilentListener(), shop.starter, provide)
            with pytest.raises(AgentBootFailed, match="replaced again and again"):
                await supervisor.process(IT)
            assert len(looked) == MAX_START_TRIES

    run(main())


def test_an_install_that_the_server_ends_is_told_as_its_end(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def provide(agent: Agent) -> Launch:
        begun.set()
        await asyncio.sleep(0.05)
        return launch()

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            supervisor = Supervisor(SilentListener(), shop.starter, provide)
            asking = asyncio.create_task(supervisor.process(IT))
            await begun.wait()
            await supervisor.close(0.1)
            with pytest.raises(ShuttingDown):
                await asking
            eventually(lambda: supervisor.status("it").status == "stopped")

    run(main())


HOLDER = """
import sys
from pathlib import Path
from sandboxagent.server.agents.launch import FolderLock
held = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "1-abc"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "program").write_text("x")
    return folder


def test_a_program_is_searched_for_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "it"
    program.write_text("#!/bin/sh\n")
    assert Launch(("it",)).program(str(tmp_path)) is None, "it is not executable"

    program.chmod(0o755)

    assert Launch(("it", "acp")).program(str(tmp_path)) == str(program)
    assert Launch((str(program),)).program("") == str(program)


def test_values_of_the_environment_are_not_in_the_representation() -> None:
    assert "hush" not in repr(Launch(("it",), {"KEY": "hush"}))


def test_a_folder_that_is_held_is_not_removed(folder: Path) -> None:
    held = [Launch(("it",), folder=folder).lock_folder() for _ in range(2)]

    remove_unused(folder)
    assert folder.is_dir()

    held[0].release()
    held[0].release()
    remove_unused(folder)
    assert folder.is_dir(), "one is still there"

    held[1].release()
    remove_unused(folder)
    assert list(folder.parent.iterdir()) == []


def test_a_folder_that_another_process_holds_is_not_removed_until_that_has_ended(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        remove_unused(folder)
        assert (folder / "bin" / "program").is_file()
        other.kill()

    remove_unused(folder)
    assert not folder.exists()


def test_a_folder_that_is_gone_cannot_be_held(folder: Path) -> None:
    remove_unused(folder)

    with pytest.raises(FolderGone):
        FolderLock(folder)


def test_a_folder_that_is_being_removed_cannot_be_held(folder: Path) -> None:
    mark = os.open(folder / IN_USE, os.O_RDONLY | os.O_CREAT)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(FolderGone):
            FolderLock(folder)
    finally:
        os.close(mark)


def test_launch_without_folder_needs_no_lock() -> None:
    Launch(("it",)).lock_folder().release()


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder where not even root may create a file")
def test_a_folder_that_we_may_not_write_can_be_run_from() -> None:
    FolderLock(Path("/sys")).release()


def test_locked_folder_is_whole_however_removal_and_start_race(tmp_path: Path) -> None:
    for number in range(200):
        folder = tmp_path / f"{number}-abc"
        folder.mkdir()
        (folder / "program").write_text("x")
        barrier = threading.Barrier(2)

        def remove(folder: Path = folder, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            remove_unused(folder)

        remover = threading.Thread(target=remove)
        remover.start()
        barrier.wait()
        try:
            held = FolderLock(folder)
        except FolderGone:
            remover.join()
            assert not folder.exists()
        else:
            remover.join()
            assert (folder / "program").read_text() == "x"
            held.release()
        remover.join()

    assert not any(path.name.startswith(REMOVED) for path in tmp_path.iterdir())
