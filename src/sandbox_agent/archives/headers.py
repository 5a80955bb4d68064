"""The headers of a tar archive, one entry after the other, in bounded memory.

tarfile reads a block, and nothing else: it keeps every record of every extended header, copies them for each entry,
and calls itself for each header that stands before one. Here only names and sizes count, and the rest is passed over.
"""

import tarfile
from collections.abc import Iterator
from typing import NoReturn, Protocol

from sandbox_agent.archives.packing import Reader
from sandbox_agent.archives.tree import Damaged

EXTENDED = 1 << 16
"""Bytes that the extended headers of one entry may have, together."""
GLOBAL = 1 << 20
"""Bytes that headers for all entries may have, together."""

BLOCK = tarfile.BLOCKSIZE
NAMES = ("utf-8", "surrogateescape")
"""How names are written: those that are no text, too."""

_RECORDS = {tarfile.XHDTYPE: "pax", tarfile.SOLARIS_XHDTYPE: "pax"}
_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_COUNTED = (b"path", b"linkpath", b"size")
_SPARSE = b"GNU.sparse."
_DIGITS = 8
"""Digits that the length of a record has at most."""


class Refuse(Protocol):
    """Raises that an entry breaks a rule; says which `limit` it was."""

    def __call__(self, name: str, rule: str, **facts: object) -> NoReturn: ...


class Headers:
    """Iterates over entries. Take the content of a file from the stream before you ask for the next one.

    `stream` gives as many bytes as it is asked for, fewer only at its end. Raises Damaged, and what `refuse` raises.
    """

    def __init__(self, stream: Reader, refuse: Refuse) -> None:
        self.entry = ""
        """The name of the last entry."""
        self._stream = stream
        self._refuse = refuse
        self._global = 0

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        block = self._stream.read(BLOCK)
        if not block:
            raise Damaged("empty file")
        while block and block.strip(b"\0"):
            member = self._member(block)
            self.entry = member.name
            yield member
            if has_content(member) and member.size % BLOCK:
                self._whole(BLOCK - member.size % BLOCK)
            block = self._stream.read(BLOCK)
        if len(block) not in (0, BLOCK):
            raise Damaged("it ends in the middle")

    def _member(self, block: bytes) -> tarfile.TarInfo:
        """The entry that begins with this block, with all that is said of it before."""
        found: dict[bytes, bytes] = {}
        kinds: set[str] = set()
        size = 0
        while (header := _header(block)).type in {*_RECORDS, *_LONG, tarfile.XGLTYPE}:
            padded = -(-header.size // BLOCK) * BLOCK
            size += BLOCK + padded
            if size > EXTENDED:
                rule = "is followed by" if self.entry else "begins with"
                self._refuse(self.entry, f"{rule} headers of more than {EXTENDED} bytes", limit=EXTENDED)
            body = self._whole(padded)[: header.size]
            if header.type == tarfile.XGLTYPE:
                self._pass_over(body)
            else:
                kind = _RECORDS.get(header.type) or str(header.type)
                if kind in kinds:
                    raise Damaged("an entry has two extended headers of one kind")
                kinds.add(kind)
                found |= _said(header.type, body)
            block = self._whole(BLOCK)
        _apply(found, header)
        if _SPARSE in found or header.type == tarfile.GNUTYPE_SPARSE:
            # Its map of holes is the archive's word for where bytes go.
            self._refuse(header.name, "is a sparse file")
        return header

    def _pass_over(self, body: bytes) -> None:
        """A header for all entries; those that give all of them one name or size make no sense."""
        self._global += BLOCK + len(body)
        if self._global > GLOBAL:
            self._refuse("", f"has headers for all entries of more than {GLOBAL} bytes", limit=GLOBAL)
        if any(keyword in _COUNTED or keyword.startswith(_SPARSE) for keyword, _ in _records(body)):
            raise Damaged("a header gives all entries one name or one size")

    def _whole(self, size: int) -> bytes:
        body = self._stream.read(size) if size else b""
        if len(body) < size:
            raise Damaged("unexpected end of data")
        return body


def has_content(member: tarfile.TarInfo) -> bool:
    """Whether content follows the header; unknown kinds count as files."""
    return member.isreg() or member.type not in tarfile.SUPPORTED_TYPES


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, *NAMES)
    except (tarfile.HeaderError, ValueError, ArithmeticError) as error:
        raise Damaged(str(error)) from error
    if header.size < 0:
        raise Damaged("an entry has a size below zero")
    return header


def _records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What an extended header says: records of their length, a keyword and a value."""
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + _DIGITS)
        length = body[at:space] if space > at else b""
        end = at + int(length) if length.isdigit() else 0
        keyword, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not space < end <= len(body) or body[end - 1 : end] != b"\n" or not keyword or not equals:
            raise Damaged("a record of an extended header makes no sense")
        yield keyword, value
        at = end


def _said(type: bytes, body: bytes) -> dict[bytes, bytes]:
    """What counts in an extended header."""
    if type in _LONG:
        return {_LONG[type]: body.partition(b"\0")[0]}
    said: dict[bytes, bytes] = {}
    for keyword, value in _records(body):
        if keyword in _COUNTED and value:
            said[keyword] = value
        elif keyword.startswith(_SPARSE):
            said[_SPARSE] = value
    return said


def _apply(found: dict[bytes, bytes], header: tarfile.TarInfo) -> None:
    if b"path" in found:
        header.name = found[b"path"].decode(*NAMES)
    if b"linkpath" in found:
        header.linkname = found[b"linkpath"].decode(*NAMES)
    size = found.get(b"size")
    if size is not None:
        if not size.isdigit() or len(size) > len(str(1 << 64)):
            raise Damaged("an entry has a size that is no number")
        header.size = int(size)
