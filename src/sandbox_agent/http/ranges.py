"""Which bytes of a file a client wants, and whether it has them already. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime

from sandbox_agent.errors import RangeNotSatisfiable
from sandbox_agent.host.transfer.entries import has_version, parse_tags

_RANGE = re.compile(r"bytes=\s*(\d*)-(\d*)\s*", re.ASCII | re.IGNORECASE)
MAX_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Version:
    """A file as it is now."""

    etag: str
    modified: float
    size: int

    @property
    def last_modified(self) -> str:
        return formatdate(int(self.modified), usegmt=True)


def is_known(headers: Mapping[str, str], version: Version) -> bool:
    """Whether the client has it already: a 304. Raises BadRequest for tags that are none."""
    given = parse_tags(headers.get("if-none-match"))
    if given is not None:
        return has_version(version.etag, given)
    since = _date(headers.get("if-modified-since"))
    return since is not None and int(version.modified) <= since


def part(headers: Mapping[str, str], path: str, version: Version) -> tuple[int, int] | None:
    """The first byte and the length of what is wanted; None for the whole file.

    What is no range that we understand, several ranges too, is the whole file, as RFC 9110 allows.
    Raises RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))
    if match is None or match[0] == "bytes=-" or not _is_current(headers.get("if-range"), version):
        return None
    first, last = match[1][:MAX_DIGITS], match[2][:MAX_DIGITS]
    size = version.size
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        if last and int(last) < start:
            return None
        length = min(int(last) + 1, size) - start if last else size - start
    if length <= 0:
        raise RangeNotSatisfiable(path, f"has {size} bytes, and none of those asked for", size=size)
    return start, length


def _is_current(if_range: str | None, version: Version) -> bool:
    if if_range is None:
        return True
    if if_range.startswith(('"', "W/")):
        return if_range == version.etag
    return if_range == version.last_modified


def _date(value: str | None) -> float | None:
    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
