"""Contract, section 13: reading, writing and listing files over HTTP."""

import hashlib
import os
import signal
import threading
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.client import Client, run
from tests.support.filing import Filing, problem
from tests.support.running import BOUND, Server, eventually

NAMES = count()


@pytest.fixture(scope="module")
def confined_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    root = tmp_path_factory.mktemp("root")
    with Server("--no-persist", "--fs-root", str(root), "--max-body", "1000") as running:
        running.environment["root"] = str(root)
        yield running


@pytest.fixture
def files(confined_server: Server) -> Filing:
    """A folder of its own for each test; relative paths begin at the root above it."""
    root = Path(str(confined_server.environment["root"]))
    folder = root / f"test{next(NAMES)}"
    folder.mkdir()
    return Filing(confined_server, folder)


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# Reading


@pytest.mark.requirement("13.read")
def test_a_file_is_read_with_its_type_length_time_and_tag(files: Filing) -> None:
    (files.root / "page.html").write_text("<b>hello</b>")
    os.utime(files.root / "page.html", (0, 1_700_000_000))
    response = files.get(str(files.root / "page.html"))
    assert (response.status_code, response.text) == (200, "<b>hello</b>")
    expected = {
        "content-type": "text/html",
        "content-length": "12",
        "last-modified": "Tue, 14 Nov 2023 22:13:20 GMT",
        "accept-ranges": "bytes",
        "cache-control": "no-cache",
        "content-security-policy": "sandbox",
        "x-content-type-options": "nosniff",
    }
    assert {name: response.headers.get(name) for name in expected} == expected
    head = files.http.head("/file", params={"path": str(files.root / "page.html")})
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers.get(name) for name in expected} == expected
    assert head.headers["etag"] == response.headers["etag"]


@pytest.mark.requirement("13.read")
def test_empty_files_and_files_without_a_size_are_read(files: Filing, server: Server) -> None:
    (files.root / "empty").touch()
    assert files.get(f"{files.root}/empty").content == b""
    # A file that the kernel makes up says that it is empty.
    assert Filing(server, files.root).get("/proc/self/status").text.startswith("Name:")


@pytest.mark.requirement("13.read")
def test_a_large_file_comes_back_as_it_was_sent_without_entering_memory(files: Filing) -> None:
    block = os.urandom(1 << 20)
    before = peak(files)
    response = files.put(f"{files.root}/large", (block for _ in range(64)))
    digest = hashlib.sha256(block * 64).hexdigest()
    assert response.json()["sha256"] == digest
    read = hashlib.sha256()
    with files.http.stream("GET", "/file", params={"path": f"{files.root}/large"}) as download:
        for part in download.iter_raw():
            read.update(part)
    assert read.hexdigest() == digest
    assert peak(files) - before < 24 * 1024, "KiB"


