"""The ACP registry (contract, section 9): fetched, kept, and used from the copy when it cannot be reached."""

import asyncio
import gc
import json
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxagent.core import tasks
from sandboxagent.protocol.errors import RegistryUnavailable
from sandboxagent.server.agents.install import registry as registries
from sandboxagent.server.agents.install.registry import RETRY_INTERVAL, Registry, Snapshot
from tests.support.client import run
from tests.support.loopback import Asked, Loopback, answer, redirect
from tests.support.running import BOUND

REGISTRY = "/registry.json"


def document(*ids: str) -> bytes:
    about = {"name": "Tested", "version": "1.2.3", "description": "-", "distribution": {"npx": {"package": "tested"}}}
    return json.dumps({"version": "1.0.0", "agents": [{"id": id, **about} for id in ids]}).encode()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def unavailable(registry: Registry) -> str:
    """The reason for which there is no registry at all."""
    with pytest.raises(RegistryUnavailable) as failed:
        await registry.snapshot()
    reason = str(failed.value.fields["reason"])
    assert reason in str(failed.value)
    assert "SANDBOX_AGENT_ACP_REGISTRY_URL" in str(failed.value)
    return reason


def ids(snapshot: Snapshot | None) -> list[str]:
    assert snapshot is not None
    return list(snapshot.entries)


# --- fetching and keeping ---------------------------------------------------------------------------------------------


def test_a_registry_is_fetched_once_and_then_used_until_it_is_old(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path, clock=clock)
            first = await registry.snapshot(max_age=300)
            assert (first.origin, first.fetched_at, first.problem, first.rejected) == ("live", clock.now, None, ())
            assert ids(first) == ["a"]

            clock.now += 299
            assert await registry.snapshot(max_age=300) == first
            assert len(server.asked) == 1

            server.routes[REGISTRY] = answer(document("a", "b"))
            clock.now += 1
            assert ids(await registry.snapshot(max_age=300)) == ["a", "b"]
            assert len(server.asked) == 2

    run(main())


