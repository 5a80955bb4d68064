"""One install for all who want it: shared, locked, verified, put in place at once; and everything that goes wrong.

With npm and uv as they are, from an index on this machine.
"""

import asyncio
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandbox_agent.agents.install.entries import current_platform
from sandbox_agent.agents.install.installer import InstallOutcome
from sandbox_agent.errors import DiskFull, SandboxAgentError, ShuttingDown
from sandbox_agent.install_errors import (
    ChecksumMismatch,
    DownloadFailed,
    InstallFailed,
    RegistryUnavailable,
    UnknownVersion,
    UnsupportedPlatform,
)
from tests.support.package_index import AGENT, PackageIndex, closed_port, entry, npx, packed, uvx
from tests.support.running import BOUND, alive, eventually
from tests.support.small_disk import mounted
from tests.support.workshop import Workshop, run

TINY = npx("tiny", "tiny-agent@1.0.0")
REFUSAL = '{"jsonrpc":"2.0","id":"sandbox-agent-initialize","error":{"code":1,"message":"no"}}'
BODY = AGENT.partition("\n")[2]


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with PackageIndex() as running:
        running.npm("tiny-agent")
        yield running


def box(index: PackageIndex, program: str = AGENT) -> dict[str, Any]:
    """An agent in an archive, for tests that are not about npm: it takes a tenth of the time."""
    files = {"bin/tiny": program, "bin/package.json": json.dumps({"name": "tiny", "version": "1.0.0"})}
    url = index.archive("tiny.tar.gz", packed(files))
    return entry("tiny", binary={current_platform(): {"archive": url, "cmd": "bin/tiny"}})


async def failure(shop: Workshop, id: str, *versions: str) -> SandboxAgentError:
    """The error of an install that must fail, and must leave nothing."""
    before = shop.folders(id)
    with pytest.raises(SandboxAgentError) as failed:
        await shop.install(id, *versions)
    assert shop.folders(id) == before
    assert shop.installer.failure(id) == str(failed.value)
    assert shop.installer.job(id) is None
    return failed.value


# --- who asks at the same time ----------------------------------------------------------------------------------------


def test_all_who_want_the_same_share_one_install_and_one_result(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            outcomes = await asyncio.gather(*(shop.install("tiny") for _ in range(10)))
            assert all(outcome is outcomes[0] for outcome in outcomes)
            assert index.asked.count("/archives/tiny.tar.gz") == 1
            assert len(shop.folders("tiny")) == 1

    run(main())


def test_those_who_want_it_otherwise_come_one_after_the_other_and_the_last_stays(
    tmp_path: Path, index: PackageIndex
) -> None:
    index.npm("tiny-agent", "2.0.0")

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            any_, second, again = await asyncio.gather(
                shop.install("tiny"), shop.install("tiny", "2.0.0"), shop.install("tiny", "2.0.0")
            )
            assert (any_.record.version, second.record.version) == ("1.0.0", "2.0.0")
            assert again is second
            assert (await shop.install("tiny")).record == second.record
            assert len(shop.folders("tiny")) == 1, "the first has been replaced"

    run(main())


def test_what_is_there_is_not_installed_again_unless_somebody_says_so(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
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
from tests.support.package_index import npx
from tests.support.workshop import Workshop, run

directory, agents, environment = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])

async def main():
    shop = Workshop(directory, None, npx("tiny", "tiny-agent@1.0.0"), environment=environment, agents_dir=agents)
    async with shop:
        print((await shop.install("tiny")).record.folder, flush=True)

