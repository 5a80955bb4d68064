"""Archives: fetched whole or not at all, and unpacked without touching anything outside."""

import asyncio
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.protocol.errors import ChecksumMismatch, DiskFull, DownloadFailed, UnsafeArchive
from sandboxagent.server.agents.install.archive import fetch
from tests.support.client import run
from tests.support.loopback import Asked, Loopback, answer, redirect
from tests.support.running import BOUND
from tests.support.small_disk import mounted
from tests.support.unpacking import MIB

# --- fetching ---------------------------------------------------------------------------------------------------------


class Steps:
    """Remembers progress."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def __call__(self, done: int, total: int | None) -> None:
        self.seen.append((done, total))


async def get(url: str, target: Path, sha256: str | None = None, max_bytes: int = 10 * MIB, **more: Any) -> str:
    return await fetch(url, target, sha256=sha256, max_bytes=max_bytes, progress=more.pop("progress", Steps()), **more)


def test_a_file_is_fetched_with_its_digest_and_progress(tmp_path: Path) -> None:
    body = os.urandom(3 * MIB)
    digest = hashlib.sha256(body).hexdigest()

    async def main() -> None:
        async with Loopback({"/moved": redirect("/a"), "/a": answer(body)}) as server:
            steps = Steps()
            assert await get(server.url("/moved"), tmp_path / "a", digest.upper(), progress=steps) == digest
            assert steps.seen[-1] == (len(body), len(body))
            assert len(steps.seen) > 2
            assert [done for done, _ in steps.seen] == sorted({done for done, _ in steps.seen})

    run(main())
    assert (tmp_path / "a").read_bytes() == body
    assert run(get((tmp_path / "a").as_uri(), tmp_path / "b")) == digest
    assert (tmp_path / "b").read_bytes() == body


def test_a_total_that_nobody_promised_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback({"/a": answer(b"body", Content_Length=None)}) as server:
            steps = Steps()
            await get(server.url("/a"), tmp_path / "a", progress=steps)
            assert steps.seen == [(4, None)]

    run(main())


@pytest.mark.parametrize(
    ("play", "reason", "status"),
    [
        (answer(status="404 Not Found"), "404 Not Found", 404),
        (answer(status="503 Service Unavailable"), "503", 503),
        (answer(b"half", Content_Length="8"), "connection broke", None),
        (redirect("ftp://example.com/a"), "ftp:", 302),
        (b"", "connection broke", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_download_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, play: bytes, reason: str, status: int | None
) -> None:
    async def main() -> None:
        async with Loopback({"/a": play}) as server:
            url = server.url("/a?token=secret").replace("://", "://me:secret@")
            with pytest.raises(DownloadFailed) as failed:
                await get(url, tmp_path / "a")
            assert failed.value.fields.get("upstreamStatus") == status
            assert failed.value.fields["url"] == server.url("/a?…")
            assert reason in str(failed.value.fields["reason"])
            assert reason in str(failed.value)
            assert "secret" not in f"{failed.value} {failed.value.fields}"

    run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def silent(_: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(answer(bytes(MIB), Content_Length=str(2 * MIB)))
            await done.wait()

        async with Loopback({"/a": silent}) as server:
            with pytest.raises(DownloadFailed, match="nothing came"):
                await get(server.url("/a"), tmp_path / "a", silence=0.2)
            done.set()

    run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_nobody_waits_for_any_more_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        done, begun = asyncio.Event(), asyncio.Event()

        async def endless(_: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(answer(bytes(MIB), Content_Length=str(2 * MIB)))
            await done.wait()

        async with Loopback({"/a": endless}) as server:
            fetching = asyncio.create_task(get(server.url("/a"), tmp_path / "a", progress=lambda *_: begun.set()))
            async with asyncio.timeout(BOUND):
                await begun.wait()
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            done.set()

    run(main())
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_what_was_pinned_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"other")

    with pytest.raises(ChecksumMismatch) as mismatch:
        run(get((tmp_path / "source").as_uri(), tmp_path / "a", "00" * 32))
    assert mismatch.value.fields["expected"] == "00" * 32
    assert mismatch.value.fields["actual"] == hashlib.sha256(b"other").hexdigest()
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("length", ["promised", None])
def test_what_is_larger_than_allowed_is_stopped(tmp_path: Path, length: str | None) -> None:
    async def main() -> None:
        steps = Steps()
        body = answer(bytes(3 * MIB)) if length else answer(bytes(3 * MIB), Content_Length=None)
        async with Loopback({"/a": body}) as server:
            with pytest.raises(UnsafeArchive, match="larger than 1048576 bytes"):
                await get(server.url("/a"), tmp_path / "a", max_bytes=MIB, progress=steps)
            assert all(done <= MIB for done, _ in steps.seen)
            assert not (length and steps.seen)

    run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=re.escape(str(tmp_path / "missing"))):
        run(get((tmp_path / "missing").as_uri(), tmp_path / "a"))


def test_a_full_disk_has_a_name_and_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"#!" + os.urandom(2 * MIB))

    with mounted(tmp_path / "disk", f"size={MIB},nr_inodes=20") as disk:
        with pytest.raises(DiskFull) as full:
            run(get((tmp_path / "program").as_uri(), disk / "a"))
        assert full.value.fields["directory"] == str(disk)
        assert list(disk.iterdir()) == []
