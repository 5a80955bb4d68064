"""Copying files and directories between this machine and a server, with a bar for who looks."""

import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox_agent.cli.arguments import Arguments, complain
from sandbox_agent.cli.output import is_drawn, one_line, print_json
from sandbox_agent.cli.remote import Refused
from sandbox_agent.cli.remote_files import Entry, Files, base_name, working
from sandbox_agent.cli.unpacking import BESIDE, unpack
from sandbox_agent.client.trees import archived

STREAM = "-"
"""What stands for stdin and stdout."""

PIECE = 1 << 18
_TAR = "application/x-tar"
_BYTES = "application/octet-stream"
Count = Callable[[int], None]


def get(arguments: Arguments) -> int:
    """Copy from the server; gives the exit code."""
    remote, local = arguments.word("remote") or "", arguments.word("local")

    def work(files: Files) -> int:
        if arguments.switch("recursive"):
            return _get_directory(files, remote, local)
        if local == STREAM:
            with files.content(remote) as response:
                for piece in response.iter_bytes():
                    sys.stdout.buffer.write(piece)
            return 0
        entry = files.stat(remote)
        if entry.entry_type == "directory":
            raise Refused(f"{one_line(remote)} is a directory; get -r copies what is in it")
        place = _place(remote, local)
        if not place.parent.is_dir():
            raise Refused(f"{place.parent} is no directory")
        _get_file(files, remote, entry, place)
        return 0

    return working(arguments, work)


def put(arguments: Arguments) -> int:
    """Copy to the server; gives the exit code."""
    local, remote = arguments.word("local") or "", arguments.word("remote") or ""

    def work(files: Files) -> int:
        answer = (
            _put_directory(files, local, remote) if arguments.switch("recursive") else _put_file(files, local, remote)
        )
        if arguments.switch("json"):
            print_json(answer)
        return 0

    return working(arguments, work)


# --- files ------------------------------------------------------------------------------------------------------------


def _place(remote: str, local: str | None) -> Path:
    """Where a file goes: a directory takes it under its name."""
    if local is not None and not local.endswith("/") and not Path(local).is_dir():
        return Path(local)
    return Path(local or ".", _name_for(remote))


def _name_for(remote: str) -> str:
    name = base_name(remote)
    if name in ("", ".", ".."):
        raise Refused(f"say what {one_line(remote) or 'it'} is to be called here, after it")
    return name


def _get_file(files: Files, remote: str, entry: Entry, place: Path) -> None:
    with files.content(remote) as response, counted(one_line(place.name), entry.size) as count:
        pieces = _counting(response.iter_bytes(PIECE), count)
        with _here(place):
            if place.exists() and not place.is_file():
                # A device, or a pipe: there is no place of it to take.
                with place.open("wb") as file:
                    file.writelines(pieces)
            else:
                _replace(Path(os.path.realpath(place)), pieces, 0o777 if entry.runs else 0o666)


def _replace(place: Path, pieces: Iterable[bytes], mode: int) -> None:
    """Write a file beside, and then to its place: it is seen whole or not at all."""
    old = place.stat().st_mode & 0o7777 if place.exists() else None
    folder = Path(tempfile.mkdtemp(prefix=BESIDE, dir=place.parent))
    new = folder / "file"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.writelines(pieces)
        if old is not None:
            new.chmod(old)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)
        folder.rmdir()


def _put_file(files: Files, local: str, remote: str) -> bytes:
    if local == STREAM:
        return _sent(files, remote, _read(0), None, "stdin")
    path = Path(local)
    with _here(path):
        if path.is_dir():
            raise Refused(f"{local} is a directory; put -r copies what is in it")
        with path.open("rb", buffering=0) as file:
            # Of what is no file nobody knows how long it is.
            size = os.fstat(file.fileno()).st_size if path.is_file() else None
            return _sent(files, files.target(remote, path.name), _read(file.fileno(), size), size, path.name)


def _sent(files: Files, remote: str, pieces: Iterator[bytes], size: int | None, label: str) -> bytes:
    headers = {"Content-Type": _BYTES} | ({} if size is None else {"Content-Length": str(size)})
    query = {"path": remote, **files.where}
    with counted(one_line(label), size) as count:
        return files.remote.request("PUT", "/v1/fs/file", query, _counting(pieces, count), headers).content


def _read(descriptor: int, size: int | None = None) -> Iterator[bytes]:
    """What there is, or as much as was promised."""
    left = size
    while left != 0 and (piece := os.read(descriptor, PIECE if left is None else min(PIECE, left))):
        left = None if left is None else left - len(piece)
        yield piece
    if left:
        raise Refused("the file has become shorter while it was read; nothing was copied")


# --- directories ------------------------------------------------------------------------------------------------------


def _get_directory(files: Files, remote: str, local: str | None) -> int:
    if local == STREAM:
        raise Refused("a directory cannot go to stdout; name a directory for it")
    target = Path(local or _name_for(remote))
    if target.exists() and not target.is_dir():
        raise Refused(f"{target} is no directory")
    query = {"path": remote, **files.where}
    with (
        files.remote.stream("GET", "/v1/fs/archive", query) as response,
        counted(one_line(target.name), None) as count,
        _here(target),
    ):
        unpack(_counting(response.iter_bytes(PIECE), count), target, _leave_out)
    return 0


def _put_directory(files: Files, local: str, remote: str) -> bytes:
    root = Path(local)
    if not root.is_dir():
        raise Refused(f"{local} is no directory")
    query = {"path": remote, **files.where}
    with counted(one_line(root.resolve().name), None) as count, _here(root):
        pieces = _counting(archived(root, _leave_out), count)
        return files.remote.request("POST", "/v1/fs/upload-batch", query, pieces, {"Content-Type": _TAR}).content


def _leave_out(name: str, why: str) -> None:
    complain(f"left out: {one_line(name)} ({one_line(why)})")


# --- bars -------------------------------------------------------------------------------------------------------------


@contextmanager
def counted(label: str, total: int | None) -> Generator[Count]:
    """What takes note of bytes while the block lasts, and shows them on a terminal."""
    if not is_drawn(sys.stderr):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(label, style="bold", markup=False), BarColumn(24), DownloadColumn(binary_units=True))
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        task = bars.add_task("", total=total)
        yield lambda size: bars.advance(task, size)


def _counting(pieces: Iterable[bytes], count: Count) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        count(len(piece))


@contextmanager
def _here(path: Path) -> Generator[None]:
    """What this machine refuses is told like what the server does."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno is None:  # Not of the system, and a whole sentence.
            raise Refused(str(error)) from error
        name = os.fsdecode(error.filename or path)
        raise Refused(f"{path if BESIDE in name else name}: {error.strerror}") from error
