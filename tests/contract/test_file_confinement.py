"""Contract, section 13: nothing outside of --fs-root is reached, whatever is tried."""

import os
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.client import Client, run
from tests.support.filing import Filing, problem
from tests.support.hosting import READ, WRITE, gets, refused
from tests.support.running import Server
from tests.support.swapping import exchange, swapping

ROUNDS = 12
"""Times that each request is tried while names are swapped; tests/server/files/test_confined.py does so without a
server, and thousands of times."""
OUTSIDE = (403, "outside-roots")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Generator[Filing]:
    folder = tmp_path_factory.mktemp("place")
    for each in ("root", "outside", "rootling"):
        (folder / each).mkdir()
    (folder / "outside" / "file").write_text("secret")
    (folder / "rootling" / "file").write_text("secret")
    with Server("--no-persist", "--fs-root", str(folder / "root")) as server:
        yield Filing(server, folder / "root")


@pytest.fixture(autouse=True)
def nothing_outside_changes(files: Filing) -> Generator[None]:
    yield
    for folder in ("outside", "rootling"):
        assert os.listdir(files.root.parent / folder) == ["file"]
        assert (files.root.parent / folder / "file").read_text() == "secret"


def everything(files: Filing, path: str) -> list[httpx.Response]:
    """Each way to use a path."""
    (files.root / "spare").write_text("spare")
    return [
        files.get(path),
        files.put(path, b"overwritten"),
        files.stat(path),
        files.entries(path),
        files.mkdir(path),
        files.delete(path, recursive="true"),
        files.move(path, "stolen"),
        files.move("spare", path, overwrite=True),
    ]


@pytest.mark.requirement("13.confined")
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside",
        "../outside/file",
        "../rootling/file",
        "sub/../../outside/file",
        "./.././outside//file",
        "{root}/../outside/file",
        "{root}ling/file",
        "{outside}/file",
        "/",
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/file",
        "/dev/null",
        "link/file",
        "absolute/file",
        "chain/file",
        "jump/etc/passwd",
        "link/../outside/file",
    ],
)
def test_what_leads_out_is_refused_in_every_use(files: Filing, path: str) -> None:
    (files.root / "sub").mkdir(exist_ok=True)
    links = {"link": "../outside", "absolute": files.root.parent / "outside", "chain": "sub/../link"}
    for name, target in {**links, "jump": "/proc/self/root"}.items():
        if not (files.root / name).is_symlink():
            (files.root / name).symlink_to(target)
    path = path.format(root=files.root, outside=files.root.parent / "outside")
    responses = everything(files, path)
    assert [problem(response) for response in responses] == [OUTSIDE] * len(responses)
    assert not (files.root / "stolen").exists()


@pytest.mark.requirement("13.confined")
@pytest.mark.parametrize(
    "spelling",
    [
        "%2e%2e/outside/file",
        "..%2foutside%2ffile",
        "%2E%2E%2Foutside/file",
        ".%2e/outside/file",
        "%2e%2e%2f%2e%2e/file",
    ],
)
def test_dots_are_dots_however_they_are_encoded(files: Filing, spelling: str) -> None:
    assert problem(files.http.get(f"/file?path={spelling}")) == OUTSIDE


@pytest.mark.requirement("13.confined")
@pytest.mark.parametrize(
    "spelling",
    [
        "%252e%252e%252foutside%252ffile",
        "%c0%ae%c0%ae/outside/file",
        "%e0%80%ae%e0%80%ae/outside/file",
        "%ee%be%ae%ee%be%ae/outside/file",
        "..%5coutside%5cfile",
        "\u2025/outside/file",
        "%uff0e%uff0e/outside/file",
        "...//outside/file",
    ],
)
def test_what_only_looks_like_dots_is_a_name(files: Filing, spelling: str) -> None:
    assert problem(files.http.get(f"/file?path={spelling}")) == (404, "file-not-found")


@pytest.mark.requirement("13.confined")
def test_a_null_ends_no_name(files: Filing) -> None:
    (files.root / "file.txt").write_text("inside")
    for path in ("file.txt%00", "file.txt%00.png", "..%00/outside/file", "%00"):
        assert problem(files.http.get(f"/file?path={path}")) == (400, "bad-path")


@pytest.mark.requirement("13.confined")
def test_a_link_that_leads_out_can_be_looked_at_and_deleted(files: Filing) -> None:
    (files.root / "out").symlink_to("../outside")
    used = [files.get("out"), files.put("out", b"text"), files.stat("out"), files.entries("out"), files.mkdir("out")]
    assert [problem(response) for response in used] == [OUTSIDE] * 5
    assert files.stat("out", follow="false").json()["linkTarget"] == "../outside"
    listed = {entry["name"]: entry["entryType"] for entry in files.entries(".").json()["entries"]}
    assert listed["out"] == "symlink"
    assert files.delete("out", recursive="true").status_code == 200
    assert not (files.root / "out").is_symlink()


