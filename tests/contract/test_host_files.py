"""Contract, section 5: the server serves an agent's files, within the session's directories."""

import asyncio
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.support.asking import everything, methods
from tests.support.client import NO_CERTIFICATES, Client, Json, run
from tests.support.history import events_of
from tests.support.hosting import READ, WRITE, answer, answers, gets, refused
from tests.support.running import BOUND, TOKEN, Server, scripted
from tests.support.saying import said

OUTSIDE = "path_outside_workspace"


@contextmanager
def folders(*names: str) -> Generator[tuple[Path, ...]]:
    """Fresh folders beside each other."""
    with TemporaryDirectory() as parent:
        made = tuple(Path(parent) / name for name in names)
        for folder in made:
            folder.mkdir()
        yield made


def put(path: str, text: str) -> Path:
    Path(path).write_text(text)
    return Path(path)


async def session_in(client: Client, cwd: Path, *more: Path, **params: object) -> str:
    asked: Json = {"cwd": str(cwd), "mcpServers": [], "additionalDirectories": [str(each) for each in more], **params}
    return (await client.result("session/new", asked))["sessionId"]


@pytest.mark.requirement("5.host-files")
def test_an_agent_writes_and_reads_text(server: Server) -> None:
    async def main() -> None:
        with folders("work") as (work,):
            async with Client(server) as a:
                session = await session_in(a, work)
                path = str(work / "new" / "folder" / "grün.txt")
                assert await gets(a, session, WRITE, path=path, content="eins\nzwei\r\n\tdrei 𝄞") == {}
                assert (work / "new" / "folder" / "grün.txt").read_bytes() == "eins\nzwei\r\n\tdrei 𝄞".encode()
                assert await gets(a, session, READ, path=path) == {"content": "eins\nzwei\r\n\tdrei 𝄞"}
                assert await gets(a, session, READ, path=path, line=2, limit=1) == {"content": "zwei\r\n"}
                assert await gets(a, session, READ, path=path, line=None, limit=1) == {"content": "eins\n"}
                assert await gets(a, session, READ, path=path, line=9) == {"content": ""}

    run(main())


@pytest.mark.requirement("5.host-files")
def test_what_an_agent_asks_for_at_once_happens_in_its_order(server: Server) -> None:
    async def main() -> None:
        with folders("work") as (work,):
            async with Client(server) as a:
                session = await session_in(a, work)
                path = str(work / "file")
                asked = []
                for number in range(20):
                    asked += [(WRITE, {"path": path, "content": str(number)}), (READ, {"path": path})]
                answered = await answers(a, session, *asked)
                assert [one["result"].get("content") for one in answered[1::2]] == [str(n) for n in range(20)]

    run(main())


@pytest.mark.requirement("5.host-shares")
def test_agents_that_read_huge_files_delay_no_client() -> None:
    async def main(server: Server) -> None:
        work = Path(server.work)
        with (work / "huge").open("wb") as file:
            file.truncate(1 << 40)
        (work / "small").write_text("small")
        async with (
            Client(server) as a,
            httpx.AsyncClient(
                headers={"Authorization": f"Bearer {TOKEN}"}, timeout=BOUND, verify=NO_CERTIFICATES
            ) as http,
        ):
            read = (READ, {"path": f"{work}/huge", "line": 2})
            reading = [asyncio.create_task(answers(a, await a.new_session(), read, read)) for _ in range(12)]
            try:
                for _ in range(5):
                    found = await http.get(f"{server.url}/v1/fs/file", params={"path": f"{work}/small"}, timeout=BOUND)
                    assert found.text == "small"
                assert not any(each.done() for each in reading)
            finally:
                for each in reading:
                    each.cancel()
                await asyncio.wait(reading)

    with Server("--no-persist", "--text-scan", "32TiB") as server:
        run(main(server))