def peak(files: Filing) -> int:
    """The most memory that the server has had so far, in KiB."""
    status = Path(f"/proc/{files.server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.requirement("13.ranges")
@pytest.mark.parametrize(
    ("wanted", "status", "content", "content_range"),
    [
        ("bytes=0-3", 206, "0123", "bytes 0-3/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=-99", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, "56789", "bytes 5-9/10"),
        ("bytes=9-9", 206, "9", "bytes 9-9/10"),
        ("bytes=0-1,4-5", 200, "0123456789", None),
        ("bytes=3-1", 200, "0123456789", None),
        ("bytes=-", 200, "0123456789", None),
        ("lines=1-2", 200, "0123456789", None),
        ("bytes=a-b", 200, "0123456789", None),
    ],
)
def test_a_part_is_given_or_all_of_it(
    files: Filing, wanted: str, status: int, content: str, content_range: str | None
) -> None:
    (files.root / "file").write_text("0123456789")
    response = files.get(f"{files.root}/file", {"Range": wanted})
    assert (response.status_code, response.text) == (status, content)
    assert response.headers.get("content-range") == content_range
    assert response.headers["content-length"] == str(len(content))


@pytest.mark.requirement("13.ranges")
@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=99-100", "bytes=-0", "bytes=9999999999999999999999-"])
def test_a_part_that_is_not_there_is_a_416_with_the_size(files: Filing, wanted: str) -> None:
    (files.root / "file").write_text("0123456789")
    response = files.get(f"{files.root}/file", {"Range": wanted})
    assert problem(response) == (416, "range-not-satisfiable")
    assert response.headers["content-range"] == "bytes */10"


@pytest.mark.requirement("13.ranges")
def test_if_range_gives_the_part_of_the_same_file_only(files: Filing) -> None:
    (files.root / "file").write_text("0123456789")
    whole = files.get(f"{files.root}/file")
    for current in (whole.headers["etag"], whole.headers["last-modified"]):
        part = files.get(f"{files.root}/file", {"Range": "bytes=0-0", "If-Range": current})
        assert (part.status_code, part.text) == (206, "0")
    for old in ('"other"', "W/" + whole.headers["etag"], "Tue, 14 Nov 2023 22:13:20 GMT"):
        assert files.get(f"{files.root}/file", {"Range": "bytes=0-0", "If-Range": old}).status_code == 200


@pytest.mark.requirement("13.conditional-read")
def test_what_the_client_has_is_not_sent_again(files: Filing) -> None:
    file = files.root / "file"
    file.write_text("old")
    first = files.get(str(file))
    tag, time = first.headers["etag"], first.headers["last-modified"]
    for known in ({"If-None-Match": tag}, {"If-None-Match": f'"x", W/{tag}'}, {"If-None-Match": "*"}):
        response = files.get(str(file), known)
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
    assert files.get(str(file), {"If-Modified-Since": time}).status_code == 304
    # The tag decides when there is one.
    assert files.get(str(file), {"If-Modified-Since": time, "If-None-Match": '"x"'}).status_code == 200
    assert files.get(str(file), {"If-Modified-Since": "yesterday"}).status_code == 200
    file.write_text("new")
    assert files.get(str(file), {"If-None-Match": tag}).text == "new"


@pytest.mark.requirement("13.download")
@pytest.mark.parametrize(
    ("name", "plain", "encoded"),
    [
        ("a b.txt", "a b.txt", "a%20b.txt"),
        ("grün.txt", "gr_n.txt", "gr%C3%BCn.txt"),
        ('a"b\\c%.txt', "a_b_c_.txt", "a%22b%5Cc%25.txt"),
        ("new\r\nline", "new__line", "new%0D%0Aline"),
    ],
)
def test_a_download_has_its_name(files: Filing, name: str, plain: str, encoded: str) -> None:
    (files.root / name).write_text("text")
    response = files.get(f"{files.root}/{name}", download="true")
    assert response.headers["content-disposition"] == f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}"
    assert "content-disposition" not in files.get(f"{files.root}/{name}").headers


@pytest.mark.requirement("13.special-files")
def test_what_is_no_regular_file_is_refused_at_once(files: Filing, server: Server) -> None:
    os.mkfifo(files.root / "fifo")
    (files.root / "folder").mkdir()
    for name in ("fifo", "folder"):
        assert problem(files.get(f"{files.root}/{name}")) == (409, "file-conflict")
        assert problem(files.put(f"{files.root}/{name}", b"text")) == (409, "file-conflict")
    anywhere = Filing(server, files.root)
    for device in ("/dev/zero", "/dev/tty", "/dev/stdin"):
        assert anywhere.get(device).status_code in (404, 409)
    assert problem(anywhere.put("/dev/null", b"text")) == (409, "file-conflict")


@pytest.mark.requirement("13.read")
def test_a_file_that_shrinks_while_it_is_sent_ends_the_socket(files: Filing) -> None:
    size = 256 << 20
    with (files.root / "file").open("wb") as file:
        file.truncate(size)
    connection = files.raw("GET", f"/v1/fs/file?path={quote(str(files.root))}/file")
    received = len(connection.recv(1000))
    (files.root / "file").write_bytes(b"")
    while part := connection_part(connection):
        received += len(part)
    connection.close()
    assert received < size
    assert "Traceback" not in files.server.stderr


def connection_part(connection: object) -> bytes:
    try:
        return connection.recv(1 << 20)  # type: ignore[attr-defined]
    except ConnectionResetError:
        return b""


# Writing


@pytest.mark.requirement("13.write")
def test_a_file_is_written_with_its_directories_and_answered_with_what_was_written(files: Filing) -> None:
    response = files.put(f"{files.root}/new/folder/file.txt", b"hello")
    assert response.status_code == 200
    path = files.root / "new" / "folder" / "file.txt"
    assert response.json() == {
        "path": str(path),
        "bytesWritten": 5,
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "etag": files.get(str(path)).headers["etag"],
    }
    assert response.headers["etag"] == response.json()["etag"]
    assert path.read_bytes() == b"hello"
    assert files.put(str(path), b"").json()["bytesWritten"] == 0
    assert path.read_bytes() == b""


