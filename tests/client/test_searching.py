"""Searching through the SDK."""

from collections.abc import Callable, Coroutine
from pathlib import Path

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.client.api import Api
from sandboxagent.client.errors import ConnectionLost, ForeignAnswer, ServerProblem
from sandboxagent.client.files import Files, Match, _lines
from tests.support.client import run
from tests.support.loopback import Loopback, answer
from tests.support.running import TOKEN, Server


def using(server: Server, use: Callable[[Files], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        api = Api(server.url, TOKEN)
        try:
            await use(Files(api))
        finally:
            await api.close()

    run(main())


def test_lines_are_found_by_text_and_files_by_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("import os\nimport sys  # TODO\u2028later\n")
    (tmp_path / "src" / "notes.txt").write_text("todo\n")
    (tmp_path / ".hidden").write_text("TODO\n")
    main = str(tmp_path / "src" / "main.py")

    async def use(files: Files) -> None:
        search = files.search(tmp_path, text="TODO")
        (match,) = [match async for match in search]
        assert match == Match(path=main, line=2, column=15, text="import sys  # TODO\u2028later")
        assert (search.truncated, search.reason) == (False, None)
        assert [match async for match in files.search(tmp_path, name="*.py")] == [Match(path=main)]
        loose = [match.path async for match in files.search(tmp_path, text="TODO", case="ignore", hidden=True)]
        assert len(loose) == 3
        both = [match.line async for match in files.search(tmp_path, text=r"im\w+t", regex=True, name="main")]
        assert sorted(both, key=int) == [1, 2]  # type: ignore[arg-type]

    using(server, use)


def test_a_search_that_could_find_more_says_so(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hit\n" * 10)

    async def use(files: Files) -> None:
        search = files.search(tmp_path, text="hit", limit=3)
        assert len([match async for match in search]) == 3
        assert (search.truncated, search.reason) == (True, "results")

    using(server, use)


def test_a_search_that_is_left_can_be_closed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hit\n" * 1000)

    async def use(files: Files) -> None:
        search = files.search(tmp_path, text="hit")
        await anext(search)
        await search.close()
        assert [match async for match in search] == []

    using(server, use)


def test_a_search_that_makes_no_sense_is_a_problem(server: Server, tmp_path: Path) -> None:
    async def use(files: Files) -> None:
        with pytest.raises(ServerProblem) as refused:
            await anext(files.search(tmp_path, text="(", regex=True))
        assert refused.value.slug == "bad-request"
        with pytest.raises(ServerProblem) as nothing:
            await anext(files.search(tmp_path))
        assert nothing.value.slug == "bad-request"

    using(server, use)


async def found(body: bytes, content_type: str = "application/x-ndjson") -> list[Match]:
    async with Loopback({"/v1/fs/search": answer(body, Content_Type=content_type)}) as loopback:
        api = Api(loopback.url(""))
        try:
            return [match async for match in Files(api).search(text="x")]
        finally:
            await api.close()


def test_a_search_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    with pytest.raises(ConnectionLost, match="before the search had ended"):
        run(found(b'{"path": "/a"}\n'))


@pytest.mark.parametrize(("body", "type"), [(b"<html>", "text/html"), (b"oops\n", "application/x-ndjson")])
def test_an_answer_that_is_not_the_servers_says_so(body: bytes, type: str) -> None:
    with pytest.raises(ForeignAnswer):
        run(found(body, type))


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_any_text_in_a_line_comes_as_it_is(texts: list[str]) -> None:
    lines = [msgspec.json.encode(text) for text in texts]
    data = b"".join(line + b"\n" for line in lines)

    class Bytewise(httpx.AsyncByteStream):
        async def __aiter__(self):  # type: ignore[no-untyped-def]
            for start in range(0, len(data), 3):
                yield data[start : start + 3]

    async def main() -> list[bytes]:
        return [line async for line in _lines(httpx.Response(200, stream=Bytewise()))]

    assert run(main()) == lines
