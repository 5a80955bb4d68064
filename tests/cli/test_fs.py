"""`sandbox-agent fs …`: looking at the files of a running server, and copying them to and from it."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.cli_call import CliCall, interrupted, nobody_reads, reading
from tests.cli.place import Place
from tests.support.client import Client, run
from tests.support.running import BOUND, Server

ODD = "new\nline \x1b[31m"
NO_TEXT = os.fsdecode(b"\xff\xfe")


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server("--max-file", "20MiB") as running:
        yield running


@pytest.fixture
def calling(place: Place, server: Server) -> CliCall:
    return CliCall(place, server)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A directory of the server's machine."""
    path = tmp_path / "there"
    path.mkdir()
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory where commands are run."""
    path = tmp_path / "here"
    path.mkdir()
    return path


def filled(root: Path) -> Path:
    """A directory with some of everything."""
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "a.txt").write_text("alpha\nbeta\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub" / "large").write_bytes(os.urandom(1_000_000))
    (root / "sub" / ODD).write_text("odd")
    (root / "sub" / NO_TEXT).write_text("bytes")
    (root / "link").symlink_to("sub/large")
    (root / "sub" / "up").symlink_to("../a.txt")
    return root


def contents(root: Path) -> dict[str, object]:
    """Everything below: content and the right to run of files, targets of links."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = (path.read_bytes(), os.access(path, os.X_OK)) if path.is_file() else None
    return found


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_directory_is_listed_by_name(calling: CliCall, there: Path) -> None:
    filled(there)

    assert calling.well("fs", "ls", str(there)).lines == ["a.txt", "link", "run.sh", "sub"]
    assert calling.well("fs", "ls", str(there / "sub")).lines == ["empty", "large", "new line ?[31m", "up", "??"]
    assert calling.well("fs", "ls", str(there / "sub" / "empty")).out == ""


def test_a_long_list_has_modes_sizes_times_and_targets(calling: CliCall, there: Path) -> None:
    filled(there)
    (there / "run.sh").chmod(0o750)

    told = calling.well("fs", "ls", "-l", str(there)).lines

    when = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.fullmatch(rf"-rw-r--r-- +11  {when}  a\.txt", told[0])
    assert re.fullmatch(rf"lrwxrwxrwx +9  {when}  link -> sub/large", told[1])
    assert re.fullmatch(rf"-rwxr-x--- +10  {when}  run\.sh", told[2])
    assert re.fullmatch(rf"drwxr-xr-x +\d+  {when}  sub", told[3])


def test_a_file_is_listed_as_itself(calling: CliCall, there: Path) -> None:
    filled(there)

    assert calling.well("fs", "ls", str(there / "a.txt")).lines == ["a.txt"]


def test_a_large_directory_is_listed_to_its_end(calling: CliCall, there: Path) -> None:
    names = [f"{number:04}" for number in range(2100)]
    for name in names:
        (there / name).touch()

    whole = calling.well("fs", "ls", str(there), "--json").json

    assert calling.well("fs", "ls", str(there)).lines == names
    assert (whole["path"], [each["name"] for each in whole["entries"]]) == (str(there), names)
    assert set(whole) == {"path", "entries"}


def test_content_goes_to_stdout_byte_for_byte(calling: CliCall, there: Path) -> None:
    (there / "a").write_bytes(bytes(range(256)) * 1000)
    (there / NO_TEXT).write_bytes(b"\r\n\0")

    ran = calling("fs", "cat", str(there / "a"), str(there / "none"), os.fsencode(there / NO_TEXT))

    assert ran.raw == bytes(range(256)) * 1000 + b"\r\n\0"
    assert (ran.code, ran.err) == (
        1,
        f"sandbox-agent: File Not Found: {there / 'none'}: No such file or directory\n",
    )


