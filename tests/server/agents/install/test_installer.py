"""One install for all who want it: shared, locked, verified, put in place at once.

With npm and uv as they are, from an index on this machine.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import ShuttingDown
from sandboxagent.server.agents.install.installer import InstallOutcome
from tests.server.agents.install.tiny import TINY, box
from tests.support.package_index import AGENT, PackageIndex, uvx
from tests.support.running import BOUND
from tests.support.workshop import Workshop, run

BODY = AGENT.partition("\n")[2]


# --- who asks at the same time ----------------------------------------------------------------------------------------


def test_all_who_want_the_same_share_one_install_and_one_result(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            outcomes = await asyncio.gather(*(shop.install("tiny") for _ in range(10)))
            assert all(outcome is outcomes[0] for outcome in outcomes)
            assert index.asked.count("/archives/tiny.tar.gz") == 1
            assert len(shop.folders("tiny")) == 1

    run(main())


def test_installs_of_different_versions_run_in_turn_and_the_last_stays(tmp_path: Path, index: PackageIndex) -> None:
    for version in ("1.0.0", "2.0.0"):
        index.pypi("py-agent", version)

    async def main() -> None:
        async with Workshop(tmp_path, index, uvx("snake", "py-agent==1.0.0")) as shop:
            any_, second, again = await asyncio.gather(
                shop.install("snake"), shop.install("snake", "2.0.0"), shop.install("snake", "2.0.0")
            )
            assert (any_.record.version, second.record.version) == ("1.0.0", "2.0.0")
            assert again is second
            assert (await shop.install("snake")).record == second.record
            assert len(shop.folders("snake")) == 1, "the first has been replaced"

    run(main())


def test_what_is_there_is_not_installed_again_unless_somebody_says_so(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            first = await shop.install("tiny")
            assert await shop.install("tiny") == InstallOutcome(first.record, already=True)
            assert await shop.install("tiny", "1.0.0") == InstallOutcome(first.record, already=True)
            asked = len(index.asked)
            again = await shop.install("tiny", reinstall=True)
            assert (again.already, again.record.version) == (False, "1.0.0")
            assert again.record.folder != first.record.folder
            assert len(index.asked) > asked
            assert [folder.name for folder in shop.folders("tiny")] == [again.record.folder]

    run(main())


def test_an_install_goes_on_when_those_who_asked_have_left(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tar.gz")

    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            asking = asyncio.create_task(shop.install("tiny"))
            await asyncio.to_thread(held.wait)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            job = shop.installer.job("tiny")
            assert job is not None
            held.release.set()
            assert (await shop.install("tiny")).record.version == "1.0.0"
            assert index.asked.count("/archives/tiny.tar.gz") == 1

    run(main())


def test_how_far_it_is_can_be_followed(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tgz")
    stages: list[str] = []

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            agent = await shop.catalog.find("tiny")
            job, task = shop.installer.begin(agent)
            assert shop.installer.job("tiny") is job

            async def follow() -> None:
                while True:
                    stages.append(job.progress.stage)
                    await job.changed()

            following = asyncio.create_task(follow())
            await asyncio.to_thread(held.wait)
            assert job.progress.stage == "fetching"
            assert job.progress.message.startswith("tiny-agent@1.0.0: ")
            held.release.set()
            await asyncio.shield(task)
            following.cancel()
            assert list(dict.fromkeys(stages)) == ["waiting", "resolving", "fetching", "verifying", "done"]
            assert shop.installer.job("tiny") is None

    run(main())


def test_two_installers_on_one_directory_install_once(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tar.gz")

    async def main() -> None:
        (tmp_path / "other").mkdir()
        agents = tmp_path / "agents"
        async with (
            Workshop(tmp_path, index, box(index)) as shop,
            Workshop(tmp_path / "other", index, box(index), agents_dir=agents) as other,
        ):
            first = asyncio.create_task(shop.install("tiny"))
            await asyncio.to_thread(held.wait)
            second = asyncio.create_task(other.install("tiny"))
            job = None
            while job is None:
                await asyncio.sleep(0)
                job = other.installer.job("tiny")
            while job.progress.message != "another process is installing it":
                await job.changed()
            held.release.set()
            assert (await first).already is False
            assert await second == InstallOutcome((await first).record, already=True)
            assert index.asked.count("/archives/tiny.tar.gz") == 1

    run(main())


INSTALLING = """
import asyncio, json, sys
from pathlib import Path
from tests.support.workshop import Workshop, run