@pytest.mark.requirement("13.write")
def test_the_mode_stays_and_a_link_is_written_through(files: Filing) -> None:
    (files.root / "script").write_text("old")
    (files.root / "script").chmod(0o750)
    (files.root / "link").symlink_to("script")
    assert files.put(f"{files.root}/link", b"new").status_code == 200
    assert (files.root / "script").read_text() == "new"
    assert (files.root / "script").stat().st_mode & 0o777 == 0o750
    assert (files.root / "link").is_symlink()


@pytest.mark.requirement("13.write")
def test_only_the_whole_file_as_it_is_can_be_sent(files: Filing) -> None:
    for header in ({"Content-Encoding": "gzip"}, {"Content-Range": "bytes 0-4/10"}):
        assert files.put(f"{files.root}/file", b"12345", header).status_code == 400
    assert problem(files.put(f"{files.root}/a/b/", b"12345")) == (404, "file-not-found")
    assert listing(files.root) == []
    assert problem(files.put(f"{files.root}/", b"12345")) == (409, "file-conflict")


@pytest.mark.requirement("13.write-is-atomic")
@pytest.mark.parametrize("length", [{"Content_Length": "3000000"}, {"Transfer_Encoding": "chunked"}])
def test_a_client_that_stops_half_way_changes_nothing(files: Filing, length: dict[str, str]) -> None:
    (files.root / "file").write_text("old")
    body = b"x" * 2_000_000
    if "Transfer_Encoding" in length:
        body = b"%x\r\n" % len(body) + body + b"\r\n"
    connection = files.raw("PUT", f"/v1/fs/file?path={quote(str(files.root))}/file", body, **length)
    connection.close()
    connection = files.raw("PUT", f"/v1/fs/file?path={quote(str(files.root))}/other", body, **length)
    connection.close()
    eventually(lambda: open_uploads(files) == 0, "the end of the uploads")
    assert listing(files.root) == ["file"]
    assert (files.root / "file").read_text() == "old"


def open_uploads(files: Filing) -> int:
    """Files of the test's folder that the server has open."""
    descriptors = Path(f"/proc/{files.server.process.pid}/fd")
    found = 0
    for each in descriptors.iterdir():
        try:
            found += str(each.readlink()).startswith(str(files.root))
        except OSError:
            continue
    return found