TRICKS = {
    b"\x1b[2Jcleared": "\\x1b[2Jcleared",
    b"\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x1b\\": "\\x1b]0;title\\x07\\x1b]52;c;ZXZpbA==\\x1b\\",
    b"\xc2\x9b31mred": "\\x9b31mred",
    b"\x9b31mred": "\\x9b31mred",
    b"echo harmless\rrm -rf /": "echo harmless\\rrm -rf /",
    b"a\x08\x08b\x7f\x0e": "a\\x08\\x08b\\x7f\\x0e",
    "\u202etxt.exe".encode(): "\\u202etxt.exe",
    "\tein Stück ✓\n".encode(): "\tein Stück ✓\n",
    b"cut \xe2\x9c": "cut \\xe2\\x9c",
}
"""What is in a file, and what a terminal shows."""


def test_a_terminal_gets_nothing_of_a_file_that_it_would_obey(calling: CliCall, there: Path) -> None:
    (there / "tricks").write_bytes(b"\n".join(TRICKS))

    for command in (("cat", str(there / "tricks")), ("get", str(there / "tricks"), "-")):
        code, text = calling.on_a_terminal("fs", *command)
        assert (code, text) == (0, "\n".join(TRICKS.values()).replace("\n", "\r\n"))
        assert calling.well("fs", *command).raw == b"\n".join(TRICKS)


def test_a_letter_that_comes_in_two_pieces_is_shown_as_one(calling: CliCall, there: Path) -> None:
    (there / "long").write_text("é" * 300_000)
    (there / "odd").write_text("x" + "é" * 300_000)

    for name, first in (("long", ""), ("odd", "x")):
        assert calling.on_a_terminal("fs", "cat", str(there / name)) == (0, first + "é" * 300_000)


def test_no_command_lets_a_name_do_things_to_a_terminal(calling: CliCall, there: Path) -> None:
    evil = there / "\x1b]0;evil\x07\x9b2J"
    evil.mkdir()
    (evil / "inner").write_text("needle \x1b[31m")
    commands = [
        ("fs", "ls", "-l", str(there)),
        ("fs", "stat", str(evil)),
        ("fs", "search", "needle", str(there)),
        ("fs", "cat", str(evil / "none")),
        ("fs", "rm", str(evil)),
        ("api", "GET", f"/v1/fs/entries?path={there}"),
        ("api", "GET", f"/v1/fs/file?path={there}%2F%1B%5D0;evil%07%C2%9B2J%2Finner"),
        ("fs", "get", str(evil)),
    ]
    for command in commands:
        _, text = calling.on_a_terminal(*command, NO_COLOR="1")
        assert text, command
        assert [letter for letter in text if not letter.isprintable() and letter not in "\r\n\t"] == [], (command, text)


def test_facts_of_a_file_and_of_a_link(calling: CliCall, there: Path) -> None:
    filled(there)

    facts = dict(
        re.findall(r"^(\w+|leads to) +(.+)$", calling.well("fs", "stat", str(there / "link")).out, re.MULTILINE)
    )
    link = calling.well("fs", "stat", str(there / "link"), "--no-follow").out
    document = calling.well("fs", "stat", str(there / "link"), "--no-follow", "--json").json

    assert (facts["kind"], facts["size"], facts["path"]) == ("file", "1000000", str(there / "link"))
    assert re.search(r"^leads to +sub/large$", link, re.MULTILINE)
    assert (document["entryType"], document["linkTarget"]) == ("symlink", "sub/large")


def test_paths_are_relative_to_a_session_by_the_beginning_of_its_id(calling: CliCall, there: Path) -> None:
    filled(there)

    async def make() -> None:
        async with Client(calling.server) as client:
            meta = {"sandboxagent.dev": {"requestedSessionId": "for-files"}}
            await client.result("session/new", {"cwd": str(there), "mcpServers": [], "_meta": meta})

    run(make())
    session = ("--session", "for-f")

    assert calling.well("fs", "ls", *session).lines == ["a.txt", "link", "run.sh", "sub"]
    assert calling.well("fs", "cat", "a.txt", *session).out == "alpha\nbeta\n"
    calling.well("fs", "mv", "a.txt", "sub", *session)
    assert (there / "sub" / "a.txt").exists()
    assert calling.refused("fs", "ls", "--session", "nobody").startswith("there is no session 'nobody'")


# --- names ------------------------------------------------------------------------------------------------------------


