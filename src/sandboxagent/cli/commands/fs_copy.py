"""Copy files and directories to a server and from it."""

import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from sandboxagent.cli.call import CalledServer, read_input
from sandboxagent.cli.commands.fs_show import base_name, call_files, permissions_of, target_of, write_content
from sandboxagent.cli.output import (
    complain,
    count_bytes,
    one_line,
    print_json,
)
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.client.errors import ClientError

if TYPE_CHECKING:
    from sandboxagent.client.files import Entry, Files, Uploaded, Written


STREAM = "-"
"""The argument for stdin or stdout."""
BESIDE = ".sandbox-agent-"
"""Prefix of the names of incomplete files and directories, here and in the SDK."""


def get(arguments: ParsedArguments) -> int:
    """Copy from the server. Return the exit code."""
    remote_path, local = arguments.word("remote") or "", arguments.word("local")

    async def work(remote: CalledServer, files: "Files") -> int:
        if arguments.switch("recursive"):
            await _get_directory(files, remote_path, local)
            return 0
        if local == STREAM:
            await write_content(files, remote_path)
            return 0
        entry = await files.stat(remote_path)
        if entry.entry_type == "directory":
            raise ClientError(f"{one_line(remote_path)} is a directory; copy its content with get -r")
        place = _place(remote_path, local)
        if not place.parent.is_dir():
            raise ClientError(f"{place.parent} is not a directory")
        await _get_file(files, remote_path, entry, place)
        return 0

    return call_files(arguments, work)


def put(arguments: ParsedArguments) -> int:
    """Copy to the server. Return the exit code."""
    local, remote_path = arguments.word("local") or "", arguments.word("remote") or ""

    async def work(remote: CalledServer, files: "Files") -> int:
        send = _put_directory if arguments.switch("recursive") else _put_file
        answer = await send(files, local, remote_path)
        if arguments.switch("json"):
            print_json(msgspec.json.encode(answer))
        return 0

    return call_files(arguments, work)


def _place(remote: str, local: str | None) -> Path:
    """Return the path for a copied file. In a directory, it keeps its name."""
    if local is not None and not local.endswith("/") and not Path(local).is_dir():
        return Path(local)
    return Path(local or ".", _name_for(remote))


def _name_for(remote: str) -> str:
    name = base_name(remote)
    if name in ("", ".", ".."):
        raise ClientError(f"{one_line(remote) or 'the path'} has no name; give the name of the local copy after it")
    return name


async def _get_file(files: "Files", remote: str, entry: "Entry", place: Path) -> None:
    with count_bytes(one_line(place.name), entry.size) as count, _as_client_error(place):
        async with aclosing(files.stream(remote)) as pieces:
            if place.exists() and not place.is_file():
                # A device or a pipe: write into it, instead of replacing it.
                with place.open("wb") as file:
                    async for piece in _count_bytes(pieces, count):
                        file.write(piece)
            else:
                mode = 0o777 if permissions_of(entry) & 0o111 else 0o666
                await _replace(Path(os.path.realpath(place)), _count_bytes(pieces, count), mode)


async def _replace(place: Path, pieces: AsyncIterator[bytes], mode: int) -> None:
    """Write a file beside the target and move it there, so that nobody sees a part of it."""
    old = place.stat().st_mode & 0o7777 if place.exists() else None
    folder = Path(tempfile.mkdtemp(prefix=BESIDE, dir=place.parent))
    new = folder / "file"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            async for piece in pieces:
                file.write(piece)
        if old is not None:
            new.chmod(old)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)
        folder.rmdir()


async def _put_file(files: "Files", local: str, remote: str) -> "Written":
    if local == STREAM:
        with count_bytes("stdin", None) as count:
            return await files.write(remote, _count_bytes(read_input(0), count))
    path = Path(local)
    with _as_client_error(path):
        if path.is_dir():
            raise ClientError(f"{local} is a directory; copy its content with put -r")
        with path.open("rb", buffering=0) as file:
            # A pipe has no size.
            size = os.fstat(file.fileno()).st_size if path.is_file() else None
            target = await target_of(files, remote, path.name)
            with count_bytes(one_line(path.name), size) as count:
                return await files.write(target, _count_bytes(_exactly(file.fileno(), size), count))


async def _exactly(descriptor: int, size: int | None) -> AsyncGenerator[bytes]:
    """Yield the bytes of an open file: exactly `size`, if given. Raises ClientError if it has fewer."""
    left = size
    async for piece in read_input(descriptor):
        taken = piece if left is None else piece[:left]
        left = None if left is None else left - len(taken)
        yield taken
        if left == 0:
            return
    if left:
        raise ClientError("the file has become shorter while it was read; nothing was copied")


async def _get_directory(files: "Files", remote: str, local: str | None) -> None:
    from sandboxagent.client.archives import unpack

    if local == STREAM:
        raise ClientError("a directory cannot go to stdout; give a local directory")
    target = Path(local or _name_for(remote))
    if target.exists() and not target.is_dir():
        raise ClientError(f"{target} is not a directory")
    with count_bytes(one_line(target.name), None) as count, _as_client_error(target):
        async with aclosing(files.download_archive(remote)) as archive:
            await unpack(_count_bytes(archive, count), target, _leave_out)


async def _put_directory(files: "Files", local: str, remote: str) -> "Uploaded":
    from sandboxagent.client.archives import pack_in_threads

    root = Path(local)
    if not root.is_dir():
        raise ClientError(f"{local} is not a directory")
    left_out: list[str] = []

    def leave_out(name: str, why: str) -> None:
        left_out.append(name)
        _leave_out(name, why)

    with count_bytes(one_line(root.resolve().name), None) as count, _as_client_error(root):
        async with aclosing(pack_in_threads(root, leave_out)) as archive:
            uploaded = await files.upload_archive(remote, _count_bytes(archive, count))
    return structs.replace(uploaded, left_out=left_out)


def _leave_out(name: str, why: str) -> None:
    complain(f"left out: {one_line(name)} ({one_line(why)})")


async def _count_bytes(pieces: AsyncIterator[bytes], count: Callable[[int], None]) -> AsyncGenerator[bytes]:
    async for piece in pieces:
        yield piece
        count(len(piece))


@contextmanager
def _as_client_error(path: Path) -> Generator[None]:
    """Raise ClientError for an OSError, so that failures of this machine are reported like those of the server."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno is None:  # Raised by our code, with a whole sentence.
            raise ClientError(str(error)) from error
        name = os.fsdecode(error.filename or path)
        raise ClientError(f"{path if BESIDE in name else name}: {error.strerror}") from error
