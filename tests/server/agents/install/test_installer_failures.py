"""An install that goes wrong: it names what, leaves nothing, and what was there stays."""

import asyncio
import gzip
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.protocol.errors import (
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    InstallFailed,
    RegistryUnavailable,
    SandboxAgentError,
    UnknownVersion,
    UnsupportedPlatform,
)
from sandboxagent.server.agents.install.registry_entries import current_platform
from tests.server.agents.install.tiny import TINY, box
from tests.support.package_index import AGENT, PackageIndex, closed_port, entry, packed, uvx
from tests.support.running import BOUND, alive, eventually
from tests.support.small_disk import mounted
from tests.support.workshop import Workshop, run

REFUSAL = '{"jsonrpc":"2.0","id":"sandbox-agent-initialize","error":{"code":1,"message":"no"}}'


async def failure(shop: Workshop, id: str, *versions: str) -> SandboxAgentError:
    """The error of an install that must fail, and must leave nothing."""
    before = shop.folders(id)
    with pytest.raises(SandboxAgentError) as failed:
        await shop.install(id, *versions)
    assert shop.folders(id) == before
    assert shop.installer.failure(id) == str(failed.value)
    assert shop.installer.job(id) is None
    return failed.value


def other_tarball(index: PackageIndex) -> None:
    """Good, and not what the index promised."""
    path = "/npm/-/tiny-agent-1.0.0.tgz"
    index._files[path] = gzip.compress(gzip.decompress(index._files[path]) + bytes(512))


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        pytest.param(lambda index: index.fail("/npm/tiny-agent", 500), DownloadFailed, id="the index is broken"),
        pytest.param(lambda index: index.fail("/npm/tiny-agent", 404), UnknownVersion, id="no such package"),
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


def test_after_a_failure_the_next_install_is_as_good_as_the_first(tmp_path: Path, index: PackageIndex) -> None:
    boxed = box(index)
    index.cut(".tar.gz")

    async def main() -> None:
        async with Workshop(tmp_path, index, boxed) as shop:
            await failure(shop, "tiny")
            index.repair()
            assert (await shop.install("tiny")).record.version == "1.0.0"
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
            # With the default retries.
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
                assert time.monotonic() - begun < BOUND

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
        boot_timeout = 1 if "in 1 s" in reason else BOUND
        async with Workshop(tmp_path, index, broken, boot_timeout=boot_timeout) as shop:
            error = await failure(shop, "tiny")
            assert isinstance(error, InstallFailed)
            assert reason in str(error)
            assert isinstance(error.fields["stderr"], str)
            if "no key" in program:
                assert (error.fields["stderr"], error.fields["exitCode"]) == ("no key", 3)

    run(main())


def test_what_was_there_stays_usable_when_its_successor_does_not_work(tmp_path: Path, index: PackageIndex) -> None:
    boxed = box(index)

    async def main() -> None:
        async with Workshop(tmp_path, index, boxed) as shop:
            good = (await shop.install("tiny")).record
            box(index, "#!/usr/bin/env node\nprocess.exit(1)")
            with pytest.raises(InstallFailed):
                await shop.install("tiny", reinstall=True)
            index.fail("/archives/")
            with pytest.raises(DownloadFailed):
                await shop.install("tiny", reinstall=True)
            agent = await shop.catalog.find("tiny")
            assert shop.catalog.record(agent) == good
            launch = shop.catalog.launch(agent)
            assert launch is not None
            assert (await shop.starter.verify(agent, launch)).capabilities["tiny"] is True

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
            shop.registry_file.write_text(json.dumps({"version": "1.0.0", "agents": [box(index)]}))
            assert (await shop.install("mine")).record.registry_slug == "tiny"

    run(main())


def test_our_pins_do_without_the_registry_and_the_record_says_why(tmp_path: Path, index: PackageIndex) -> None:
    index.npm_files("@qwen-code/qwen-code", "9.9.9", {"cli.js": AGENT})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            shop.registry_file.unlink()
            record = (await shop.install("qwen", "9.9.9")).record
            assert (record.source, record.registry_slug, record.package) == ("fallback", None, "@qwen-code/qwen-code")
            assert record.command[-1] == "--acp"
            assert record.note is not None
            assert "cannot be used" in record.note

    run(main())


def test_an_agent_that_the_user_wants_from_elsewhere_now_is_installed_from_there(
    tmp_path: Path, index: PackageIndex
) -> None:
    index.pypi("another-agent", "7.0.0")
    entries = (box(index), uvx("another", "another-agent==7.0.0"))

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
