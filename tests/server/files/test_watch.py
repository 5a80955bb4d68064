"""Watches of clients: changes wait in a bounded buffer, and there are only so many watches."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import FileNotFound, TooMany, WatchesExhausted
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.watch import Change, Watch, Watches
from tests.support.client import run
from tests.support.running import BOUND

POOL = Pool("test", 4)


def test_changes_of_a_moment_come_together_one_for_a_path(tmp_path: Path) -> None:
    async def main() -> None:
        async with Watches(1, 1 << 20, 1000, POOL).open(
            Confined([str(tmp_path)]), str(tmp_path), recursive=True
        ) as watch:
            for number in range(10):
                (tmp_path / "file").write_text(str(number))
            (tmp_path / "gone").write_text("x")
            (tmp_path / "gone").unlink()
            changes, missed = await watch.take(5)
            expected = [Change("added", f"{tmp_path}/file"), Change("deleted", f"{tmp_path}/gone")]
            assert (changes, missed) == (expected, False)
            assert await watch.take(0.01) == ([], False)

    run(main())


def test_a_slow_reader_gets_a_gap_and_then_what_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with Watches(1, 2000, 1000, POOL).open(Confined([str(tmp_path)]), str(tmp_path), recursive=True) as watch:
            for number in range(100):
                (tmp_path / f"file{number}").write_text("x")
            assert await watch.take(5) == ([], True)
            (tmp_path / "after").write_text("x")
            assert await watch.take(5) == ([Change("added", f"{tmp_path}/after")], False)

    run(main())


def test_a_directory_that_goes_ends_it_after_the_last_changes(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()

    async def main() -> None:
        root = tmp_path / "root"
        async with Watches(1, 2000, 1000, POOL).open(Confined([str(root)]), str(root), recursive=True) as watch:
            (root / "file").write_text("x")
            (root / "file").unlink()
            root.rmdir()
            assert await watch.take(5) == ([Change("deleted", f"{root}/file")], False)
            assert watch.ended == "gone"

    run(main())


def test_there_are_only_so_many_and_each_gives_its_place_back(tmp_path: Path) -> None:
    async def main() -> None:
        watches, confined = Watches(2, 2000, 1000, POOL), Confined([str(tmp_path)])
        for _ in range(3):
            with pytest.raises(FileNotFound):
                await watches.open(confined, f"{tmp_path}/none", recursive=True).__aenter__()
        before = len(os.listdir("/proc/self/fd"))
        async with watches.open(confined, str(tmp_path), recursive=True):
            async with watches.open(confined, str(tmp_path), recursive=False) as second:
                with pytest.raises(TooMany):
                    await watches.open(confined, str(tmp_path), recursive=True).__aenter__()
                watches.close()
                async with asyncio.timeout(BOUND):
                    await second.take(60)
                assert second.ended == "stopping"
            async with watches.open(confined, str(tmp_path), recursive=True):
                pass
        assert len(os.listdir("/proc/self/fd")) == before

    run(main())


@pytest.mark.requirement("13.watch-shared")
def test_readers_of_one_tree_and_of_trees_that_overlap_share_what_is_watched(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "a/b/c").mkdir(parents=True)
        (tmp_path / "d").mkdir()
        watches, confined = Watches(9, 1 << 20, 1000, POOL), Confined([str(tmp_path)])
        before = len(os.listdir("/proc/self/fd"))
        async with (
            watches.open(confined, str(tmp_path / "a"), recursive=True) as inner,
            watches.open(confined, str(tmp_path), recursive=True) as outer,
        ):
            assert watches.directories == 5
            instances = len(os.listdir("/proc/self/fd"))
            async with watches.open(confined, str(tmp_path), recursive=True) as twin:
                assert watches.directories == 5
                assert len(os.listdir("/proc/self/fd")) == instances
                (tmp_path / "a/b/file").write_text("x")
                expected = Change("added", f"{tmp_path}/a/b/file")
                for each in (inner, outer, twin):
                    assert await each.take(BOUND) == ([expected], False)
            # What one of them leaves is still watched for the others.
            assert watches.directories == 5
            (tmp_path / "a/b").rename(tmp_path / "d/b")
            assert await inner.take(BOUND) == ([Change("deleted", f"{tmp_path}/a/b")], False)
            (tmp_path / "d/b/file").write_text("y")
            # Whether it was written before or after it was watched there.
            written = f"{tmp_path}/d/b/file"
            await _until(outer, Change("modified", written), Change("added", written))
            assert await inner.take(0.01) == ([], False)
            assert watches.directories == 5
        assert watches.directories == 0
        assert len(os.listdir("/proc/self/fd")) == before

    run(main())


async def _until(watch: Watch, *last: Change) -> None:
    async with asyncio.timeout(BOUND):
        while not any(change in last for change in (await watch.take(BOUND))[0]):
            pass


@pytest.mark.requirement("13.watch-shared")
def test_a_reader_that_is_too_slow_costs_another_one_of_the_same_tree_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        watches, confined = Watches(2, 20_000, 1000, POOL), Confined([str(tmp_path)])
        async with (
            watches.open(confined, str(tmp_path), recursive=True) as slow,
            watches.open(confined, str(tmp_path), recursive=True) as quick,
        ):
            found = set[str]()
            for number in range(400):
                (tmp_path / f"file{number}").write_text("x")
                if not number % 10:
                    changes, missed = await quick.take(BOUND)
                    assert not missed
                    found |= {change.path for change in changes}
            while len(found) < 400:
                changes, missed = await quick.take(BOUND)
                assert not missed
                found |= {change.path for change in changes}
            assert (await slow.take(BOUND))[1]

    run(main())


@pytest.mark.requirement("13.watch-limits")
def test_watched_directories_are_bounded_and_the_error_names_the_limits(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "a").mkdir()
        watches, confined = Watches(9, 2000, 2, POOL), Confined([str(tmp_path)])
        async with watches.open(confined, str(tmp_path), recursive=True) as watch:
            (tmp_path / "other").mkdir()
            with pytest.raises(WatchesExhausted) as raised:
                await watches.open(confined, str(tmp_path / "other"), recursive=True).__aenter__()
            assert raised.value.fields == {
                "path": str(tmp_path / "other"),
                "setting": "--watched-directories",
                "limit": 2,
            }
            assert "fs.inotify.max_user_watches" in str(raised.value)
            # Its own new folder is one too many as well.
            while watch.ended is None:
                await watch.take(BOUND)
            assert watch.ended == "exhausted"
        async with watches.open(confined, str(tmp_path / "a"), recursive=True):
            assert watches.directories == 1

    run(main())


SCRIPT = """
import asyncio, sys
from sandboxagent.protocol.errors import WatchesExhausted
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.watch import Watches
from sandboxagent.core.threads import Pool