run(main())
"""


def installing(directory: Path, agents: Path, index: PackageIndex) -> "subprocess.Popen[str]":
    """Another process that installs into the same directory."""
    directory.mkdir()
    given = json.dumps({name: value for name, value in index.environment.items() if value})
    return subprocess.Popen(
        [sys.executable, "-c", INSTALLING, str(directory), str(agents), given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        cwd=Path(__file__).resolve().parents[3],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_install_once(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tgz")

    async def main() -> None:
        with installing(tmp_path / "other", tmp_path / "agents", index) as other:
            await asyncio.to_thread(held.wait)
            async with Workshop(tmp_path, index, TINY) as shop:
                mine = asyncio.create_task(shop.install("tiny"))
                assert other.stdout is not None
                held.release.set()
                folder = (await asyncio.to_thread(other.stdout.readline)).strip()
                outcome = await mine
                assert (outcome.already, outcome.record.folder) == (True, folder)
                assert index.asked.count("/npm/-/tiny-agent-1.0.0.tgz") == 1

    run(main())


def test_who_is_killed_half_way_leaves_what_the_next_one_cleans_up(tmp_path: Path, index: PackageIndex) -> None:
    held = index.hold(".tgz")
    agents = tmp_path / "agents"

    async def main() -> None:
        with installing(tmp_path / "other", agents, index) as other:
            await asyncio.to_thread(held.wait)
            other.send_signal(signal.SIGKILL)
        held.release.set()
        index.repair()
        async with Workshop(tmp_path, index, TINY) as shop:
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


# --- it goes wrong ----------------------------------------------------------------------------------------------------


def other_tarball(index: PackageIndex) -> None:
    """Good, and not what the index promised."""
    path = "/npm/-/tiny-agent-1.0.0.tgz"
    index._files[path] = gzip.compress(gzip.decompress(index._files[path]) + bytes(512))


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        pytest.param(lambda index: index.fail("/npm/tiny-agent", 500), DownloadFailed, id="the index is broken"),
        pytest.param(lambda index: index.fail("/npm/tiny-agent", 403), DownloadFailed, id="the index lets nobody in"),
        pytest.param(lambda index: index.fail("/npm/tiny-agent", 404), UnknownVersion, id="no such package"),
        pytest.param(lambda index: index.fail(".tgz", 500), DownloadFailed, id="the tarball cannot be had"),
        pytest.param(lambda index: index.cut(".tgz"), DownloadFailed, id="the tarball is cut"),
        pytest.param(lambda index: index.cut("/npm/tiny-agent"), DownloadFailed, id="the index is cut"),
        pytest.param(other_tarball, ChecksumMismatch, id="another tarball"),
        pytest.param(lambda index: index.npm("tiny-agent", os=["sunos"]), UnsupportedPlatform, id="another system"),
        pytest.param(lambda index: index.npm("tiny-agent", program=None), InstallFailed, id="no program"),
        pytest.param(
            lambda index: index.npm("tiny-agent", dependencies={"no-such": "1.0.0"}), UnknownVersion, id="no such part"
        ),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing_and_says_why(
    tmp_path: Path, index: PackageIndex, prepare: Any, error: type[SandboxAgentError]
) -> None:
    prepare(index)

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            assert type(await failure(shop, "tiny")) is error

    run(main())


@pytest.mark.parametrize("prepare", [lambda index: index.cut(".tgz"), other_tarball], ids=["cut", "another tarball"])
def test_after_a_failure_the_next_install_is_as_good_as_the_first(
    tmp_path: Path, index: PackageIndex, prepare: Any
) -> None:
    prepare(index)

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            await failure(shop, "tiny")
            index.repair()
            index.npm("tiny-agent", "1.0.1")
            assert (await shop.install("tiny", "1.0.1")).record.version == "1.0.1"
            assert shop.installer.failure("tiny") is None

    run(main())


def test_a_version_that_does_not_exist_is_named(tmp_path: Path, index: PackageIndex) -> None:
    index.pypi("py-agent")

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY, uvx("snake", "py-agent==1.0.0")) as shop:
            error = await failure(shop, "tiny", "9.9.9")
            assert isinstance(error, UnknownVersion)
            assert "tiny-agent@9.9.9" in str(error)
            error = await failure(shop, "snake", "9.9.9")
            assert isinstance(error, UnknownVersion)
            assert "py-agent==9.9.9" in str(error)

    run(main())


def test_an_index_that_nobody_serves_fails_soon(tmp_path: Path) -> None:
    async def main() -> None:
        with closed_port() as url:
            # As it is for everybody, with the retries that there are.
            indexes = {
                "npm_config_registry": f"{url}/",
                "UV_DEFAULT_INDEX": f"{url}/",
                "UV_CACHE_DIR": f"{tmp_path}/uv",
            }
            retries = {"npm_config_fetch_retries": None, "UV_HTTP_RETRIES": None}
            entries = (TINY, uvx("snake", "py-agent==1.0.0"))
            async with Workshop(tmp_path, None, *entries, environment={**indexes, **retries}) as shop:
                begun = time.monotonic()
                errors = await asyncio.gather(failure(shop, "tiny"), failure(shop, "snake"))
                assert [type(error) for error in errors] == [DownloadFailed, DownloadFailed]
                assert time.monotonic() - begun < 15

    run(main())


def test_a_package_that_is_not_what_we_pinned_is_refused(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            qwen = await shop.catalog.find("qwen")
            index.npm_files("@qwen-code/qwen-code", qwen.packages[0].version, {"cli.js": AGENT})
            error = await failure(shop, "qwen")
            assert isinstance(error, ChecksumMismatch)
            assert error.fields["expected"] == qwen.packages[0].integrity

    run(main())


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("console.error('no key'); process.exit(3)", "it exited before it answered"),
        ("console.log('garbage\\n{}\\n[]'); setTimeout(() => {}, 60000)", "did not answer initialize in 1 s"),
        ("setTimeout(() => {}, 60000)", "did not answer initialize in 1 s"),
        ("process.kill(process.pid, 'SIGKILL')", "it exited before it answered"),
        ("this is not JavaScript", "it exited before it answered"),
        (f"console.log('{REFUSAL}'); setTimeout(() => {{}}, 60000)", "it refused initialize: no"),
    ],
    ids=["exits", "garbage", "silent", "killed", "broken", "refuses"],
)
def test_an_agent_that_does_not_work_is_not_installed(
    tmp_path: Path, index: PackageIndex, program: str, reason: str
) -> None:
    broken = box(index, f"#!/usr/bin/env node\n{program}")

    async def main() -> None:
        # On a busy machine it takes more than a second to exit.
        patience = 1 if "in 1 s" in reason else BOUND
        async with Workshop(tmp_path, index, broken, boot_timeout=patience) as shop:
            error = await failure(shop, "tiny")
            assert isinstance(error, InstallFailed)
            assert reason in str(error)
            assert isinstance(error.fields["stderr"], str)
            if "no key" in program:
                assert (error.fields["stderr"], error.fields["exitCode"]) == ("no key", 3)

    run(main())


def test_what_was_there_stays_usable_when_its_successor_does_not_work(tmp_path: Path, index: PackageIndex) -> None:
    index.npm("tiny-agent", "2.0.0", program="#!/usr/bin/env node\nprocess.exit(1)")

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            good = (await shop.install("tiny")).record
            assert isinstance(await failure(shop, "tiny", "2.0.0"), InstallFailed)
            index.fail("/npm/")
            with pytest.raises(DownloadFailed):
                await shop.install("tiny", reinstall=True)
            agent = await shop.catalog.find("tiny")
            assert shop.catalog.record(agent) == good
            launch = shop.catalog.launch(agent)
            assert launch is not None
            assert (await shop.boots.verify(agent, launch)).capabilities["tiny"] is True

    run(main())


def test_an_install_that_takes_too_long_ends_with_all_it_started(tmp_path: Path, index: PackageIndex) -> None:
    index.hold(".tgz")

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY, timeout=1.5) as shop:
            error = await failure(shop, "tiny")
            assert isinstance(error, InstallFailed)
            assert "not ready within 1.5 s (tiny-agent@1.0.0: " in str(error)
            assert "--install-timeout" in str(error)
            eventually(lambda: not npm_of(tmp_path), "the end of npm")

    run(main())


def npm_of(directory: Path) -> list[int]:
    """The processes that install beneath a directory."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"--prefix\0{directory}" in (process / "cmdline").read_text() and alive(int(process.name)):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_waiting_for_another_process_takes_no_longer_than_an_install(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, box(index), timeout=0.5) as shop:
            with shop.store.locked("tiny") as ours:
                assert ours
                error = await failure(shop, "tiny")
                assert "another process is installing it" in str(error)
                with pytest.raises(InstallFailed, match="another process"):
                    await shop.installer.uninstall("tiny")

    run(main())


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, index: PackageIndex) -> None:
    (tmp_path / "file").write_text("x")

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY, agents_dir=tmp_path / "file") as shop:
            error = await failure(shop, "tiny")
            assert isinstance(error, InstallFailed)
            assert str(tmp_path / "file") in str(error)

    run(main())