def test_directories_are_made_and_things_are_moved_and_removed(calling: CliCall, there: Path) -> None:
    calling.well("fs", "mkdir", str(there / "a" / "b"), str(there / "c"), str(there / "c"))
    (there / "file").write_text("1")
    (there / "other").write_text("2")

    calling.well("fs", "mv", str(there / "file"), str(there / "a"))
    calling.well("fs", "mv", str(there / "a" / "file"), str(there / "c") + "/")
    calling.well("fs", "mv", str(there / "c"), str(there / "d"))
    taken = calling.refused("fs", "mv", str(there / "other"), str(there / "d" / "file"))
    calling.well("fs", "mv", "-f", str(there / "other"), str(there / "d" / "file"))

    assert taken.startswith("File Conflict: ")
    assert (there / "d" / "file").read_text() == "2"
    full = calling("fs", "rm", str(there / "d"), str(there / "d" / "file"))
    assert (full.code, full.err.count("\n")) == (1, 1), "each for itself"
    calling.well("fs", "rm", "-r", str(there / "a"), str(there / "d"))
    assert list(there.iterdir()) == []


def test_names_that_are_no_text_are_names(calling: CliCall, there: Path) -> None:
    (there / NO_TEXT).write_text("x")
    shown = calling.well("fs", "ls", str(there), "--json").json["entries"][0]["name"]

    calling.well("fs", "mv", os.fsencode(there / NO_TEXT), os.fsencode(there / f"{NO_TEXT}2"))
    calling.well("fs", "mv", f"{there}/{shown}2", str(there / "plain"))
    calling.well("fs", "mv", str(there / "plain"), os.fsencode(there / NO_TEXT))
    calling.well("fs", "rm", os.fsencode(there / NO_TEXT))

    assert list(there.iterdir()) == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_fetched_under_its_name_or_another(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)
    (here / "dir").mkdir()

    calling.well("fs", "get", str(there / "run.sh"), cwd=here)
    calling.well("fs", "get", str(there / "a.txt"), "b.txt", cwd=here)
    calling.well("fs", "get", str(there / "sub" / "large"), "dir", cwd=here)
    piped = calling.well("fs", "get", str(there / "link"), "-", cwd=here)

    assert contents(here) == {
        "run.sh": (b"#!/bin/sh\n", True),
        "b.txt": (b"alpha\nbeta\n", False),
        "dir": None,
        "dir/large": ((there / "sub" / "large").read_bytes(), False),
    }
    assert piped.raw == (there / "sub" / "large").read_bytes()


def test_a_file_takes_the_place_of_another_and_keeps_its_mode(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)
    (here / "real").write_text("old")
    (here / "real").chmod(0o640)
    (here / "link").symlink_to("real")

    calling.well("fs", "get", str(there / "a.txt"), "link", cwd=here)

    assert (here / "link").is_symlink()
    assert (here / "real").read_text() == "alpha\nbeta\n"
    assert (here / "real").stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_to_and_not_replaced(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)
    os.mkfifo(here / "pipe")
    with subprocess.Popen(["cat", here / "pipe"], stdout=subprocess.PIPE) as reader:
        calling.well("fs", "get", str(there / "a.txt"), "pipe", cwd=here)

        assert reader.communicate(timeout=BOUND)[0] == b"alpha\nbeta\n"


