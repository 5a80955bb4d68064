"""Contract, section 13: directories made, files moved and deleted, and the same over ACP."""

import base64
import bz2
import gzip
import os
import shutil
import tempfile
from collections.abc import Generator
from itertools import count
from pathlib import Path

import pytest

from tests.support.archives import member, packed, symlink
from tests.support.client import Client, Json, run
from tests.support.filing import Filing, problem
from tests.support.running import Server

NAMES = count()


@pytest.fixture(scope="module")
def confined_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    root = tmp_path_factory.mktemp("root")
    with Server("--no-persist", "--fs-root", str(root)) as running:
        running.environment["root"] = str(root)
        yield running


@pytest.fixture
def files(confined_server: Server) -> Filing:
    folder = Path(str(confined_server.environment["root"])) / f"test{next(NAMES)}"
    folder.mkdir()
    return Filing(confined_server, folder)


def tree(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


@pytest.mark.requirement("13.mkdir")
def test_a_directory_is_made_with_those_on_its_way(files: Filing) -> None:
    for _ in range(2):
        assert files.mkdir(f"{files.root}/a/b/c/").json() == {"path": f"{files.root}/a/b/c/"}
    assert tree(files.root) == ["a", "a/b", "a/b/c"]
    (files.root / "file").touch()
    assert problem(files.mkdir(f"{files.root}/file")) == (409, "file-conflict")
    assert problem(files.mkdir(f"{files.root}/file/below")) == (409, "file-conflict")


@pytest.mark.requirement("13.move")
def test_a_move_gives_another_name_and_replaces_only_when_asked(files: Filing) -> None:
    root = files.root
    (root / "one").write_text("one")
    (root / "two").write_text("two")
    refused = files.move(f"{root}/one", f"{root}/two")
    assert problem(refused) == (409, "file-conflict")
    assert (refused.json()["path"], refused.json()["errno"]) == (f"{root}/two", "EEXIST")
    assert files.move(f"{root}/one", f"{root}/two", overwrite=True).status_code == 200
    assert (tree(root), (root / "two").read_text()) == (["two"], "one")
    missing = files.move(f"{root}/one", f"{root}/three")
    assert (problem(missing), missing.json()["path"]) == ((404, "file-not-found"), f"{root}/one")
    missing = files.move(f"{root}/two", f"{root}/no/folder")
    assert (problem(missing), missing.json()["path"]) == ((404, "file-not-found"), f"{root}/no/folder")


@pytest.mark.requirement("13.move")
def test_directories_and_links_are_moved_as_they_are(files: Filing) -> None:
    root = files.root
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "link").symlink_to("folder")
    (root / "empty").mkdir()
    assert files.move(f"{root}/link/", f"{root}/renamed").status_code == 200
    assert (root / "renamed").readlink() == Path("folder")
    assert problem(files.move(f"{root}/folder", f"{root}/empty")) == (409, "file-conflict")
    assert files.move(f"{root}/folder", f"{root}/empty", overwrite=True).status_code == 200
    assert tree(root) == ["empty", "empty/deep", "renamed"]
    (root / "file").touch()
    for source, target in [("file", "empty"), ("empty", "file")]:
        assert problem(files.move(f"{root}/{source}", f"{root}/{target}", overwrite=True)) == (409, "file-conflict")


