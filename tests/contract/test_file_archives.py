"""Contract, section 13: archives into directories, and directories as archives."""

import gzip
import io
import os
import random
import socket
import tarfile
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from backports import zstd

from tests.support.archives import extended, folder, hardlink, header, member, packed, symlink
from tests.support.filing import Filing
from tests.support.problems import problem
from tests.support.running import Server, eventually

NAMES = count()
TAR = {"Content-Type": "application/x-tar"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    root = tmp_path_factory.mktemp("root")
    limits = ["--archive-bytes", "64MiB", "--archive-entries", "2000", "--archive-ratio", "20", "--archives", "2"]
    with Server("--no-persist", "--fs-root", str(root), *limits) as running:
        running.environment["root"] = str(root)
        yield running


@pytest.fixture
def files(small_server: Server) -> Filing:
    folder = Path(str(small_server.environment["root"])) / f"test{next(NAMES)}"
    folder.mkdir()
    return Filing(small_server, folder)


def upload(files: Filing, path: str, data: bytes | Iterator[bytes], **headers: str):
    return files.http.post("/upload-batch", params={"path": path}, content=data, headers={**TAR, **headers})


@pytest.mark.requirement("13.upload-limits")
def test_a_few_bytes_that_unfold_into_thousands_of_levels_are_refused_with_the_limit(files: Filing) -> None:
    deep = gzip.compress(extended(path="a/" * 2000 + "f") + header("f") + bytes(1024))
    long = gzip.compress(extended(path="a/" * 31_000 + "f") + header("f") + bytes(1024))
    for data, limit in ((deep, 256), (long, 4095)):
        document = problem(upload(files, f"{files.root}/into", data), 413, "archive-too-large")
        assert (document["limit"], document["entry"][:4]) == (limit, "a/a/")
    assert os.listdir(files.root) == []


@pytest.mark.requirement("13.archive-is-whole")
def test_a_directory_that_is_too_deep_for_an_archive_is_cut_off_and_can_be_deleted(files: Filing) -> None:
    here = os.open(files.root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with pytest.raises(httpx.RemoteProtocolError):
        download(files, str(files.root))
    assert files.delete(str(files.root / "d"), recursive="true").status_code == 200
    assert os.listdir(files.root) == []


def download(files: Filing, path: str, **query: str):
    return files.http.get("/archive", params={"path": path, **query})


def listing(root: Path) -> dict[str, bytes | Path | None]:
    return {
        str(path.relative_to(root)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in root.rglob("*")
    }


@pytest.mark.requirement("13.upload")
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("type", ["application/x-tar", "application/gzip", "application/zstd"])
def test_an_archive_is_unpacked_into_a_directory_that_is_made(files: Filing, pack: object, type: str) -> None:
    assert callable(pack)
    data = pack(packed(member("run", b"#!", mode=0o755), member("a/b", b"x" * 100_000), symlink("l", "a/b")))
    response = upload(files, f"{files.root}/new/deep", data, **{"Content-Type": type})
    assert response.status_code == 200, response.text
    into = files.root / "new/deep"
    assert response.json() == {"paths": [f"{into}/run", f"{into}/a/b", f"{into}/l"], "truncated": False}
    assert listing(into) == {"run": b"#!", "a": None, "a/b": b"x" * 100_000, "l": Path("a/b")}
    assert os.access(into / "run", os.X_OK)


@pytest.mark.requirement("13.upload")
def test_directories_are_merged_and_files_replaced_and_the_first_paths_told(files: Filing) -> None:
    (files.root / "a").mkdir()
    (files.root / "a/stays").write_text("old")
    (files.root / "a/1").write_text("old")
    response = upload(files, str(files.root), packed(*(member(f"a/{number}", b"new") for number in range(1100))))
    assert (len(response.json()["paths"]), response.json()["truncated"]) == (1024, True)
    assert (files.root / "a/stays").read_text() == "old"
    assert (files.root / "a/1").read_text() == "new"
    assert len(os.listdir(files.root / "a")) == 1101


@pytest.mark.requirement("13.upload")
def test_a_relative_path_begins_at_the_root(files: Filing) -> None:
    response = upload(files, f"{files.root.name}/here", packed(member("x", b"1")))
    assert response.json()["paths"] == [f"{files.root}/here/x"]


@pytest.mark.requirement("13.upload")
@pytest.mark.parametrize("headers", [{"Content-Type": "application/zip"}, {"Content-Encoding": "br"}])
def test_what_is_declared_as_something_else_is_a_415(files: Filing, headers: dict[str, str]) -> None:
    problem(upload(files, str(files.root), packed(), **headers), 415, "unsupported-media-type")


@pytest.mark.requirement("13.upload-confined")
@pytest.mark.requirement("13.upload-is-whole")
@pytest.mark.parametrize(
    "bad",
    [
        [member("../x", b"x")],
        [member("/x", b"x")],
        [symlink("l", "../..")],
        [symlink("l", "/"), member("l/x", b"x")],
        [hardlink("h", "../../etc/passwd")],
        [member("d", type=tarfile.CHRTYPE)],
        [member("p", type=tarfile.FIFOTYPE)],
        [member("twice", b"1"), member("twice", b"2")],
    ],
    ids=["up", "absolute", "link", "link then file", "hard link", "device", "pipe", "twice"],
)
def test_an_archive_that_breaks_a_rule_is_refused_and_changes_nothing(
    files: Filing, bad: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    (files.root / "old").write_text("old")
    beside = sorted(os.listdir(files.root.parent))
    document = problem(upload(files, str(files.root), packed(member("old", b"new"), *bad)), 400, "bad-archive")
    assert document["rule"]
    assert listing(files.root) == {"old": b"old"}
    assert sorted(os.listdir(files.root.parent)) == beside


@pytest.mark.requirement("13.upload-is-whole")
def test_a_broken_archive_changes_nothing(files: Filing) -> None:
    whole = packed(member("a", random.Random(1).randbytes(200_000)))
    for data in (b"", b"no archive", whole[:100_000], gzip.compress(whole)[:1000], zstd.compress(whole)[:1000]):
        problem(upload(files, str(files.root), data), 400, "bad-archive")
        assert os.listdir(files.root) == []


@pytest.mark.requirement("13.upload-is-whole")
def test_a_client_that_stops_half_way_leaves_nothing(files: Filing) -> None:
    data = packed(member("a", bytes(MIB)))
    headers = {"Content_Length": str(len(data)), "Content_Type": "application/x-tar"}
    target = f"/v1/fs/upload-batch?path={files.root}"
    for sent in (0, 100, 700, 500_000):
        connection = files.raw("POST", target, data[:sent], **headers)
        eventually(lambda: os.listdir(files.root), "the upload has begun")
        connection.close()
        eventually(lambda: os.listdir(files.root) == [], "nothing is left")


@pytest.mark.requirement("13.upload-confined")
def test_a_link_in_the_target_that_leads_out_is_not_followed(files: Filing, tmp_path: Path) -> None:
    (files.root / "out").symlink_to(tmp_path)
    document = problem(upload(files, str(files.root), packed(member("a"), member("out/x", b"x"))), 403, "outside-roots")
    assert document["path"] == f"{files.root}/out"
    problem(upload(files, f"{files.root}/out", packed(member("x"))), 403, "outside-roots")
    problem(upload(files, "/etc", packed(member("x"))), 403, "outside-roots")
    problem(upload(files, f"{files.root}/../../new", packed(member("x"))), 403, "outside-roots")
    assert os.listdir(tmp_path) == []
    assert os.listdir(files.root) == ["out"]


@pytest.mark.requirement("13.upload-is-whole")
def test_what_is_in_the_way_is_a_409_and_changes_nothing(files: Filing) -> None:
    (files.root / "folder").mkdir()
    (files.root / "file").write_text("old")
    for bad in (member("folder", b"x"), member("file/x", b"x"), folder("file")):
        problem(upload(files, str(files.root), packed(member("first", b"x"), bad)), 409, "file-conflict")
        assert listing(files.root) == {"folder": None, "file": b"old"}


@pytest.mark.requirement("13.upload-limits")
def test_an_archive_over_a_limit_is_a_413(files: Filing) -> None:
    def large() -> Iterator[bytes]:
        info = tarfile.TarInfo("large")
        info.size = 1 << 40
        yield info.tobuf()
        for _ in range(100):
            yield bytes(MIB)

    many = packed(*(member(f"{number}") for number in range(2001)))
    bomb = gzip.compress(packed(member("zeros", bytes(70 * MIB))), 1)
    limits = [
        problem(upload(files, str(files.root), data), 413, "archive-too-large")["limit"]
        for data in (large(), many, bomb)
    ]
    assert limits[:2] == [64 * MIB, 2000]
    assert os.listdir(files.root) == []


@pytest.mark.requirement("13.archive")
@pytest.mark.parametrize("format", ["", "tar", "tar.gz", "tar.zst"])
def test_a_directory_comes_back_as_it_is(files: Filing, format: str) -> None:
    (files.root / "a/empty").mkdir(parents=True)
    (files.root / "a/file").write_bytes(b"x" * 300_000)
    (files.root / "a/run").write_text("#!")
    (files.root / "a/run").chmod(0o755)
    (files.root / "a/link").symlink_to("file")
    os.mkfifo(files.root / "a/pipe")
    response = download(files, f"{files.root}/a", **({"format": format} if format else {}))
    assert response.status_code == 200
    suffix = format or "tar"
    assert response.headers["content-disposition"] == f"attachment; filename*=UTF-8''a.{suffix}"
    assert upload(files, f"{files.root}/b", response.content).status_code == 200
    (files.root / "a/pipe").unlink()
    assert listing(files.root / "a") == listing(files.root / "b")
    assert os.access(files.root / "b/run", os.X_OK)


@pytest.mark.requirement("13.archive")
def test_links_out_are_links_and_what_is_no_directory_is_refused(files: Filing, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (files.root / "out").symlink_to(tmp_path)
    (files.root / "file").write_text("x")
    response = download(files, str(files.root))
    with tarfile.open(fileobj=io.BytesIO(response.content)) as archive:
        assert {info.name: info.linkname for info in archive} == {"out": str(tmp_path), "file": ""}
    problem(download(files, f"{files.root}/file"), 409, "file-conflict")
    problem(download(files, f"{files.root}/none"), 404, "file-not-found")
    problem(download(files, f"{files.root}/out"), 403, "outside-roots")
    problem(download(files, str(files.root), format="zip"), 400, "bad-request")
    problem(files.http.get("/archive"), 400, "bad-request")
    head = files.http.head("/archive", params={"path": str(files.root)})
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.requirement("13.archives-at-once")
@pytest.mark.requirement("13.archive-is-whole")
def test_concurrent_archives_are_bounded_and_a_client_that_leaves_makes_room(files: Filing) -> None:
    with (files.root / "large").open("wb") as file:
        file.truncate(100 * MIB)
    target = f"/v1/fs/archive?path={files.root}"
    stalled = [files.raw("GET", target) for _ in range(2)]
    for connection in stalled:
        assert connection.recv(12) == b"HTTP/1.1 200"
    problem(download(files, str(files.root)), 429, "too-many")
    problem(upload(files, str(files.root), packed(member("x"))), 429, "too-many")
    for connection in stalled:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    eventually(lambda: upload(files, f"{files.root}/later", packed(member("x"))).status_code == 200, "there is room")


@pytest.mark.requirement("13.archive-is-whole")
def test_a_large_directory_and_a_large_archive_take_little_memory(files: Filing) -> None:
    for number in range(3):
        with (files.root / f"{number}").open("wb") as file:
            file.truncate(16 * MIB)

    def resident() -> int:
        status = Path(f"/proc/{files.server.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))

    small = download(files, f"{files.root}/", format="tar.gz").content
    upload(files, f"{files.root}/warm", small[:0])
    before = resident()
    data = download(files, str(files.root)).content
    assert upload(files, f"{files.root}/copy", data).status_code == 200
    assert resident() - before < 16 * 1024


@pytest.mark.requirement("13.archive-is-whole")
@pytest.mark.requirement("13.upload-is-whole")
def test_a_server_that_stops_cuts_off_what_is_under_way_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    with (tmp_path / "from/large").open("wb") as file:
        file.truncate(100 * MIB)
    with Server("--no-persist") as server:
        files = Filing(server, tmp_path)
        down = files.raw("GET", f"/v1/fs/archive?path={tmp_path}/from")
        assert down.recv(12) == b"HTTP/1.1 200"
        up = files.raw("POST", f"/v1/fs/upload-batch?path={tmp_path}/to", Content_Length="10000")
        eventually(lambda: os.listdir(tmp_path / "to"), "the upload has begun")
        assert server.stop() == 0
        down.close()
        up.close()
    assert os.listdir(tmp_path / "to") == []
