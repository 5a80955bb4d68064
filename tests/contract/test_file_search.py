"""Contract, section 13: searching."""

import json
import os
from collections.abc import Generator
from itertools import count
from pathlib import Path

import pytest

from tests.support.filing import Filing
from tests.support.problems import problem
from tests.support.running import Server, eventually

NAMES = count()


@pytest.fixture(scope="module")
def searching_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    root = tmp_path_factory.mktemp("root")
    limits = ["--search-results", "50", "--search-bytes", "20KiB", "--searches", "2"]
    with Server("--no-persist", "--fs-root", str(root), *limits) as running:
        running.environment["root"] = str(root)
        yield running


@pytest.fixture
def files(searching_server: Server) -> Filing:
    folder = Path(str(searching_server.environment["root"])) / f"test{next(NAMES)}"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("import os\nprint('needle')\n")
    (folder / "notes.txt").write_text("a Needle\n")
    (folder / ".gitignore").write_text("made\n")
    (folder / "made").write_text("needle\n")
    return Filing(searching_server, folder)


def search(files: Filing, **query: str):
    return files.http.get("/search", params={"path": str(files.root), **query})


@pytest.mark.requirement("13.search")
def test_lines_are_found_by_text_and_files_by_name(files: Filing) -> None:
    by_text = search(files, text="needle").json()
    assert by_text == {
        "matches": [
            {"path": f"{files.root}/notes.txt", "line": 1, "column": 3, "text": "a Needle"},
            {"path": f"{files.root}/src/main.py", "line": 2, "column": 8, "text": "print('needle')"},
        ],
        "truncated": False,
    }
    by_name = search(files, name="*.py").json()
    assert by_name == {"matches": [{"path": f"{files.root}/src/main.py"}], "truncated": False}
    both = search(files, text="needle", name="src/*").json()
    assert [match["path"] for match in both["matches"]] == [f"{files.root}/src/main.py"]
    ignored = search(files, text="needle", ignored="true").json()
    assert len(ignored["matches"]) == 3


@pytest.mark.requirement("13.search")
def test_matches_come_as_lines_when_that_is_accepted(files: Filing) -> None:
    response = files.http.get(
        "/search", params={"path": str(files.root), "text": "needle"}, headers={"Accept": "application/x-ndjson"}
    )
    assert response.headers["content-type"].startswith("application/x-ndjson")
    *matches, ending = [json.loads(line) for line in response.text.splitlines()]
    assert {match["path"] for match in matches} == {f"{files.root}/notes.txt", f"{files.root}/src/main.py"}
    assert ending == {"truncated": False}


@pytest.mark.requirement("13.search-refuses")
def test_what_cannot_be_searched_for_is_a_400(files: Filing) -> None:
    assert "unclosed" in problem(search(files, text="(", regex="true"), 400, "bad-request")["detail"]
    lines = {"Accept": "application/x-ndjson"}
    parameters = {"path": str(files.root), "text": "(", "regex": "true"}
    problem(files.http.get("/search", params=parameters, headers=lines), 400, "bad-request")
    for query in (
        {},
        {"text": ""},
        {"text": "x" * 5000},
        {"text": "a\0b"},
        {"text": "a\nb"},
        {"name": ""},
        {"text": "x", "case": "upper"},
        {"text": "x", "limit": "0"},
        {"text": "x", "limit": "many"},
        {"text": "x", "limit": "9" * 5000},
        {"text": "x", "regex": "yes"},
    ):
        problem(search(files, **query), 400, "bad-request")
    problem(search(files, path=f"{files.root}/none", text="x"), 404, "file-not-found")
    problem(search(files, path=f"{files.root}/notes.txt", text="x"), 409, "file-conflict")


@pytest.mark.requirement("13.search-confined")
def test_links_out_are_not_followed(files: Filing, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("needle\n")
    (files.root / "out").symlink_to(tmp_path)
    (files.root / "secret.txt").symlink_to(tmp_path / "secret.txt")
    assert len(search(files, text="needle", hidden="true").json()["matches"]) == 2
    assert search(files, name="secret").json()["matches"] == []
    problem(search(files, path=f"{files.root}/out", text="x"), 403, "outside-roots")
    problem(search(files, path=str(tmp_path), text="x"), 403, "outside-roots")


@pytest.mark.requirement("13.search-limits")
def test_a_search_is_bounded_and_says_so(files: Filing) -> None:
    (files.root / "many").write_text("needle\n" * 1000)
    (files.root / "wide").write_text(("wide" + "x" * 900 + "\n") * 45)
    many = search(files, text="needle", name="many").json()
    assert (len(many["matches"]), many["truncated"], many["reason"]) == (50, True, "results")
    few = search(files, text="needle", limit="3").json()
    assert (len(few["matches"]), few["truncated"]) == (3, True)
    assert search(files, text="needle", name="many", limit="100000").json()["reason"] == "results"
    assert search(files, text="wide").json()["reason"] == "bytes"
    with Server("--no-persist", "--search-time", "1ms") as hasty:
        slow = Filing(hasty, files.root).http.get("/search", params={"path": "/", "text": "nowhere"}).json()
    assert (slow["truncated"], slow["reason"]) == (True, "time")


@pytest.mark.requirement("13.search-limits")
def test_a_search_ends_with_its_request_and_only_so_many_run(files: Filing) -> None:
    # So large a tree that it does not end by itself meanwhile.
    target = "/v1/fs/search?path=/&text=thisisnowhere&ignored=true&hidden=true"
    with Server("--no-persist", "--searches", "2", "--search-time", "1m") as server:
        everywhere = Filing(server, Path("/"))
        asking = [everywhere.raw("GET", target) for _ in range(2)]
        eventually(lambda: len(searching(server)) == 2, "both run")
        problem(search(everywhere, text="x"), 429, "too-many")
        for connection in asking:
            connection.close()
        eventually(lambda: searching(server) == [], "both are gone")
        here = Filing(server, files.root)
        eventually(lambda: search(here, text="needle").status_code == 200, "there is room")


def searching(server: Server) -> list[int]:
    """The processes of ripgrep that this server has."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        name, _, rest = status.partition("(")[2].rpartition(")")
        del name
        if "(rg)" in status and int(rest.split()[1]) == server.process.pid and rest.split()[0] != "Z":
            found.append(int(pid))
    return found