@pytest.mark.requirement("13.confined")
def test_a_directory_that_is_swapped_for_a_link_never_leads_out(files: Filing) -> None:
    """Reading, listing, writing, making, moving and deleting, while a directory and a link change places."""
    (files.root / "swapped" / "deep").mkdir(parents=True)
    (files.root / "swapped" / "file").write_text("inside")
    (files.root / "evil").symlink_to("../outside")
    seen: set[int] = set()
    contents: set[str] = set()
    with swapping(exchange(files.root / "swapped", files.root / "evil")):
        for turn in range(ROUNDS):
            got = files.get("swapped/file")
            contents.add(got.text if got.status_code == 200 else "refused")
            (files.root / f"victim{turn}").write_text("inside")
            for response in (
                got,
                files.put("swapped/deep/new", b"inside"),
                files.put(f"swapped/made{turn}/new", b"inside"),
                files.mkdir("swapped/deep/a/b"),
                files.move(f"victim{turn}", "swapped/file", overwrite=True),
                files.move("swapped/file", f"moved{turn}"),
                files.delete("swapped/deep/a", recursive="true"),
                files.stat("swapped/file"),
            ):
                seen.add(response.status_code)
            for entry in files.entries("swapped").json().get("entries", []):
                assert entry["entryType"] == "directory" or entry["name"] in ("file", "new")
    assert contents <= {"inside", "refused"}
    assert seen <= {200, 403, 404, 409}
    assert 403 in seen, "nothing was swapped while we looked"


@pytest.mark.requirement("13.confined")
def test_deleting_a_tree_whose_directories_become_links_spares_the_outside(files: Filing) -> None:
    for turn in range(ROUNDS):
        tree = files.root / f"tree{turn}"
        for number in range(5):
            (tree / f"sub{number}" / "deep").mkdir(parents=True)
        (tree / "evil").symlink_to(files.root.parent / "outside")
        with swapping(exchange(tree / "sub0", tree / "evil")):
            response = files.delete(str(tree), recursive="true")
        assert response.status_code in (200, 409), response.text


@pytest.mark.requirement("13.agents-confined")
def test_an_agent_stays_inside_the_session_and_inside_the_roots(files: Filing) -> None:
    (files.root / "work").mkdir()
    (files.root / "beside").write_text("inside the root, outside the session")
    (files.root / "work" / "link").symlink_to("../../outside/file")

    async def main() -> None:
        async with Client(files.server) as client:

            async def session(cwd: Path) -> str:
                params = {"cwd": str(cwd), "mcpServers": []}
                return (await client.result("session/new", params))["sessionId"]

            inside = await session(files.root / "work")
            path = str(files.root / "work" / "file")
            assert await gets(client, inside, WRITE, path=path, content="text") == {}
            assert await gets(client, inside, READ, path=path) == {"content": "text"}
            for refused_path in (
                files.root / "beside",
                files.root / "work" / "link",
                files.root.parent / "outside/file",
            ):
                error = await refused(client, inside, READ, path=str(refused_path))
                assert error["data"]["errorKind"] == "path_outside_workspace"
            outside = await session(files.root.parent / "outside")
            error = await refused(client, outside, READ, path=str(files.root.parent / "outside/file"))
            assert error["data"]["errorKind"] == "path_outside_workspace"
            around = await session(files.root.parent)
            assert await gets(client, around, READ, path=path) == {"content": "text"}
            error = await refused(client, around, WRITE, path=str(files.root.parent / "outside/file"), content="text")
            assert error["data"]["errorKind"] == "path_outside_workspace"
            # Relative to a session that is outside of the roots there is nothing.
            response = files.get("file", sessionId=outside)
            assert problem(response) == OUTSIDE

    run(main())


@pytest.mark.requirement("13.roots-held")
@pytest.mark.parametrize("instead", ["link", "directory", "nothing"])
def test_what_takes_the_place_of_a_root_is_not_served(files: Filing, instead: str) -> None:
    root, kept = files.root, files.root.with_name("kept")
    (root / "mine").write_text("mine")
    path = quote(str(root / "file"))
    root.rename(kept)
    try:
        if instead == "link":
            root.symlink_to("outside")
        elif instead == "directory":
            root.mkdir()
            (root / "file").write_text("another")
        answers = [
            *(files.get(path), files.put(path, b"overwritten"), files.stat(path), files.entries(quote(str(root)))),
            *(files.mkdir(quote(str(root / "new"))), files.delete(path), files.get("file")),
            files.http.get("/archive", params={"path": str(root)}),
            files.http.get("/search", params={"path": str(root), "text": "s"}),
            files.http.get("/watch", params={"path": str(root)}),
        ]
        assert {problem(each) for each in answers} == {(409, "root-replaced")}
        assert "restart the server" in answers[0].json()["detail"]
    finally:
        if instead == "link":
            root.unlink()
        elif instead == "directory":
            assert (root / "file").read_text() == "another"
            (root / "file").unlink()
            root.rmdir()
        kept.rename(root)
    assert files.get("mine").text == "mine"


@pytest.mark.requirement("13.confined")
def test_links_lead_from_one_root_to_another(tmp_path: Path) -> None:
    for each in ("one", "two"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "file").write_text(each)
    (tmp_path / "one" / "link").symlink_to("../two/file")
    (tmp_path / "one" / "straight").symlink_to(tmp_path / "two" / "file")
    with Server("--no-persist", "--fs-root", str(tmp_path / "one"), "--fs-root", str(tmp_path / "two")) as server:
        files = Filing(server, tmp_path)
        assert files.get("straight").text == "two"
        assert files.get(quote(str(tmp_path / "two" / "file"))).text == "two"
        # The way itself would go through what is between them.
        assert problem(files.get("link")) == OUTSIDE