directory, agents, entry = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])

async def main():
    shop = Workshop(directory, None, entry, agents_dir=agents)
    async with shop:
        print((await shop.install("tiny")).record.folder, flush=True)

run(main())
"""


def installing(directory: Path, agents: Path, index: PackageIndex) -> "subprocess.Popen[str]":
    """Another process that installs into the same directory."""
    directory.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", INSTALLING, str(directory), str(agents), json.dumps(box(index))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        cwd=Path(__file__).resolve().parents[4],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_install_once(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tar.gz")

    async def main() -> None:
        with installing(tmp_path / "other", tmp_path / "agents", index) as other:
            await asyncio.to_thread(held.wait)
            async with Workshop(tmp_path, index, box(index)) as shop:
                mine = asyncio.create_task(shop.install("tiny"))
                assert other.stdout is not None
                held.release.set()
                folder = (await asyncio.to_thread(other.stdout.readline)).strip()
                outcome = await mine
                assert (outcome.already, outcome.record.folder) == (True, folder)
                assert index.asked.count("/archives/tiny.tar.gz") == 1

    run(main())


def test_leftovers_of_a_killed_install_are_cleaned_up_by_the_next(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tar.gz")
    agents = tmp_path / "agents"

    async def main() -> None:
        with installing(tmp_path / "other", agents, index) as other:
            await asyncio.to_thread(held.wait)
            other.send_signal(signal.SIGKILL)
        held.release.set()
        index.repair()
        async with Workshop(tmp_path, index, box(index)) as shop:
            (half,) = shop.folders("tiny")
            assert shop.catalog.record(await shop.catalog.find("tiny")) is None
            record = (await shop.install("tiny")).record
            assert shop.folders("tiny") == [agents / "tiny" / record.folder]
            assert not half.exists()

    run(main())


def test_closing_ends_what_is_under_way_and_leaves_nothing(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tar.gz")

    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            asking = [asyncio.create_task(shop.install("tiny")) for _ in range(2)]
            await asyncio.to_thread(held.wait)
            async with asyncio.timeout(BOUND):
                await shop.installer.close()
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ShuttingDown, ShuttingDown]
            assert shop.folders("tiny") == []
            with pytest.raises(ShuttingDown):
                await shop.install("tiny")

    run(main())


# --- removing ---------------------------------------------------------------------------------------------------------


def test_uninstalling_forgets_it_and_deletes_it_when_nobody_runs_it(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            await shop.install("tiny")
            agent = await shop.catalog.find("tiny")
            launch = shop.catalog.launch(agent)
            assert launch is not None
            held = launch.lock_folder()
            assert await shop.installer.uninstall("tiny") is True
            assert (shop.catalog.launch(agent), len(shop.folders("tiny"))) == (None, 1)
            held.release()
            assert await shop.installer.uninstall("tiny") is False
            assert shop.folders("tiny") == []

    run(main())


# --- what others may see ----------------------------------------------------------------------------------------------


def test_npm_and_the_agent_see_no_secret_that_is_not_theirs(tmp_path: Path, index: PackageIndex) -> None:
    secrets = {
        name: f"secret-{name}"
        for name in (
            "ANTHROPIC_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "SANDBOX_AGENT_TOKEN",
            "GITHUB_TOKEN",
            "NODE_OPTIONS",
        )
    }
    program = f"require('fs').writeFileSync({str(tmp_path / 'seen')!r}, JSON.stringify(process.env));{BODY}"
    index.npm("tiny-agent", program=program)
    seen: list[dict[str, str]] = []

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY, environment={**secrets, "npm_config_maxsockets": "3"}) as shop:
            await shop.install("tiny")
            seen.extend(shop.runner.environments)

    run(main())
    (tool,) = seen
    agent = json.loads((tmp_path / "seen").read_text())
    assert tool["npm_config_maxsockets"] == "3"
    assert not secrets.keys() & tool.keys()
    assert not (secrets.keys() | {"npm_config_maxsockets"}) & agent.keys()
    kept = "".join(path.read_text() for path in (tmp_path / "agents").glob("*/installed.json"))
    assert "secret-" not in kept
