"""Define the requests and results of the file API, the same over HTTP and ACP."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

PAGE, MAX_PAGE = 1000, 10_000


EntryType = Literal["file", "directory", "symlink", "other"]
ChangeKind = Literal["added", "modified", "deleted"]


class FileView(Struct, rename="camel"):
    """A file, a directory or a link. Names that are not UTF-8 are spelled as the contract says."""

    name: str
    path: str
    """Absolute."""
    entry_type: EntryType
    size: int
    """In bytes."""
    modified: str
    """UTC, ISO 8601 with milliseconds."""
    mode: str
    """Permissions, in octal: `0644`."""
    etag: str | UnsetType = UNSET
    """Of a file: what `GET` and `If-Match` know it by."""
    link_target: str | UnsetType = UNSET
    """Of a link: what it says, which need not exist."""


class EntriesPage(Struct, rename="camel"):
    """A directory's entries, by name; without `nextCursor` it is the last page."""

    path: str
    """The directory's, absolute."""
    entries: list[FileView]
    next_cursor: str | UnsetType = UNSET
    """The `cursor` of the next page; absent on the last."""


class Written(Struct, rename="camel"):
    """A file that was written."""

    path: str
    """Absolute."""
    bytes_written: int
    sha256: str
    """Of its content, in hexadecimal."""
    etag: str
    """As `GET` and `If-Match` know it."""


class Done(Struct):
    """What was changed."""

    path: str
    """Absolute."""


class Move(Struct, rename={"source": "from", "target": "to"}):
    """What is to have another name."""

    source: str
    """What is there."""
    target: str
    """Its new name; the directory must be there."""
    overwrite: bool = False
    """Replace a file, or an empty directory."""


class Moved(Struct, rename={"source": "from", "target": "to"}):
    """What has another name."""

    source: str
    """What it was called, absolute."""
    target: str
    """What it is called now, absolute."""


class Content(Struct, rename="camel"):
    """A file, or a part of it, as base64."""

    path: str
    """Absolute."""
    content: str
    """In base64."""
    size: int
    """Of the whole file."""
    etag: str


class Match(Struct):
    """A file, or a line of it: `line` and `column` count from 1, the column in characters."""

    path: str
    """Absolute."""
    line: int | UnsetType = UNSET
    """From 1."""
    column: int | UnsetType = UNSET
    """From 1, in characters."""
    text: str | UnsetType = UNSET
    """The line, or a part of it with the match; up to 1,000 characters."""
    textTruncated: bool | UnsetType = UNSET
    """The line is longer."""


class Found(Struct):
    """What a search found."""

    matches: list[Match]
    """By path."""
    truncated: bool
    """There may be more."""
    reason: str | UnsetType = UNSET
    """Why: `results`, `bytes`, `time` or `lines`."""


class SearchEnding(Struct):
    """The last line of a stream of matches."""

    truncated: bool
    """There may be more."""
    reason: str | UnsetType = UNSET
    """Why, as for `Found`."""


class Uploaded(Struct):
    """What an archive has put where; `truncated` when there is more than `paths` lists."""

    paths: list[str]
    """The first 1024 files and links that were written, absolute."""
    truncated: bool
    """There were more."""


class Change(Struct):
    """What became of a path: `added`, `modified` or `deleted`."""

    kind: ChangeKind
    path: str


class ChangesEvent(Struct):
    """The data of an event `changes`."""

    changes: list[Change]


class PathParams(Struct, rename="camel"):
    """Which file or directory is meant."""

    path: str
    """Absolute, or relative to the session's directory, or else to the server's root directory."""
    session_id: str | None = None
    """The session, by id or alias, whose directory a relative path is relative to."""


class ReadParams(PathParams, rename="camel"):
    """What to read."""

    offset: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    """The first byte."""
    length: Annotated[int, Meta(ge=0)] | None = None
    """How many bytes; all that follow unless given."""


class WriteParams(PathParams, rename="camel", kw_only=True):
    """What to write."""

    content: bytes
    """All of the file, in base64."""


class EntriesParams(PathParams, rename="camel"):
    """Which part of a directory."""

    cursor: str | None = None
    """`nextCursor` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = PAGE
    """Entries of a page."""


class StatParams(PathParams, rename="camel"):
    """What to look at."""

    follow: bool = True
    """`false`: a link itself, and not what it leads to."""


class SearchParams(PathParams, rename="camel"):
    """What to search for: a text in files, or files by name, or both."""

    text: str | None = None
    """A text in files."""
    name: str | None = None
    """A part of a file's name, or a glob: `*.py`, `src/**/test_*`."""
    regex: bool = False
    """`true`: the text is a regular expression, of Rust's kind."""
    case: Literal["smart", "sensitive", "ignore"] = "smart"
    """`smart`: capitals in the text make it matter."""
    hidden: bool = False
    """`true`: also files whose names begin with a dot."""
    ignored: bool = False
    """`true`: also what `.gitignore`, `.ignore` and `.rgignore` leave out."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    """Most results, up to the server's own limit."""


class DeleteParams(PathParams, rename="camel"):
    """What to delete."""

    recursive: bool = False
    """`true`: a directory with all that is in it."""


class MoveParams(Struct, rename={"source": "from", "target": "to", "session_id": "sessionId"}):
    """What is to have another name."""

    source: str
    """What is there."""
    target: str
    """Its new name; the directory must be there."""
    overwrite: bool = False
    """Replace a file, or an empty directory."""
    session_id: str | None = None
    """The session, by id or alias, whose directory relative paths are relative to."""