def fill(disk: Path) -> None:
    """Take all the space that is left."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path, index: PackageIndex) -> None:
    index.pypi("py-agent")
    index.npm_files("tiny-agent", "1.0.0", {"cli.js": AGENT, "big": os.urandom(1 << 20).hex()}, bin="cli.js")
    url = index.archive("big.tar.gz", packed({"tiny": AGENT, "big": os.urandom(1 << 20).hex()}))
    boxed = entry("boxed", binary={current_platform(): {"archive": url, "cmd": "tiny"}})
    small = tmp_path / "small"

    async def main() -> None:
        entries = (TINY, boxed, uvx("snake", "py-agent==1.0.0"))
        async with Workshop(tmp_path, index, *entries, agents_dir=small) as shop:
            for id in ("tiny", "boxed"):
                error = await failure(shop, id)
                assert isinstance(error, DiskFull), error
                assert error.fields["directory"] == str(small)
            assert shutil.disk_usage(small).free > 400_000, "nothing is left of the attempts"
            fill(small)
            assert isinstance(await failure(shop, "snake"), DiskFull)

    with mounted(small, "size=500k"):
        run(main())


def test_what_the_registry_alone_has_cannot_be_installed_without_it(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, agents='[agents.mine]\nregistry = "tiny"') as shop:
            shop.registry_file.write_text("no JSON")
            assert isinstance(await failure(shop, "mine"), RegistryUnavailable)
            shop.registry_file.write_text(json.dumps({"version": "1.0.0", "agents": [TINY]}))
            assert (await shop.install("mine")).record.registry_slug == "tiny"

    run(main())


def test_our_pins_do_without_the_registry_and_the_record_says_why(tmp_path: Path, index: PackageIndex) -> None:
    index.npm_files("@qwen-code/qwen-code", "9.9.9", {"cli.js": AGENT})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            shop.registry_file.unlink()
            record = (await shop.install("qwen", "9.9.9")).record
            assert record.source == "fallback"
            assert record.note is not None
            assert "cannot be used" in record.note

    run(main())


def test_an_agent_that_the_user_wants_from_elsewhere_now_is_installed_from_there(
    tmp_path: Path, index: PackageIndex
) -> None:
    index.npm("another-agent", "7.0.0")
    entries = (TINY, npx("another", "another-agent@7.0.0"))

    async def main() -> None:
        async with Workshop(tmp_path, index, *entries, agents='[agents.mine]\nregistry = "tiny"') as shop:
            assert (await shop.install("mine")).record.version == "1.0.0"
        async with Workshop(tmp_path, index, *entries, agents='[agents.mine]\nregistry = "another"') as shop:
            assert shop.catalog.launch(await shop.catalog.find("mine")) is None
            outcome = await shop.install("mine")
            assert (outcome.already, outcome.record.package, outcome.record.version) == (
                False,
                "another-agent",
                "7.0.0",
            )

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
