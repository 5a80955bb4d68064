"""What a client expects of a file before it is read or replaced: `If-Match` and its kin. Pure."""

import os
import re
from dataclasses import dataclass

from sandbox_agent.errors import BadRequest, FileChanged

ANY = "*"
_TAG = re.compile(r'\s*((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")\s*(?:,|$)')


def etag(facts: os.stat_result) -> str:
    """Changes whenever the file does: another content has another time, and a replacement another inode."""
    return f'"{facts.st_mtime_ns:x}-{facts.st_size:x}-{facts.st_ino:x}"'


def tags(header: str | None) -> frozenset[str] | None:
    """The entity tags of a header; None when it is absent. Raises BadRequest."""
    if header is None:
        return None
    if header.strip() == ANY:
        return frozenset((ANY,))
    found, position = set[str](), 0
    while position < len(header):
        match = _TAG.match(header, position)
        if match is None:
            raise BadRequest('entity tags are written as "tag", separated by commas, or *')
        found.add(match[1])
        position = match.end()
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Condition:
    """Of a change. None means that the client expects nothing."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    @property
    def new(self) -> bool:
        """Nothing may be there."""
        return self.none_match is not None and ANY in self.none_match

    def check(self, path: str, facts: os.stat_result | None) -> None:
        """Raises FileChanged when the file, or that there is none, is not what the client expects."""
        current = None if facts is None else etag(facts)
        if self.match is not None and (current is None or not self.match & {ANY, current}):
            raise self._changed(path, current, "is not the file that If-Match names")
        if self.none_match is not None and current is not None and self.none_match & {ANY, current}:
            raise self._changed(path, current, "is there, against If-None-Match")

    @staticmethod
    def _changed(path: str, current: str | None, meaning: str) -> FileChanged:
        return FileChanged(path, meaning) if current is None else FileChanged(path, meaning, etag=current)


def same(tag: str, given: frozenset[str]) -> bool:
    """Whether a reader has this version, by the weak comparison that reading allows."""
    return ANY in given or tag in {each.removeprefix("W/") for each in given}