class _Cut(BaseHTTPRequestHandler):
    """A server that promises more than it sends."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        facts = {"name": "f", "path": "/f", "entryType": "file", "size": 100, "mode": "0644"}
        body, length = (json.dumps(facts).encode(), None) if "/stat" in self.path else (b"half", "100")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_half_a_file_is_no_file(place: Place, here: Path) -> None:
    (here / "f").write_text("old")
    with HTTPServer(("127.0.0.1", 0), _Cut) as cut:
        thread = Thread(target=cut.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{cut.server_port}"
        told = place.run("fs", "get", "/f", str(here), "--endpoint", url)
        cut.shutdown()
        thread.join()

    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1)
    assert told.stderr.startswith(f"sandbox-agent: the connection to {url} broke during GET /v1/fs/file (")
    assert contents(here) == {"f": (b"old", False)}, "nothing is left beside"


def test_a_file_is_sent_to_a_name_or_into_a_directory(calling: CliCall, there: Path, here: Path) -> None:
    large = os.urandom(3_000_000)
    (here / "f").write_bytes(large)
    (here / "empty").touch()

    named = calling.well("fs", "put", "f", str(there / "new" / "name"), "--json", cwd=here).json
    calling.well("fs", "put", "f", str(there), cwd=here)
    calling.well("fs", "put", "f", str(there / "made") + "/", cwd=here)
    calling.well("fs", "put", "empty", str(there / "empty"), cwd=here)
    silent = calling.well("fs", "put", "-", str(there / "stdin"), input=large, cwd=here)

    assert (named["path"], named["bytesWritten"]) == (str(there / "new" / "name"), len(large))
    assert {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()} == {
        *("new/name", "f", "made/f", "empty", "stdin"),
    }
    assert all((there / name).read_bytes() == large for name in ("new/name", "f", "made/f", "stdin"))
    assert (silent.raw, silent.err) == (b"", "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("get {there}/none", "File Not Found: {there}/none: No such file or directory"),
        ("get {there}/sub", "{there}/sub is a directory; copy its content with get -r"),
        ("get {there}/a.txt nowhere/x", "nowhere is not a directory"),
        ("get -r .", ". has no name; give the name of the local copy after it"),
        ("put none {there}", "none: No such file or directory"),
        ("put . {there}", ". is a directory; copy its content with put -r"),
        ("put - {there}", "File Conflict: {there}"),
        ("put -r file {there}", "file is not a directory"),
        ("put -r none {there}", "none is not a directory"),
        ("put -r . {there}/a.txt", "File Conflict: {there}/a.txt"),
        ("get -r {there}/a.txt x", "File Conflict: {there}/a.txt"),
        ("get -r {there} file", "file is not a directory"),
        ("get -r {there} -", "a directory cannot go to stdout; give a local directory"),
        ("get -r /", "/ has no name; give the name of the local copy after it"),
        ("ls {there}/none", "File Not Found: "),
        ("search x {there}/none", "File Not Found: "),
        ("watch {there}/none", "File Not Found: "),
        ("search [ {there} --regex", "Bad Request: "),
    ],
)
def test_a_refusal_is_one_line(calling: CliCall, there: Path, here: Path, words: str, complaint: str) -> None:
    filled(there)
    (here / "file").write_text("x")

    told = calling.refused("fs", *words.format(there=there).split(), cwd=here)

    assert told.startswith(complaint.format(there=there)), told
    assert [path.name for path in here.iterdir()] == ["file"]


def test_a_file_that_is_too_large_is_refused_while_it_is_sent(calling: CliCall, there: Path, here: Path) -> None:
    with (here / "large").open("wb") as file:
        file.truncate(40 << 20)

    known = calling.refused("fs", "put", "large", str(there), cwd=here)
    piped = calling.refused("fs", "put", "-", str(there / "x"), input=bytes(40 << 20), cwd=here)

    assert known.startswith("File Too Large: ")
    assert piped.startswith("File Too Large: ")
    assert list(there.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("fs put x", "the following arguments are required: REMOTE"),
        ("fs mv x", "the following arguments are required: REMOTE"),
        ("fs lst", "unknown command lst; did you mean ls?"),
        ("fs search x --case loud", "argument --case: invalid choice: 'loud'"),
        ("fs search x --limit many", "argument --limit: expected a number from 0 on, got 'many'"),
    ],
)
def test_a_mistake_is_one_line(place: Place, line: str, complaint: str) -> None:
    ran = place.run(*line.split())

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"sandbox-agent: {complaint}")


# --- directories ------------------------------------------------------------------------------------------------------


def test_a_directory_comes_back_as_it_was_sent(calling: CliCall, there: Path, here: Path) -> None:
    source = filled(here / "source")

    calling.well("fs", "put", "-r", "source", str(there / "copy"), cwd=here)
    calling.well("fs", "get", "-r", str(there / "copy"), cwd=here)

    assert contents(there / "copy") == contents(source)
    assert contents(here / "copy") == contents(source)


def test_directories_are_merged(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)
    (here / "sub").mkdir()
    (here / "own").write_text("mine")
    (here / "a.txt").write_text("old")
    (here / "link").symlink_to("nowhere")

    calling.well("fs", "get", "-r", str(there), ".", cwd=here)

    assert contents(here) == {**contents(there), "own": (b"mine", False)}


def test_nothing_is_changed_when_something_is_in_the_way(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)
    (here / "a.txt").write_text("old")
    (here / "run.sh").mkdir()

    assert calling.refused("fs", "get", "-r", str(there), ".", cwd=here) == (
        "run.sh is a directory, in the way of a file; nothing was changed"
    )
    (here / "run.sh").rmdir()
    (here / "sub").touch()
    assert calling.refused("fs", "get", "-r", str(there), str(here)) == (
        f"{here}/sub is in the way of a directory; nothing was changed"
    )
    assert contents(here) == {"a.txt": (b"old", False), "sub": (b"", False)}


def test_links_that_lead_out_are_left_out_and_named(calling: CliCall, there: Path, here: Path) -> None:
    for root in (there / "d", here / "source"):
        (root / "sub").mkdir(parents=True)
        (root / "absolute").symlink_to("/etc/passwd")
        (root / "sub" / "up").symlink_to("../../x")
        (root / "sub" / "fine").symlink_to("../absolute")
        (root / "file").touch()
    os.mkfifo(here / "source" / "pipe")

    put = calling.well("fs", "put", "-r", "source", str(there / "copy"), cwd=here)
    got = calling.well("fs", "get", "-r", str(there / "d"), cwd=here)

    links = ["absolute (a link to /etc/passwd)", "sub/up (a link to ../../x)"]
    pipe = "pipe (neither a file nor a directory nor a link)"
    left = contents(there / "copy")
    assert sorted(put.err.splitlines()) == [f"sandbox-agent: left out: {each}" for each in sorted([*links, pipe])]
    assert sorted(got.err.splitlines()) == [f"sandbox-agent: left out: {each}" for each in links]
    assert left == contents(here / "d") == {"file": (b"", False), "sub": None, "sub/fine": "../absolute"}


def test_a_file_that_becomes_shorter_meanwhile_is_named(place: Place, here: Path) -> None:
    large = here / "large"
    with large.open("wb") as file:
        file.truncate(256 << 20)  # More than any socket takes in advance.

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(1 << 20)
            os.truncate(large, 10)
            while self.rfile.read(1 << 20):
                pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Slow) as slow:
        thread = Thread(target=slow.handle_request)
        thread.start()
        told = place.run("fs", "put", "-r", str(here), "/x", "--endpoint", f"http://127.0.0.1:{slow.server_port}")
        thread.join()

    complaint = f"sandbox-agent: {large} became shorter while it was sent; nothing was copied\n"
    assert (told.returncode, told.stdout, told.stderr) == (1, "", complaint)


# --- searching and watching -------------------------------------------------------------------------------------------


def test_lines_are_found_by_their_text(calling: CliCall, there: Path) -> None:
    filled(there)
    (there / "sub" / "b.py").write_text("x = 'Alpha'\n\x1b[2J alpha\u2028 end\n")

    found = calling.well("fs", "search", "alpha", str(there)).lines
    exact = calling.well("fs", "search", "alpha", str(there), "--case", "sensitive", "--name", "*.py").lines
    files = calling.well("fs", "search", "", str(there), "--name", "*.py", "--json").objects

    place = f"{there}/sub/b.py"
    assert sorted(found) == [f"{there}/a.txt:1:alpha", f"{place}:1:x = 'Alpha'", f"{place}:2:?[2J alpha? end"]
    assert exact == [f"{place}:2:?[2J alpha? end"]
    assert files == [{"path": place}]


def test_json_lines_are_the_matches_themselves(calling: CliCall, there: Path) -> None:
    (there / "f").write_text("one\ntwo\u2028three\n")

    found = calling.well("fs", "search", "t[w]o", str(there), "--regex", "--json").objects

    assert found == [{"path": f"{there}/f", "line": 2, "column": 1, "text": "two\u2028three"}]


def test_a_search_says_when_there_is_more_and_when_there_is_nothing(calling: CliCall, there: Path) -> None:
    (there / "f").write_text("x\n" * 10)

    some = calling.well("fs", "search", "x", str(there), "--limit", "3")

    assert len(some.lines) == 3
    assert some.err.startswith("sandbox-agent: there may be more: the limit of results was reached")
    assert calling.refused("fs", "search", "y", str(there)) == "nothing found"
    assert calling.refused("fs", "search", "", str(there)).startswith("Bad Request: the query needs text or name")


def test_changes_are_lines_until_interrupted(calling: CliCall, there: Path) -> None:
    process = calling.start("fs", "watch", str(there))
    reading(process.stderr, lambda line: line == f"sandbox-agent: watching {there}; Ctrl-C ends it\n".encode())

    (there / ODD).touch()
    line = reading(process.stdout, lambda line: True)
    (there / ODD).unlink()
    reading(process.stdout, lambda line: line.startswith(b"deleted"))
    ran = interrupted(process, signal.SIGINT)

    assert line.decode() == f"added     {there}/new line ?[31m\n"
    assert (ran.code, ran.err) == (130, "")


def test_a_watch_ends_with_its_directory(calling: CliCall, there: Path) -> None:
    process = calling.start("fs", "watch", str(there), "--json", "--no-recursive")
    reading(process.stderr, lambda line: b"watching" in line)

    (there / "f").touch()
    change = json.loads(reading(process.stdout, lambda line: True))
    (there / "f").unlink()
    there.rmdir()
    _, stderr = process.communicate(timeout=BOUND)

    assert change == {"kind": "added", "path": f"{there}/f"}
    assert (process.returncode, stderr) == (1, b"sandbox-agent: the watch has ended: it was deleted or moved\n")


# --- everything -------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_colours_and_bars(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)
    source, target = str(there / "sub" / "large"), str(here / "f")

    _, listed = calling.on_a_terminal("fs", "ls", str(there))
    _, found = calling.on_a_terminal("fs", "search", "beta", str(there))
    got, get = calling.on_a_terminal("fs", "get", source, target)
    sent, put = calling.on_a_terminal("fs", "put", target, str(there / "back"))
    many, tree = calling.on_a_terminal("fs", "get", "-r", str(there), str(here / "tree"))

    assert "\x1b[1;34msub\x1b[0m" in listed
    assert "\x1b[32mrun.sh\x1b[0m" in listed
    assert f"\x1b[35m{there}/a.txt\x1b[0m:\x1b[32m2\x1b[0m:beta" in found
    assert (got, sent, many) == (0, 0, 0)
    assert "large" not in get
    assert "━" in get
    assert "976.6/976.6 KiB" in re.sub(r"\x1b\[[\d;]*m", "", get)
    assert "━" in put
    assert "tree" in tree


def test_with_no_color_a_terminal_gets_neither(calling: CliCall, there: Path, here: Path) -> None:
    filled(there)

    _, listed = calling.on_a_terminal("fs", "ls", str(there), NO_COLOR="1")
    code, get = calling.on_a_terminal("fs", "get", str(there / "a.txt"), str(here / "f"), NO_COLOR="1")

    assert "\x1b" not in listed
    assert (code, get) == (0, "")


def test_a_reader_that_goes_away_is_no_failure(calling: CliCall, there: Path) -> None:
    (there / "f").write_bytes(bytes(10 << 20))

    process = calling.start("fs", "cat", str(there / "f"))
    assert process.stdout is not None
    process.stdout.read(1)

    assert nobody_reads(process) == (141, b"")


def test_interrupted_a_copy_leaves_nothing(calling: CliCall, there: Path, here: Path) -> None:
    os.mkfifo(here / "pipe")
    process = calling.start("fs", "put", str(here / "pipe"), str(there / "f"))
    with (here / "pipe").open("wb", buffering=0) as pipe:
        pipe.write(b"half")
        ran = interrupted(process, signal.SIGINT)

    assert (ran.code, ran.raw, ran.err) == (130, b"", "")
    assert list(there.iterdir()) == []