async def main():
    watches = Watches(1, 2000, 1000, Pool("test", 1))
    async with watches.open(Confined([sys.argv[1]]), sys.argv[1], recursive=True) as watch:
        print("open", flush=True)
        sys.stdin.readline()
        while watch.ended is None:
            await watch.take(5)
        print(watch.ended)

try:
    asyncio.run(main())
except WatchesExhausted as error:
    print(error.fields["setting"])
"""


@pytest.mark.parametrize(
    ("limit", "setting"),
    [
        ("max_inotify_instances", "fs.inotify.max_user_instances"),
        ("max_inotify_watches", "fs.inotify.max_user_watches"),
    ],
)
def test_a_kernel_that_gives_no_more_is_said_with_its_setting(tmp_path: Path, limit: str, setting: str) -> None:
    (tmp_path / "below").mkdir()
    value = 0 if limit == "max_inotify_instances" else 1
    assert limited(tmp_path, limit, value).communicate(timeout=60)[0] == f"{setting}\n"


def test_a_new_folder_beyond_the_limit_ends_it(tmp_path: Path) -> None:
    process = limited(tmp_path, "max_inotify_watches", 1)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        (tmp_path / "new").mkdir()
        assert process.communicate("go\n", timeout=60)[0] == "exhausted\n"


def limited(path: Path, limit: str, value: int) -> "subprocess.Popen[str]":
    """The script in a user namespace of its own, where the kernel gives so many."""
    command = f"echo {value} > /proc/sys/user/{limit} && exec {sys.executable} -c '{SCRIPT}' {path}"
    unshare = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("there are no user namespaces here")
    return subprocess.Popen([*unshare, "sh", "-c", command], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