@pytest.mark.requirement("13.move")
def test_onto_itself_a_move_does_nothing_and_into_itself_it_is_refused(files: Filing) -> None:
    root = files.root
    (root / "a" / "b").mkdir(parents=True)
    (root / "file").write_text("text")
    (root / "twin").hardlink_to(root / "file")
    for overwrite in (False, True):
        assert files.move(f"{root}/file", f"{root}/file", overwrite=overwrite).status_code == 200
        assert files.move(f"{root}/a", f"{root}/a/b/../../a/", overwrite=overwrite).status_code == 200
        for target in ("a/b/c", "a/x"):
            assert problem(files.move(f"{root}/a", f"{root}/{target}", overwrite=overwrite)) == (409, "file-conflict")
    assert files.move(f"{root}/file", f"{root}/twin", overwrite=True).status_code == 200
    assert tree(root) == ["a", "a/b", "twin"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Generator[Path]:
    """A folder on another file system."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:  # noqa: PTH112, PTH116
        pytest.skip("no other file system to write to")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.requirement("13.move")
def test_a_move_to_another_file_system_takes_everything_along_or_nothing(tmp_path: Path, elsewhere: Path) -> None:
    with Server("--no-persist", "--fs-root", str(tmp_path), "--fs-root", str(elsewhere)) as server:
        files = Filing(server, tmp_path)
        source = tmp_path / "tree"
        (source / "sub").mkdir(parents=True)
        (source / "sub" / "file").write_bytes(b"x" * 3_000_000)
        (source / "sub" / "file").chmod(0o751)
        os.utime(source / "sub" / "file", (1, 2))
        (source / "link").symlink_to("/nowhere")
        (source / "sub").chmod(0o2755)
        assert files.move(str(source), f"{elsewhere}/tree").status_code == 200
        assert tree(elsewhere) == ["tree", "tree/link", "tree/sub", "tree/sub/file"]
        facts = (elsewhere / "tree" / "sub" / "file").stat()
        assert (facts.st_mode & 0o7777, facts.st_mtime, facts.st_size) == (0o751, 2.0, 3_000_000)
        assert (elsewhere / "tree" / "sub").stat().st_mode & 0o7777 == 0o2755
        assert not source.exists()
        # Back, where something is in the way, and something that cannot come along.
        (tmp_path / "tree").write_text("in the way")
        assert problem(files.move(f"{elsewhere}/tree", f"{tmp_path}/tree")) == (409, "file-conflict")
        os.mkfifo(elsewhere / "tree" / "sub" / "fifo")
        before = tree(elsewhere)
        assert problem(files.move(f"{elsewhere}/tree", f"{tmp_path}/other")) == (409, "file-conflict")
        assert tree(elsewhere) == before
        assert sorted(os.listdir(tmp_path)) == ["tree"]
        (elsewhere / "file").write_text("new")
        assert files.move(f"{elsewhere}/file", f"{tmp_path}/tree", overwrite=True).status_code == 200
        assert (tmp_path / "tree").read_text() == "new"


@pytest.mark.requirement("13.delete")
def test_only_what_is_meant_is_deleted(files: Filing) -> None:
    root = files.root
    (root / "kept").mkdir()
    (root / "kept" / "file").touch()
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "folder" / "out").symlink_to(root / "kept")
    (root / "link").symlink_to("kept")
    refused = files.delete(f"{root}/folder")
    assert (problem(refused), refused.json()["errno"]) == ((409, "file-conflict"), "ENOTEMPTY")
    assert files.delete(f"{root}/link/", recursive="true").json() == {"path": f"{root}/link/"}
    assert files.delete(f"{root}/folder", recursive="true").status_code == 200
    assert tree(root) == ["kept", "kept/file"]
    assert problem(files.delete(f"{root}/folder", recursive="true")) == (404, "file-not-found")
    assert files.delete(f"{root}/kept/file").status_code == 200
    assert files.delete(f"{root}/kept").status_code == 200
    assert tree(root) == []


@pytest.mark.requirement("13.delete")
def test_a_tree_that_is_deeper_than_any_path_is_deleted(files: Filing) -> None:
    top = files.root / "deep"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    assert files.delete(str(top), recursive="true").status_code == 200
    assert tree(files.root) == []


@pytest.mark.requirement("13.roots-stay")
def test_a_root_is_neither_deleted_nor_moved_nor_what_has_one_inside(tmp_path: Path, server: Server) -> None:
    inner = tmp_path / "outer" / "folder" / "inner"
    inner.mkdir(parents=True)
    with Server("--no-persist", "--fs-root", str(tmp_path / "outer"), "--fs-root", str(inner)) as two:
        files = Filing(two, tmp_path)
        for path in (".", "folder", "folder/inner", "folder/inner/.", "folder/inner/..", str(tmp_path / "outer")):
            assert problem(files.delete(path, recursive="true")) == (403, "file-forbidden")
            assert problem(files.move(path, "elsewhere")) == (403, "file-forbidden")
        (tmp_path / "outer" / "empty").mkdir()
        assert problem(files.move("empty", "folder/inner", overwrite=True)) == (403, "file-forbidden")
    anywhere = Filing(server, tmp_path)
    for path in ("/", "/..", ".", str(Path.cwd().parent)):
        assert problem(anywhere.delete(path)) == (403, "file-forbidden")


@pytest.mark.requirement("13.problems")
def test_bad_paths_are_problems_that_name_them(files: Filing) -> None:
    root = files.root
    (root / "circle").symlink_to("circle")
    for path, status in [
        ("", 400),
        ("a\0b", 400),
        (f"{root}/{'x' * 256}", 400),
        (f"{root}/" + "y/" * 3000, 400),
        (f"{root}/circle/file", 400),
    ]:
        calls = [files.get(path), files.put(path, b""), files.stat(path), files.entries(path), files.mkdir(path)]
        calls += [files.delete(path), files.move(path, f"{root}/x"), files.move(f"{root}/circle", path)]
        for response in calls:
            assert problem(response) == (status, "bad-path"), path[:50]
    assert files.http.get("/file").status_code == 400
    assert files.http.get("/file?path=a&path=b").status_code == 400
    assert files.http.post("/move", content=b"{}", headers={"Content-Type": "application/json"}).status_code == 400
    assert files.http.post("/move", content=b'{"from": "a", "to": "b"}').status_code == 415
    assert os.listdir(root) == ["circle"]


@pytest.mark.requirement("13.over-acp")
def test_the_same_is_done_over_acp(files: Filing) -> None:
    async def main() -> None:
        async with Client(files.server) as client:
            params = {"cwd": str(files.root), "mcpServers": []}
            id = (await client.result("session/new", params))["sessionId"]

            async def call(method: str, **params: object) -> Json:
                return await client.result(f"_sandboxagent/fs/{method}", {"sessionId": id, **params})

            async def error(method: str, **params: object) -> tuple[int, str]:
                found = await client.error(f"_sandboxagent/fs/{method}", {"sessionId": id, **params})
                return found["code"], found["data"]["type"]

            written = await call("write_file", path="a/file", content=base64.b64encode(b"\0\xff text").decode())
            assert written == files.put(f"{files.root}/a/file", b"\0\xff text").json() | {"etag": written["etag"]}
            read = await call("read_file", path="a/file")
            assert base64.b64decode(read["content"]) == b"\0\xff text"
            assert (read["size"], read["etag"]) == (7, files.get(f"{files.root}/a/file").headers["etag"])
            part = await call("read_file", path="a/file", offset=3, length=2)
            assert base64.b64decode(part["content"]) == b"te"
            assert await call("stat", path="a/file") == files.stat(f"{files.root}/a/file").json()
            assert await call("entries", path="a", limit=1) == files.entries(f"{files.root}/a").json()
            assert await call("mkdir", path="b/c") == {"path": f"{files.root}/b/c"}
            paths = {"from": "a/file", "to": "b/file"}
            assert await call("move", **paths) == {name: f"{files.root}/{path}" for name, path in paths.items()}
            assert await error("move", **paths) == (-32002, "file-not-found")
            assert await error("delete", path="b") == (-32602, "file-conflict")
            assert await call("delete", path="b", recursive=True) == {"path": f"{files.root}/b"}
            assert await error("read_file", path="../../../outside") == (-32602, "outside-roots")
            assert await error("read_file", path="") == (-32602, "bad-path")
            assert await error("read_file") == (-32602, "invalid-params")
            assert await error("write_file", path="x", content="no base64") == (-32602, "invalid-params")
            assert (await client.error("_sandboxagent/fs/stat", {"path": "a", "sessionId": "nobody"}))["code"] == -32002
            assert tree(files.root) == ["a"]

    run(main())


@pytest.mark.requirement("13.search-over-acp")
def test_a_search_over_acp_is_the_page_of_http(files: Filing) -> None:
    (files.root / "one.py").write_text("import sys\n")
    (files.root / "two.txt").write_text("import os\nimport sys\n")

    async def main() -> None:
        async with Client(files.server) as client:
            method, here = "_sandboxagent/fs/search", {"path": str(files.root)}
            query = {**here, "text": "import"}
            assert await client.result(method, query) == (await client.http.get("/v1/fs/search", params=query)).json()
            # Which ones come first is the search's own affair.
            found = await client.result(method, {**query, "limit": 2})
            assert (len(found["matches"]), found["truncated"], found["reason"]) == (2, True, "results")
            [only] = (await client.result(method, {**here, "name": "*.py"}))["matches"]
            assert only == {"path": f"{files.root}/one.py"}
            for wrong in ({}, {"text": ""}, {"text": "(", "regex": True}, {"text": "a", "case": "any"}):
                assert (await client.error(method, {**here, **wrong}))["data"]["type"] == "invalid-params"
            outside = await client.error(method, {"path": "/etc", "text": "root"})
            assert outside["data"]["type"] == "outside-roots"

    run(main())


@pytest.mark.requirement("13.over-acp")
def test_an_archive_over_acp_is_unpacked_as_over_http(files: Filing) -> None:
    async def main() -> None:
        async with Client(files.server) as client:
            params = {"cwd": str(files.root), "mcpServers": []}
            id = (await client.result("session/new", params))["sessionId"]
            data = packed(member("run", b"#!", mode=0o755), member("a/b", bytes(1 << 20)), symlink("l", "a/b"))
            for path, content in (("plain", data), ("packed", gzip.compress(data))):
                params = {"path": path, "sessionId": id, "archive": base64.b64encode(content).decode()}
                uploaded = await client.result("_sandboxagent/fs/upload_batch", params)
                into = files.root / path
                assert uploaded == {"paths": [f"{into}/run", f"{into}/a/b", f"{into}/l"], "truncated": False}
                assert (into / "l").read_bytes() == bytes(1 << 20)
                assert os.access(into / "run", os.X_OK)

    run(main())


@pytest.mark.requirement("13.over-acp")
def test_a_bad_archive_over_acp_changes_nothing_and_is_a_named_error(files: Filing) -> None:
    good = packed(member("x", b"x"))
    there = str(files.root / "there")
    cases: list[tuple[str, bytes | str, str, Json]] = [
        (there, "no base64", "invalid-params", {}),
        (there, b"", "bad-archive", {}),
        (there, b"no archive" * 100, "bad-archive", {}),
        (there, good[:700], "bad-archive", {}),
        (there, bz2.compress(good), "bad-archive", {"rule": "bz2"}),
        (there, packed(member("../x", b"x")), "bad-archive", {"entry": "../x"}),
        (there, packed(member("/x", b"x")), "bad-archive", {"entry": "/x"}),
        (there, packed(symlink("l", "../..")), "bad-archive", {"entry": "l"}),
        (there, gzip.compress(packed(member("zeros", bytes(80 << 20)))), "archive-too-large", {"entry": "zeros"}),
        (there, bytes((8 << 20) + 1), "file-too-large", {"route": "POST /v1/fs/upload-batch", "limit": 8 << 20}),
        (f"{files.root}/../../outside", good, "outside-roots", {}),
        ("", good, "bad-path", {}),
    ]

    async def main() -> None:
        async with Client(files.server) as client:
            for path, content, slug, fields in cases:
                encoded = content if isinstance(content, str) else base64.b64encode(content).decode()
                error = await client.error("_sandboxagent/fs/upload_batch", {"path": path, "archive": encoded})
                assert (error["code"], error["data"]["type"]) == (-32602, slug), error
                assert error["data"].items() >= fields.items(), error
            error = await client.error("_sandboxagent/fs/upload_batch", {"path": there})
            assert error["data"]["type"] == "invalid-params"
        assert os.listdir(files.root) == []

    run(main())


@pytest.mark.requirement("13.over-acp")
def test_what_an_envelope_cannot_carry_is_refused_with_the_route_that_can(files: Filing) -> None:
    limit = 8 << 20
    (files.root / "large").write_bytes(bytes(limit + 1))
    path = str(files.root / "large")

    async def main() -> None:
        async with Client(files.server) as client:
            error = await client.error("_sandboxagent/fs/read_file", {"path": path})
            assert (error["code"], error["data"]["route"]) == (-32602, "GET /v1/fs/file")
            assert (error["data"]["type"], error["data"]["limit"]) == ("file-too-large", limit)
            result = await client.result("_sandboxagent/fs/read_file", {"path": path, "length": limit})
            assert len(base64.b64decode(result["content"])) == limit
            content = base64.b64encode(bytes(limit + 1)).decode()
            error = await client.error("_sandboxagent/fs/write_file", {"path": path, "content": content})
            assert error["data"]["route"] == "PUT /v1/fs/file"
            content = base64.b64encode(bytes(limit)).decode()
            written = await client.result("_sandboxagent/fs/write_file", {"path": path, "content": content})
            assert written["bytesWritten"] == limit

    run(main())