def test_a_copy_on_disk_serves_the_next_process(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            url = server.url(REGISTRY)
            assert Registry(url, tmp_path).cached() is None
            fetched = await Registry(url, tmp_path, clock=clock).snapshot()
            clock.now += 100

            found = await Registry(url, tmp_path, clock=clock).snapshot(max_age=300)
            assert (found.entries, found.origin, found.problem) == (fetched.entries, "cached", None)
            assert found.fetched_at == fetched.fetched_at
            assert Registry(url, tmp_path).cached() == found
            assert len(server.asked) == 1

    run(main())


def test_the_copy_is_the_document_byte_for_byte(tmp_path: Path) -> None:
    body = document("a").replace(b",", b" ,\n ")

    async def main() -> None:
        async with Loopback({REGISTRY: answer(body)}) as server:
            await Registry(server.url(REGISTRY), tmp_path / "not" / "there", clock=Clock()).snapshot()

    run(main())
    files = {file.name: file.read_bytes() for file in (tmp_path / "not" / "there").iterdir()}
    assert sorted(files) == ["registry.json", "registry.metadata.json"]
    assert files["registry.json"] == body


def test_an_old_copy_is_asked_about_by_its_etag_and_date(tmp_path: Path) -> None:
    date = "Mon, 02 Feb 2026 10:00:00 GMT"

    async def main() -> None:
        clock = Clock()
        async with Loopback({REGISTRY: answer(document("a"), ETag='"v1"', Last_Modified=date)}) as server:
            await Registry(server.url(REGISTRY), tmp_path, clock=clock).snapshot()
            assert "if-none-match" not in server.asked[0].headers

            server.routes[REGISTRY] = answer(status="304 Not Modified", Content_Length=None, ETag='"v1"')
            clock.now += 1000
            again = Registry(server.url(REGISTRY), tmp_path, clock=clock)
            found = await again.snapshot()
            assert server.asked[1].headers["if-none-match"] == '"v1"'
            assert server.asked[1].headers["if-modified-since"] == date
            assert (ids(found), found.origin, found.fetched_at, found.problem) == (["a"], "live", clock.now, None)

            # It is known to be the newest from now on, for the next process too.
            clock.now += 200
            assert (await Registry(server.url(REGISTRY), tmp_path, clock=clock).snapshot()).origin == "cached"
            assert len(server.asked) == 2

    run(main())


def test_a_304_that_nobody_asked_for_is_no_registry(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback({REGISTRY: answer(status="304 Not Modified", Content_Length=None)}) as server:
            assert "304" in await unavailable(Registry(server.url(REGISTRY), tmp_path))

    run(main())


def test_an_etag_that_cannot_be_sent_back_is_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback({REGISTRY: answer(document("a"), ETag='"é"')}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path)
            await registry.snapshot()
            assert (await registry.snapshot(max_age=0)).origin == "live"
            assert "if-none-match" not in server.asked[1].headers

    run(main())


def test_concurrent_callers_share_one_fetch_that_survives_a_cancelled_one(tmp_path: Path) -> None:
    async def main() -> None:
        asked, let_go = asyncio.Event(), asyncio.Event()

        async def late(_: Asked, writer: asyncio.StreamWriter) -> None:
            asked.set()
            async with asyncio.timeout(BOUND):
                await let_go.wait()
            writer.write(answer(document("a")))

        async with Loopback({REGISTRY: late}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path)
            callers = [asyncio.create_task(registry.snapshot(max_age)) for max_age in (300, 300, 0)]
            async with asyncio.timeout(BOUND):
                await asked.wait()
            callers[0].cancel()
            let_go.set()
            found = await asyncio.gather(*callers, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert found[1] is found[2]
            assert len(server.asked) == 1

    run(main())


def test_a_failure_is_told_to_all_who_wait_and_missed_by_nobody_who_has_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(registry: Registry, callers: int, stay: int) -> list[object]:
        waiting = [asyncio.create_task(registry.snapshot()) for _ in range(callers)]
        async with asyncio.timeout(BOUND):
            await asked.wait()
        for caller in waiting[stay:]:
            caller.cancel()
        await asyncio.gather(*waiting[stay:], return_exceptions=True)
        let_go.set()
        return await asyncio.gather(*waiting[:stay], return_exceptions=True)

    async def late(_: Asked, writer: asyncio.StreamWriter) -> None:
        asked.set()
        async with asyncio.timeout(BOUND):
            await let_go.wait()
        writer.write(answer(status="500 Internal Server Error"))

    async def main() -> None:
        nonlocal asked, let_go
        async with Loopback({REGISTRY: late}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path)
            assert [type(failure) for failure in await failing(registry, 3, stay=2)] == [RegistryUnavailable] * 2
            assert len(server.asked) == 1

            asked, let_go = asyncio.Event(), asyncio.Event()
            await failing(registry, 2, stay=0)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert others
            await asyncio.wait(others, timeout=BOUND)
            reports = [(each.name, each.levelname) for each in caplog.records if "it answered 500" in each.getMessage()]
            assert reports == [(registries.__name__, "WARNING")] * 2 + [(tasks.__name__, "WARNING")]
            del others
        gc.collect()

    asked, let_go = asyncio.Event(), asyncio.Event()
    run(main())
    assert "never retrieved" not in caplog.text


def test_what_is_left_out_of_the_registry_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback({REGISTRY: answer(document("a", "B"))}) as server:
            found = await Registry(server.url(REGISTRY), tmp_path).snapshot()
            assert ids(found) == ["a"]
            (sentence,) = found.rejected
            assert "entry 2 ('B')" in sentence

    run(main())


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "mine and yours.json"
        for location in (str(file), file.as_uri()):
            file.write_bytes(document("a"))
            registry = Registry(location, tmp_path / "cache", clock=Clock())
            found = await registry.snapshot()
            assert (ids(found), found.origin, found.problem) == (["a"], "file", None)
            file.write_bytes(document("b"))
            assert ids(await registry.snapshot()) == ["b"]

    run(main())


def test_a_file_that_is_gone_leaves_its_copy(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "registry.json"
        file.write_bytes(document("a"))
        registry = Registry(str(file), tmp_path / "cache")
        await registry.snapshot()
        file.unlink()
        found = await registry.snapshot()
        assert (ids(found), found.origin) == (["a"], "cached")
        assert found.problem is not None
        assert str(file) in found.problem

    run(main())


@pytest.mark.parametrize("location", ["missing.json", ".", "file:///missing.json", "file://elsewhere/a", "file:///%00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, location: str) -> None:
    async def main() -> None:
        where = location if location.startswith("file:") else str(tmp_path / location)
        with pytest.raises(RegistryUnavailable) as failed:
            await Registry(where, tmp_path / "cache").snapshot()
        assert failed.value.fields["location"] == where
        assert where in str(failed.value)

    run(main())


# --- failures ---------------------------------------------------------------------------------------------------------

HTML = b"<!DOCTYPE html><title>Sign in</title>"


@pytest.mark.parametrize(
    ("play", "reason"),
    [
        (answer(status="500 Internal Server Error"), "500 Internal Server Error"),
        (answer(status="403 Forbidden"), "403 Forbidden"),
        (answer(document("a"), status="206 Partial Content"), "206"),
        (answer(status="799 Odd"), "799"),
        (answer(HTML, Content_Type="text/html"), "HTML"),
        (answer(document("a")[:-20]), "not whole JSON"),
        (answer(b'{"agents": "none"}'), "another shape"),
        (answer(document("a", "b"), Content_Length="9999"), "connection broke"),
        (answer(bytes(3000)), "larger than 2000 bytes"),
        (answer(bytes(3000), Content_Length=None), "larger than 2000 bytes"),
        (answer(document("a"), Content_Encoding="gzip"), "encoded with 'gzip'"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "connection broke"),
        (b"", "connection broke"),
        (redirect(REGISTRY), "redirects in a circle"),
        (redirect("ftp://example.com/registry.json"), "ftp:"),
        (redirect("file:///etc/passwd"), "file:"),
        (answer(status="302 Found"), "302 Found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_answer_is_named_and_the_copy_is_used_as_long_as_there_is_one(
    tmp_path: Path, play: bytes, reason: str
) -> None:
    async def main() -> None:
        clock = Clock()
        async with Loopback({REGISTRY: play}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path, max_bytes=2000, clock=clock)
            assert reason in await unavailable(registry)
            assert registry.cached() is None

            server.routes[REGISTRY] = answer(document("a"))
            fetched = await registry.snapshot()
            server.routes[REGISTRY] = play
            clock.now += 1000
            for process in (registry, Registry(server.url(REGISTRY), tmp_path, max_bytes=2000, clock=clock)):
                found = await process.snapshot()
                assert (found.entries, found.origin) == (fetched.entries, "cached")
                assert found.fetched_at == fetched.fetched_at
                assert found.problem is not None
                assert reason in found.problem

    run(main())


def test_a_registry_that_is_too_slow_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def slow(_: Asked, writer: asyncio.StreamWriter) -> None:
            whole = answer(document("a"))
            for at in range(len(whole)):  # Never silent for long, and never done.
                writer.write(whole[at : at + 1])
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await done.wait()
                    return

        async with Loopback({REGISTRY: slow}) as server:
            reason = await unavailable(Registry(server.url(REGISTRY), tmp_path, timeout=0.3))
            assert reason == "it did not come whole within 0.3 s"
            done.set()

    run(main())


def test_nobody_there_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback() as server:
            url = server.url(REGISTRY)
        assert "no connection" in await unavailable(Registry(url, tmp_path))

    run(main())


@pytest.mark.parametrize("location", ["ftp://example.com/a", "http://[::1/a", "http://", "https://exa mple/\u2028"])
def test_an_address_that_is_none_is_named(tmp_path: Path, location: str) -> None:
    assert run(unavailable(Registry(location, tmp_path)))


def test_redirects_are_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback({REGISTRY: redirect("/moved"), "/moved": answer(document("a"))}) as server:
            found = await Registry(server.url(REGISTRY), tmp_path).snapshot()
            assert (ids(found), found.origin) == (["a"], "live")
            assert [asked.path for asked in server.asked] == [REGISTRY, "/moved"]

    run(main())


def test_a_registry_that_failed_is_left_alone_for_a_moment(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path, clock=clock)
            await registry.snapshot()
            clock.now += 1000
            server.routes[REGISTRY] = answer(status="500 Internal Server Error")
            failed = await registry.snapshot()
            assert await registry.snapshot() == failed
            assert len(server.asked) == 2
            assert (await registry.snapshot(max_age=0)).problem is not None
            assert len(server.asked) == 3  # Who wants it now gets it tried now.

            server.routes[REGISTRY] = answer(document("b"))
            clock.now += RETRY_INTERVAL
            found = await registry.snapshot()
            assert (ids(found), found.origin, found.problem) == (["b"], "live", None)

    run(main())


def test_a_clock_that_was_set_back_makes_no_copy_new(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path, clock=clock)
            await registry.snapshot()
            clock.now -= 10_000
            await registry.snapshot()
            assert len(server.asked) == 2

    run(main())


# --- the copy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["registry.json", "registry.metadata.json"])
@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", document("other")])
def test_a_broken_copy_is_none(tmp_path: Path, name: str, damage: bytes) -> None:
    async def main() -> None:
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            url = server.url(REGISTRY)
            await Registry(url, tmp_path).snapshot()
            (tmp_path / name).write_bytes(damage)
            registry = Registry(url, tmp_path)
            assert registry.cached() is None
            assert (await registry.snapshot()).origin == "live"
            assert ids(Registry(url, tmp_path).cached()) == ["a"]

    run(main())


def test_a_copy_of_another_location_does_not_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            await Registry(server.url(REGISTRY), tmp_path).snapshot()
            for other in ("/other.json", f"{REGISTRY}?v=2"):
                assert Registry(server.url(other), tmp_path).cached() is None

    run(main())


def test_a_copy_that_cannot_be_kept_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        (tmp_path / "cache").write_text("a file where the folder should be")
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            registry = Registry(server.url(REGISTRY), tmp_path / "cache")
            assert (await registry.snapshot()).origin == "live"
            assert ids(registry.cached()) == ["a"]

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "registry copy not kept" in caplog.text


def test_no_password_is_shown_or_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        async with Loopback({REGISTRY: answer(document("a"))}) as server:
            location = server.url(f"{REGISTRY}?token=secret2").replace("://", "://me:secret1@")
            await Registry(location, tmp_path).snapshot()
            assert "authorization" in server.asked[0].headers
            server.routes.clear()
            problem = (await Registry(location, tmp_path).snapshot(max_age=0)).problem
            assert problem is not None
            assert server.url(f"{REGISTRY}?…") in problem
            with pytest.raises(RegistryUnavailable) as failed:
                await Registry(location, tmp_path / "other").snapshot()
            return f"{problem} {failed.value} {failed.value.fields}"

    told = run(main())
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert "secret" not in told + caplog.text + written.decode()