@pytest.mark.requirement("13.write-is-atomic")
def test_of_two_writers_one_whole_file_wins(files: Filing) -> None:
    contents = [bytes([each]) * 3_000_000 for each in b"ab"]
    stop, seen = threading.Event(), set[bytes]()

    def watch() -> None:
        while not stop.is_set():
            try:
                seen.add((files.root / "file").read_bytes())
            except FileNotFoundError:
                continue

    def write(content: bytes) -> None:
        client = Filing(files.server, files.root)
        for _ in range(5):
            assert client.put(f"{files.root}/file", content).status_code == 200

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=write, args=[content]) for content in contents]
    for thread in (watcher, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    stop.set()
    watcher.join(BOUND)
    assert seen <= set(contents)
    assert listing(files.root) == ["file"]


@pytest.mark.requirement("13.write-conditions")
def test_a_file_is_replaced_only_when_it_is_the_one_that_was_meant(files: Filing) -> None:
    path = f"{files.root}/file"
    assert problem(files.put(path, b"new", {"If-Match": "*"})) == (412, "file-changed")
    assert listing(files.root) == []
    tag = files.put(path, b"one", {"If-None-Match": "*"}).json()["etag"]
    refused = files.put(path, b"two", {"If-None-Match": "*"})
    assert problem(refused) == (412, "file-changed")
    assert refused.json()["etag"] == tag
    assert problem(files.put(path, b"two", {"If-Match": '"other"'})) == (412, "file-changed")
    assert problem(files.put(path, b"two", {"If-Match": f"W/{tag}"})) == (412, "file-changed")
    assert problem(files.put(path, b"two", {"If-None-Match": tag})) == (412, "file-changed")
    assert Path(path).read_bytes() == b"one"
    assert files.put(path, b"two", {"If-Match": f'"other", {tag}'}).status_code == 200
    assert problem(files.put(path, b"three", {"If-Match": tag})) == (412, "file-changed")
    assert files.put(path, b"three", {"If-Match": "*"}).status_code == 200
    assert files.put(path, b"four", {"If-Match": "no tag"}).status_code == 400


@pytest.mark.requirement("13.write-conditions")
@pytest.mark.parametrize("condition", ["If-Match", "If-None-Match"])
def test_of_writers_that_expect_the_same_one_wins(files: Filing, condition: str) -> None:
    for turn in range(8):
        path = f"{files.root}/file{turn}"
        expected = "*"
        if condition == "If-Match":
            expected = files.put(path, b"start").json()["etag"]
        results: list[int] = []

        def write(path: str = path, expected: str = expected, results: list[int] = results) -> None:
            client = Filing(files.server, files.root)
            results.append(client.put(path, b"x" * 100, {condition: expected}).status_code)

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
        assert sorted(results) == [200, 412, 412]


@pytest.mark.requirement("13.write-limit")
def test_a_file_over_the_limit_is_refused_and_one_over_max_body_is_not(files: Filing, tmp_path: Path) -> None:
    assert files.put(f"{files.root}/file", b"x" * 100_000).status_code == 200
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("old")
    with Server("--no-persist", "--fs-root", str(root), "--max-file", "1000") as server:
        limited = Filing(server, root)

        def parts() -> Iterator[bytes]:
            yield from [b"x" * 600] * 2

        for body in (b"x" * 1001, parts()):
            refused = limited.put("file", body)
            assert problem(refused) == (413, "file-too-large")
            assert refused.json()["limit"] == 1000
        assert (root / "file").read_text() == "old"
        assert limited.put("file", b"x" * 1000).status_code == 200
    assert listing(root) == ["file"]


# Looking


@pytest.mark.requirement("13.entries")
def test_a_directory_is_listed_by_name_with_all_that_is_known(files: Filing) -> None:
    (files.root / "b.txt").write_text("hello")
    (files.root / "b.txt").chmod(0o640)
    os.utime(files.root / "b.txt", ns=(0, 1_700_000_000_123_456_789))
    (files.root / "a").mkdir()
    (files.root / "c").symlink_to("missing/target")
    os.mkfifo(files.root / "d")
    page = files.entries(str(files.root)).json()
    assert page["path"] == str(files.root)
    assert "nextCursor" not in page
    kinds = {entry["name"]: entry["entryType"] for entry in page["entries"]}
    assert list(kinds.items()) == [("a", "directory"), ("b.txt", "file"), ("c", "symlink"), ("d", "other")]
    assert page["entries"][1] == {
        "name": "b.txt",
        "path": f"{files.root}/b.txt",
        "entryType": "file",
        "size": 5,
        "modified": "2023-11-14T22:13:20.123Z",
        "mode": "0640",
        "etag": files.get(f"{files.root}/b.txt").headers["etag"],
    }
    assert page["entries"][2]["linkTarget"] == "missing/target"
    assert problem(files.entries(f"{files.root}/b.txt")) == (409, "file-conflict")
    assert problem(files.entries(f"{files.root}/missing")) == (404, "file-not-found")


@pytest.mark.requirement("13.entries")
def test_pages_together_are_the_directory_also_while_it_changes(files: Filing) -> None:
    names = {f"n{number:05}" for number in range(200)}
    for name in names:
        (files.root / name).touch()
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = files.entries(str(files.root), limit="7", **cursor).json()
        seen += [entry["name"] for entry in page["entries"]]
        if "nextCursor" not in page:
            break
        assert len(page["entries"]) == 7
        cursor = {"cursor": page["nextCursor"]}
        # What is before the cursor no longer matters, nor does what was never there.
        (files.root / seen[0]).unlink(missing_ok=True)
        (files.root / f"a{len(seen)}").touch()
    assert seen == sorted(names)
    limits = ("0", "10001", "x", "0000000019999999", "9" * 5000)
    for wrong in ({"cursor": "!"}, {"cursor": "\u00e4"}, *({"limit": limit} for limit in limits)):
        assert files.entries(str(files.root), **wrong).status_code == 400


@pytest.mark.requirement("13.stat")
def test_a_link_is_followed_unless_it_is_itself_what_is_wanted(files: Filing) -> None:
    (files.root / "file").write_text("hello")
    (files.root / "link").symlink_to("file")
    (files.root / "lost").symlink_to("nowhere")
    assert files.stat(f"{files.root}/link").json()["size"] == 5
    itself = files.stat(f"{files.root}/link", follow="false").json()
    assert (itself["entryType"], itself["linkTarget"], itself["name"]) == ("symlink", "file", "link")
    assert problem(files.stat(f"{files.root}/lost")) == (404, "file-not-found")
    assert files.stat(f"{files.root}/lost", follow="false").json()["linkTarget"] == "nowhere"
    assert files.stat(str(files.root)).json()["entryType"] == "directory"
    assert files.stat(str(files.root), follow="perhaps").status_code == 400


@pytest.mark.requirement("13.names")
def test_every_name_is_shown_and_usable_as_it_was_shown(files: Filing) -> None:
    names = [b"plain", b"caf\xe9", b"\xff\xfe", "grün 𝄞".encode(), "\uefff".encode(), b"a%2e+&=#?", b"x" * 255, b"\n"]
    for name in names:
        Path(os.fsdecode(os.fsencode(files.root) + b"/" + name)).write_bytes(name)
    shown = files.entries(str(files.root)).json()["entries"]
    assert len({entry["name"] for entry in shown}) == len(names)
    contents: set[bytes] = set()
    for entry in shown:
        contents.add(files.get(entry["path"]).content)
        assert files.stat(entry["path"]).json() == entry
        assert files.put(entry["path"], b"new").json()["path"] == entry["path"]
        assert files.move(entry["path"], entry["path"] + "2"[: 255 - entry["size"]]).status_code == 200
    assert contents == set(names)
    for entry in files.entries(str(files.root)).json()["entries"]:
        assert files.delete(entry["path"]).status_code == 200
    assert listing(files.root) == []


@pytest.mark.requirement("13.names")
def test_bytes_may_be_sent_as_they_are(files: Filing) -> None:
    target = f"/file?path={quote(str(files.root))}/caf%e9"
    assert files.http.put(target, content=b"text").status_code == 200
    assert os.listdir(os.fsencode(files.root)) == [b"caf\xe9"]
    assert files.http.get(target).text == "text"


# Where a path begins


@pytest.mark.requirement("13.paths")
def test_a_relative_path_begins_at_the_session_or_at_the_root(files: Filing) -> None:
    async def session() -> str:
        async with Client(files.server) as client:
            params = {"cwd": str(files.root), "mcpServers": []}
            return (await client.result("session/new", params))["sessionId"]

    id = run(session())
    name = files.root.name
    assert files.put("file", b"text", sessionId=id).json()["path"] == str(files.root / "file")
    assert files.get(f"{name}/file").text == "text"
    assert files.get("./../" + name + "//./file", sessionId=id).text == "text"
    assert files.entries(".", sessionId=id).json()["entries"][0]["path"] == str(files.root / "file")
    moved = files.http.post("/move", params={"sessionId": id}, json={"from": "file", "to": "other"})
    assert moved.json() == {"from": str(files.root / "file"), "to": str(files.root / "other")}
    refused = files.get("other", sessionId="nobody")
    assert (refused.status_code, refused.json()["sessionId"]) == (404, "nobody")


@pytest.mark.requirement("13.paths")
def test_without_a_root_a_path_begins_where_the_server_was_started(server: Server, tmp_path: Path) -> None:
    anywhere = Filing(server, tmp_path)
    (tmp_path / "file").write_text("text")
    assert anywhere.stat(".").json()["path"] == str(Path.cwd())
    assert anywhere.get(str(tmp_path / "file")).text == "text"


@pytest.mark.requirement("13.write-is-atomic")
def test_a_server_that_stops_or_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("old")
    with (root / "large").open("wb") as file:
        file.truncate(1 << 30)
    for number in (signal.SIGTERM, signal.SIGKILL):
        server = Server("--no-persist", "--fs-root", str(root), directory=tmp_path / number.name).start()
        files = Filing(server, root)
        upload = files.raw("PUT", "/v1/fs/file?path=file", b"x" * 3_000_000, Content_Length="4000000")
        download = files.raw("GET", "/v1/fs/file?path=large")
        download.recv(1)
        eventually(lambda files=files: open_uploads(files) >= 2, "the upload")
        server.stop(number)
        upload.close()
        download.close()
        assert (root / "file").read_text() == "old"
        if number == signal.SIGTERM:
            assert listing(root) == ["file", "large"]