@pytest.mark.requirement("5.host-methods")
def test_the_server_answers_under_the_agents_id_without_asking_and_keeps_both(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            path = f"{server.work}/kept"
            put(path, "text")
            steps = [["ask_id", '"1.0"', READ, {"path": path}], ["echo_answer"], ["ask_id", "0", READ, {"path": path}]]
            first, second = map(json.loads, await said(a, session, *steps, ["echo_answer"]))
            assert first == {"jsonrpc": "2.0", "id": "1.0", "result": {"content": "text"}}
            assert second == {"jsonrpc": "2.0", "id": 0, "result": {"content": "text"}}
            assert READ not in methods(await everything(a, events))
            log = await events_of(a, session)
            asked = [event for event in log if event["envelope"].get("method") == READ]
            answered = [
                event for event in log if event["envelope"].get("id") in ("1.0", 0) and "result" in event["envelope"]
            ]
            assert [event["direction"] for event in (*asked, *answered)] == ["fromAgent"] * 2 + ["fromServer"] * 2
            assert asked[0]["envelope"]["params"] == {"sessionId": session, "path": path}

    run(main())


@pytest.mark.requirement("5.host-methods")
def test_session_with_a_taken_id_reads_files_under_the_agents_own_id(server: Server) -> None:
    """The log names the session by the server's id."""

    async def main() -> None:
        async with Client(server, "twin") as a, Client(server, "twin2") as b:
            await a.new_session()
            session = await b.new_session()
            assert session != "same"
            put(f"{server.work}/twin", "text")
            assert (await gets(b, session, READ, path=f"{server.work}/twin"))["content"] == "text"
            log = [event["envelope"] for event in await events_of(b, session)]
            assert [one["params"]["sessionId"] for one in log if one.get("method") == READ] == [session]

    run(main())


# Inside and outside


@pytest.mark.requirement("5.host-confined")
def test_whatever_leads_out_is_refused_and_said(server: Server) -> None:
    async def main() -> None:
        with folders("work", "outside", "workshop") as (work, outside, sibling):
            for folder in (outside, sibling):
                (folder / "secret").write_text("secret")
            (work / "link").symlink_to(outside / "secret")
            (work / "folder").symlink_to(outside)
            paths = [
                "/etc/passwd",
                "/proc/self/environ",
                "/dev/null",
                f"{work}/../outside/secret",
                f"{work}/link",
                f"{work}/folder/secret",
                f"/proc/self/root{outside}/secret",
                str(sibling / "secret"),
                "/",
            ]
            async with Client(server) as a:
                session = await session_in(a, work)
                for path in paths:
                    for error in (
                        await refused(a, session, READ, path=path),
                        await refused(a, session, WRITE, path=path, content="overwritten"),
                    ):
                        assert error["code"] == -32602
                        assert error["data"] == {"type": "invalid-params", "path": path, "errorKind": OUTSIDE}
                        assert path in error["message"]
                        assert "cwd and additionalDirectories" in error["message"]
            assert [(folder / "secret").read_text() for folder in (outside, sibling)] == ["secret", "secret"]
            assert os.listdir(outside) == ["secret"]

    run(main())


@pytest.mark.requirement("5.host-confined")
def test_what_is_no_text_file_is_refused_and_said(server: Server) -> None:
    async def main() -> None:
        with folders("work") as (work,):
            os.mkfifo(work / "fifo")
            (work / "bytes").write_bytes(b"a\xff")
            cases = [
                ("fifo", -32602, "not a regular file"),
                ("", -32602, "directory"),
                ("bytes", -32602, "not UTF-8 text: byte 1"),
                ("x" * 256, -32602, "too long"),
                ("missing", -32002, "No such file"),
            ]
            async with Client(server) as a:
                session = await session_in(a, work)
                for name, code, words in cases:
                    error = await refused(a, session, READ, path=f"{work}/{name}")
                    assert (error["code"], words in error["message"]) == (code, True), error
                    assert error["data"]["path"] == f"{work}/{name}"
                error = await refused(a, session, READ, path="relative")
                assert (error["code"], "absolute" in error["message"]) == (-32602, True)
                assert (await refused(a, session, READ, path=f"{work}/a\0b"))["code"] == -32602
                assert (await refused(a, session, WRITE, path=f"{work}/fifo", content=""))["code"] == -32602

    run(main())


@pytest.mark.requirement("5.host-confined")
def test_additional_directories_count_also_after_fork_load_resume_and_restart(tmp_path: Path) -> None:
    work, more, other, rest = (tmp_path / name for name in ("work", "more", "other", "server"))
    for folder in (work, more, other, rest):
        folder.mkdir()
    for folder in (more, other):
        (folder / "file").write_text(folder.name)

    async def reads(client: Client, session: str, *folders: Path) -> None:
        for folder in (more, other):
            answered = await answer(client, session, READ, path=str(folder / "file"))
            assert ("result" in answered) == (folder in folders), answered

    async def before(server: Server) -> str:
        async with Client(server) as a:
            plain, session = await session_in(a, work), await session_in(a, work, more)
            await reads(a, plain)
            await reads(a, session, more)
            fork = (await a.result("session/fork", {"sessionId": session, "cwd": str(work)}))["sessionId"]
            await reads(a, fork, more)
            fork = (
                await a.result(
                    "session/fork", {"sessionId": session, "cwd": str(work), "additionalDirectories": [str(other)]}
                )
            )["sessionId"]
            await reads(a, fork, other)
            await a.result("session/close", {"sessionId": session})
            # By its own prompt, then by a load and by a resume that say nothing of directories.
            await reads(a, session, more)
            for method in ("session/load", "session/resume"):
                await a.result("session/close", {"sessionId": session})
                await a.result(method, {"sessionId": session, "cwd": str(work)})
                await reads(a, session, more)
            return session

    async def after(server: Server, session: str) -> None:
        async with Client(server) as a:
            await reads(a, session, more)
            await a.result("session/close", {"sessionId": session})
            changed = {"sessionId": session, "cwd": str(other), "additionalDirectories": []}
            await a.result("session/load", {**changed, "mcpServers": []})
            await reads(a, session, other)

    async def last(server: Server, session: str) -> None:
        async with Client(server) as a:
            await reads(a, session, other)

    agents = {"scripted": scripted("--state", str(rest / "state"))}
    with Server(directory=rest, agents=agents) as server:
        session = run(before(server))
    with Server(directory=rest, agents=agents) as server:
        run(after(server, session))
    with Server(directory=rest, agents=agents) as server:
        run(last(server, session))


# Limits, and nonsense


@pytest.mark.requirement("5.host-limits")
def test_a_file_over_the_limit_is_refused_and_read_in_parts(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        path = put(f"{server.work}/large", "0123456789\n" * 1000)
        async with Client(server) as a:
            session = await a.new_session()
            error = await refused(a, session, READ, path=str(path))
            assert error["code"] == -32602
            assert error["data"] == {"type": "invalid-params", "path": str(path), "limit": 1024}
            assert "line and limit" in error["message"]
            assert (await gets(a, session, READ, path=str(path), line=1000))["content"] == "0123456789\n"

    with Server("--text-limit", "1KiB") as server:
        run(main(server))


@pytest.mark.requirement("5.host-limits")
def test_an_agent_that_asks_without_end_is_refused_and_served_again(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            path = f"{server.work}/many"
            put(path, "text")
            answered = await answers(a, session, *[(READ, {"path": path})] * 400)
            outcomes = {json.dumps(one.get("result") or one["error"]["data"]) for one in answered}
            assert outcomes <= {'{"content": "text"}', '{"type": "invalid-request", "limit": 256}'}
            assert (await gets(a, session, READ, path=path))["content"] == "text"

    run(main())


@pytest.mark.requirement("5.host-limits")
def test_an_agent_that_asks_for_more_than_it_reads_at_once_gets_it_all(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        path = put(f"{server.work}/large", "x" * 900_000)
        async with Client(server) as a:
            session = await a.new_session()
            asking = [["ask", READ, {"path": str(path)}]] * 20
            waiting = [["wait_answer"]] * 20
            # It would be far more than may wait for an agent that does not read.
            assert await said(a, session, *asking, *waiting, ["say", "all"]) == ["all"]

    with Server("--stdin-limit", "2MiB") as server:
        run(main(server))


@pytest.mark.requirement("5.host-unknown")
@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        (READ, {}, -32602),
        (READ, {"path": 1}, -32602),
        (READ, {"path": "/", "line": -1}, -32602),
        (READ, {"path": "/", "limit": "all"}, -32602),
        (WRITE, {"path": "/tmp/x"}, -32602),
        (READ, {"path": "/", "sessionId": "nobody"}, -32002),
        (READ, {"path": "/", "sessionId": None}, -32002),
        (READ, {"path": "/", "sessionId": 7}, -32002),
        ("fs/remove_everything", {}, -32601),
        ("terminal/create", {}, -32602),
        ("terminal/create", {"command": ""}, -32602),
        ("terminal/create", {"command": "a\0b"}, -32602),
        ("terminal/create", {"command": "true", "args": [1]}, -32602),
        ("terminal/create", {"command": "true", "env": [{"name": "A=B", "value": ""}]}, -32602),
        ("terminal/create", {"command": "true", "outputByteLimit": -1}, -32602),
        ("terminal/create", {"command": "true", "cwd": "/"}, -32602),
        ("terminal/create", {"command": "surely-not-a-program", "args": ["x"]}, -32002),
        ("terminal/output", {"terminalId": "terminal-1"}, -32002),
        ("terminal/wait_for_exit", {"terminalId": ""}, -32002),
        ("terminal/kill", {}, -32602),
        ("terminal/release", {"terminalId": None}, -32602),
        ("terminal/resize", {}, -32601),
    ],
)
def test_nonsense_is_an_error_to_the_agent_and_nothing_else(
    server: Server, method: str, params: Json, code: int
) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            assert (await refused(a, session, method, **params))["code"] == code
            seen = await everything(a, events)
            assert method not in methods(seen)
            assert (await a.prompt(session, "hello"))["result"] == {"stopReason": "end_turn"}

    run(main())
