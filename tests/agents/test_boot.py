"""One process: started, shaken hands with, verified and ended; its folder held while it runs.

What many callers get of it is in test_supervisor.py.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from sandbox_agent.agents.boot import Boots, RunningAgent
from sandbox_agent.agents.launch import FolderGone, Launch, remove_unused
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.agents.process import Exit
from sandbox_agent.agents.supervisor import BOOT_TRIES, Supervisor
from sandbox_agent.errors import AgentBootFailed, AgentTimeout, ShuttingDown
from tests.support.running import BOUND, SCRIPTED, alive, eventually
from tests.support.workshop import Workshop, run

IT = Agent(id="it", title="It", description="", source="path", command=(), env={"FROM": "agent", "OWN": "agent"})


class SilentListener:
    def receive(self, running: RunningAgent, blob: bytes) -> None: ...
    def oversized(self, running: RunningAgent, head: bytes) -> None: ...
    def exited(self, running: RunningAgent, exit: Exit) -> None: ...


def launch(*flags: str, folder: Path | None = None, **env: str) -> Launch:
    return Launch((sys.executable, "-I", "-S", str(SCRIPTED), *flags), env, folder)


async def boot(boots: Boots, it: Launch) -> RunningAgent:
    return await boots.boot(IT, it, {}, SilentListener(), lambda _running, _exit: None)


def test_verifying_hears_what_an_agent_says_of_itself_and_ends_it_again(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            handshake = await shop.boots.verify(IT, launch("--state", str(state)))
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
                await shop.boots.verify(IT, launch(*flags))
            assert "stderr" in failed.value.fields  # type: ignore[attr-defined]

    run(main())


def test_its_folder_is_held_until_it_has_ended_by_whatever_cause(tmp_path: Path) -> None:
    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            for cause in ("stop", "kill"):
                folder = tmp_path / cause
                folder.mkdir()
                running = await boot(shop.boots, launch(folder=folder))
                remove_unused(folder)
                assert folder.is_dir()
                if cause == "stop":
                    await shop.boots.stop(running)
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
                await boot(shop.boots, launch("--exit-at-once", folder=tmp_path / "folder"))
            with pytest.raises(AgentBootFailed):
                await boot(shop.boots, Launch(("/no/such/program",), {}, tmp_path / "folder"))
            remove_unused(tmp_path / "folder")
            assert not (tmp_path / "folder").exists()

    run(main())


def test_what_is_being_removed_is_not_started(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            with pytest.raises(FolderGone):
                await boot(shop.boots, launch("--state", str(state), folder=tmp_path / "gone"))
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
            supervisor = Supervisor(SilentListener(), shop.boots, provide)
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
            supervisor = Supervisor(SilentListener(), shop.boots, provide)
            with pytest.raises(AgentBootFailed, match="replaced again and again"):
                await supervisor.process(IT)
            assert len(looked) == BOOT_TRIES

    run(main())


def test_an_install_that_the_server_ends_is_told_as_its_end(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def provide(agent: Agent) -> Launch:
        begun.set()
        await asyncio.sleep(0.05)
        return launch()

    async def main() -> None:
        async with Workshop(tmp_path) as shop:
            supervisor = Supervisor(SilentListener(), shop.boots, provide)
            asking = asyncio.create_task(supervisor.process(IT))
            await begun.wait()
            await supervisor.close(0.1)
            with pytest.raises(ShuttingDown):
                await asking
            eventually(lambda: supervisor.status("it").status == "stopped")

    run(main())
