"""Define the requests and results of the file API, which are the same over HTTP and ACP."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

PAGE, MAX_PAGE = 1000, 10_000


EntryType = Literal["file", "directory", "symlink", "other"]
ChangeKind = Literal["added", "modified", "deleted"]


class FileView(Struct, rename="camel"):
    """A file, a directory or a link.

    Bytes of a name that are not UTF-8 are shown as the characters U+EF80 to U+EFFF.
    """

    name: str
    """The name without its directory."""
    path: str
    """The absolute path."""
    entry_type: EntryType
    """The kind of the entry; `other` is a device, a pipe or a socket."""
    size: int
    """The size in bytes."""
    modified: str
    """The time of the last change of the content: UTC, ISO 8601 with milliseconds."""
    mode: str
    """The permission bits in octal, such as `0644`."""
    etag: str | UnsetType = UNSET
    """For a file: the ETag that `GET` sends and `If-Match` compares."""
    link_target: str | UnsetType = UNSET
    """For a link: the path that the link contains. There may be no file at that path."""


class EntriesPage(Struct, rename="camel"):
    """A page of a directory's entries, sorted by name."""

    path: str
    """The absolute path of the directory."""
    entries: list[FileView]
    """The entries of the page."""
    next_cursor: str | UnsetType = UNSET
    """The `cursor` of the next page. Absent on the last page."""


class Written(Struct, rename="camel"):
    """The result of writing a file."""

    path: str
    """The absolute path of the file."""
    bytes_written: int
    """The number of bytes written, which is the size of the file."""
    sha256: str
    """The SHA-256 of the content, in hexadecimal."""
    etag: str
    """The new ETag of the file, as `GET` sends it and `If-Match` compares it."""


class Done(Struct):
    """The result of making a directory or deleting an entry."""

    path: str
    """The absolute path that was made or deleted."""


class Move(Struct, rename={"source": "from", "target": "to"}):
    """A file, a link or a directory to move, and its new path."""

    source: str
    """The present path."""
    target: str
    """The new path. Its parent directory must exist."""
    overwrite: bool = False
    """Whether the move may replace a file at the new path. A directory may replace only an empty directory."""


class Moved(Struct, rename={"source": "from", "target": "to"}):
    """The result of a move."""

    source: str
    """The old path, absolute."""
    target: str
    """The new path, absolute."""


class Content(Struct, rename="camel"):
    """The content of a file, or of a part of it."""

    path: str
    """The absolute path of the file."""
    content: str
    """The content in base64."""
    size: int
    """The size of the whole file in bytes."""
    etag: str
    """The ETag of the file, as `GET` sends it and `If-Match` compares it."""


class Match(Struct):
    """A match of a search: a line of a file, or a file if the search has no `text`."""

    path: str
    """The absolute path of the file."""
    line: int | UnsetType = UNSET
    """The number of the line, from 1."""
    column: int | UnsetType = UNSET
    """The column of the match, from 1, in characters."""
    text: str | UnsetType = UNSET
    """The line, or the part of at most 1,000 characters around the match."""
    textTruncated: bool | UnsetType = UNSET
    """Whether the line is longer than `text`."""


class Found(Struct):
    """The result of a search."""

    matches: list[Match]
    """The matches, sorted by path."""
    truncated: bool
    """Whether there may be more matches."""
    reason: str | UnsetType = UNSET
    """The reason why there may be more matches: a limit on `results`, `bytes` or `time`, or skipped long `lines`."""


class SearchEnding(Struct):
    """The last line of a stream of matches."""

    truncated: bool
    """Whether there may be more matches."""
    reason: str | UnsetType = UNSET
    """The reason why there may be more matches: a limit on `results`, `bytes` or `time`, or skipped long `lines`."""


class Uploaded(Struct):
    """The result of unpacking an archive."""

    paths: list[str]
    """The absolute paths of the first 1024 files and links that were written."""
    truncated: bool
    """Whether more files and links were written than `paths` lists."""


class Change(Struct):
    """A change of one path."""

    kind: ChangeKind
    """The kind of the change. A rename is a `deleted` and an `added`."""
    path: str
    """The absolute path."""


class ChangesEvent(Struct):
    """The data of an event `changes`."""

    changes: list[Change]
    """The changes since the previous event, one for each path."""


class PathParams(Struct, rename="camel"):
    """The file or directory that a request is about."""

    path: str
    """The path: absolute, or relative to the session's directory, or else to the server's root directory."""
    session_id: str | None = None
    """The id or alias of the session to whose directory a relative path is relative."""


class ReadParams(PathParams, rename="camel"):
    """A part of a file to read."""

    offset: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    """The position of the first byte to read."""
    length: Annotated[int, Meta(ge=0)] | None = None
    """The number of bytes to read. Without it, all bytes from `offset` on."""


class WriteParams(PathParams, rename="camel", kw_only=True):
    """A file to write."""

    content: bytes
    """The whole content of the file, in base64."""


class UploadParams(PathParams, rename="camel", kw_only=True):
    """An archive to unpack into a directory."""

    archive: bytes
    """The tar archive in base64, plain or packed with gzip or zstd."""


class EntriesParams(PathParams, rename="camel"):
    """A page of a directory to list."""

    cursor: str | None = None
    """The `nextCursor` of the previous page. Without it, the first page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = PAGE
    """Maximum number of entries of the page."""


class StatParams(PathParams, rename="camel"):
    """A file, a directory or a link to describe."""

    follow: bool = True
    """Whether to describe the target of a link. `false` describes the link itself."""


class SearchParams(PathParams, rename="camel"):
    """A search for a text in files, for files by name, or for a text in files with a name."""

    text: str | None = None
    """The text to find in files, within one line."""
    name: str | None = None
    """A part of a file's name, or a glob: `*.py` for the name alone, `src/**/test_*` for the path below `path`."""
    regex: bool = False
    """Whether `text` is a regular expression, in the syntax of Rust's crate `regex`."""
    case: Literal["smart", "sensitive", "ignore"] = "smart"
    """Whether upper and lower case differ: `smart` (only if `text` has a capital letter), `sensitive` (always) or
    `ignore` (never)."""
    hidden: bool = False
    """Whether to search names that begin with a dot as well."""
    ignored: bool = False
    """Whether to search files that `.gitignore`, `.ignore` and `.rgignore` exclude as well."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of results, at most the server's own limit."""


class DeleteParams(PathParams, rename="camel"):
    """A file, a link or a directory to delete."""

    recursive: bool = False
    """Whether to delete a directory with everything in it. `false` deletes only an empty directory."""


class MoveParams(Struct, rename={"source": "from", "target": "to", "session_id": "sessionId"}):
    """A file, a link or a directory to move, and its new path."""

    source: str
    """The present path."""
    target: str
    """The new path. Its parent directory must exist."""
    overwrite: bool = False
    """Whether the move may replace a file at the new path. A directory may replace only an empty directory."""
    session_id: str | None = None
    """The id or alias of the session to whose directory relative paths are relative."""
