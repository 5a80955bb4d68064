"""Contract, section 13: watching."""

import json
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.support.filing import Filing
from tests.support.problems import problem
from tests.support.running import Server, eventually

NAMES = count()


@pytest.fixture(scope="module")
def watching_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    root = tmp_path_factory.mktemp("root")
    limits = ["--watches", "2", "--watch-buffer", "4KiB", "--heartbeat", "200ms"]
    with Server("--no-persist", "--fs-root", str(root), *limits) as running:
        running.environment["root"] = str(root)
        yield running


@pytest.fixture
def files(watching_server: Server) -> Filing:
    folder = Path(str(watching_server.environment["root"])) / f"test{next(NAMES)}"
    (folder / "a/b").mkdir(parents=True)
    return Filing(watching_server, folder)


class Events:
    """An open watch."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def comment(self) -> str:
        return next(line for line in self._lines if line.startswith(":"))

    def next(self) -> tuple[str, dict[str, object]]:
        """The next event; StopIteration when the stream ends."""
        name = next(line for line in self._lines if line.startswith("event: "))
        return name.removeprefix("event: "), json.loads(next(self._lines).removeprefix("data: "))

    def changes(self) -> set[tuple[str, str]]:
        name, data = self.next()
        assert name == "changes", (name, data)
        return {(change["kind"], change["path"]) for change in data["changes"]}  # type: ignore[index,union-attr]


@contextmanager
def watch(files: Filing, **query: str) -> Iterator[Events]:
    with files.http.stream("GET", "/watch", params={"path": str(files.root), **query}) as response:
        assert response.status_code == 200, response.read()
        yield Events(response)


@pytest.mark.requirement("13.watch")
def test_changes_are_reported_until_the_directory_goes(files: Filing) -> None:
    root = files.root
    with watch(files) as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        assert events.comment() == ": watching"
        (root / "a/b/file").write_text("x")
        assert events.changes() == {("added", f"{root}/a/b/file")}
        (root / "a/b/file").write_text("y")
        assert events.changes() == {("modified", f"{root}/a/b/file")}
        (root / "a").rename(root / "c")
        assert {("deleted", f"{root}/a"), ("added", f"{root}/c")} <= events.changes()
        assert events.comment() == ": still here"
        shutil.rmtree(root)
        while (event := events.next())[0] != "ended":
            pass
        assert event == ("ended", {"reason": "gone"})
        with pytest.raises(StopIteration):
            events.next()


@pytest.mark.requirement("13.watch")
def test_a_file_that_is_put_is_reported_by_its_own_name(files: Filing) -> None:
    root = files.root
    with watch(files) as events:
        assert events.comment() == ": watching"
        for name in ("one", "two"):
            put = files.http.put(
                "/file", params={"path": f"{root}/a/{name}"}, content=b"x", headers={"If-None-Match": "*"}
            )
            assert put.status_code == 200, put.text
            assert events.changes() == {("added", f"{root}/a/{name}")}


@pytest.mark.requirement("13.watch")
def test_without_recursion_only_the_directory_itself_is_reported(files: Filing) -> None:
    with watch(files, recursive="false") as events:
        (files.root / "a/file").write_text("x")
        (files.root / "file").write_text("x")
        assert events.changes() == {("added", f"{files.root}/file")}


@pytest.mark.requirement("13.watch")
def test_what_a_link_leads_to_is_not_watched_and_what_cannot_be_is_refused(files: Filing, tmp_path: Path) -> None:
    (files.root / "out").symlink_to(tmp_path)
    (files.root / "file").write_text("x")
    with watch(files) as events:
        (tmp_path / "secret").write_text("x")
        (files.root / "last").write_text("x")
        assert events.changes() == {("added", f"{files.root}/last")}
    for path, status, slug in [
        (f"{files.root}/none", 404, "file-not-found"),
        (f"{files.root}/file", 409, "file-conflict"),
        (f"{files.root}/out", 403, "outside-roots"),
        ("/etc", 403, "outside-roots"),
    ]:
        problem(files.http.get("/watch", params={"path": path}), status, slug)
    problem(files.http.get("/watch", params={"path": str(files.root), "recursive": "yes"}), 400, "bad-request")


@pytest.mark.requirement("13.watch-overflow")
def test_more_than_the_buffer_holds_is_a_gap(files: Filing) -> None:
    with watch(files) as events:
        events.comment()
        (files.root / "a").rename(files.root.parent / f"away{next(NAMES)}")
        events.changes()
        many = files.root.parent / f"many{next(NAMES)}"
        many.mkdir()
        for number in range(200):
            (many / f"file{number}").write_text("x")
        many.rename(files.root / "many")
        assert events.next()[0] == "overflow"
        (files.root / "many/later").write_text("x")
        assert ("added", f"{files.root}/many/later") in events.changes()


@pytest.mark.requirement("13.watch-limits")
def test_open_watches_are_bounded_and_a_client_that_leaves_makes_room(files: Filing) -> None:
    with watch(files), watch(files):
        problem(files.http.get("/watch", params={"path": str(files.root)}), 429, "too-many")

    def is_room() -> bool:
        with files.http.stream("GET", "/watch", params={"path": str(files.root)}) as response:
            return response.status_code == 200

    eventually(is_room, "there is room")


@pytest.mark.requirement("13.watch")
def test_a_server_that_stops_ends_its_watches(tmp_path: Path) -> None:
    with Server("--no-persist") as server, watch(Filing(server, tmp_path)) as events:
        events.comment()
        assert server.stop() == 0
        assert events.next() == ("ended", {"reason": "stopping"})
