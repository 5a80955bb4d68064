"""Archives for tests, also such as no honest program makes."""

import io
import stat
import struct
import tarfile
import zipfile
from pathlib import Path


def member(
    name: str, content: bytes = b"", *, type: bytes = tarfile.REGTYPE, mode: int = 0o644, to: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    """An entry of a tar archive."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mode, info.linkname = len(content), type, mode, to
    return info, content


def symlink(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, to=to)


def hardlink(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, to=to)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


def packed(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """A plain tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, errors="surrogateescape") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], packing: str = "gz") -> Path:
    """Write a tar archive."""
    with tarfile.open(path, f"w:{packing}") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def header(name: str, *, type: bytes = tarfile.REGTYPE, size: int = 0, to: str = "") -> bytes:
    """The blocks of an entry without its content, whatever it claims."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = type, size, to
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def records(**said: str) -> bytes:
    """What stands in an extended header."""
    written: list[bytes] = []
    for keyword, value in said.items():
        rest = f" {keyword}={value}\n".encode("utf-8", "surrogateescape")
        length = len(rest) + 1
        while length != len(str(length)) + len(rest):
            length = len(str(length)) + len(rest)
        written.append(str(length).encode() + rest)
    return b"".join(written)


def extended(*, type: bytes = tarfile.XHDTYPE, **said: str) -> bytes:
    """An extended header, with its blocks."""
    body = records(**said)
    return header("x", type=type, size=len(body)) + body + bytes(-len(body) % tarfile.BLOCKSIZE)


def zip_member(
    name: str, content: bytes = b"", *, mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED
) -> tuple[zipfile.ZipInfo, bytes]:
    """An entry of a zip archive; mode 0 is that of a program which knows none."""
    info = zipfile.ZipInfo(name)
    info.compress_type = method
    info.external_attr = mode << 16
    info.create_system = 3
    return info, content


def zip_symlink(name: str, to: str) -> tuple[zipfile.ZipInfo, bytes]:
    return zip_member(name, to.encode("utf-8", "surrogateescape"), mode=stat.S_IFLNK | 0o777)


def zipped(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    """Write a zip archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in members:
            archive.writestr(info, content)
    return path


def claiming(path: Path, size: int) -> Path:
    """Let every entry of a zip archive claim to be of this size."""
    data = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        found = -1
        while (found := data.find(signature, found + 1)) >= 0:
            struct.pack_into("<L", data, found + at, size)
    path.write_bytes(data)
    return path
