"""Read the entries and the platform names of the ACP registry's document.

This module knows only one thing of a document's origin: how far to trust the addresses in it.
"""

import platform
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Raw, Struct

from sandboxagent.protocol.json_bounds import read
from sandboxagent.server.agents.manifest import Name, Text

PLATFORMS = tuple(
    f"{system}-{machine}" for system in ("darwin", "linux", "windows") for machine in ("aarch64", "x86_64")
)

_NPM_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

T = TypeVar("T")
# An id and a version become names of folders; a package is an argument of npm and uv. \Z: $ would let a line break by.
_WORD = "[A-Za-z0-9][A-Za-z0-9._~-]*"
_VERSION = "[A-Za-z0-9][A-Za-z0-9._+-]*"
Id = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]*\Z", max_length=64)]
Version = Annotated[str, Meta(pattern=rf"^{_VERSION}\Z", max_length=64)]
Package = Annotated[
    str, Meta(pattern=rf"^(@{_WORD}/)?{_WORD}(\[[A-Za-z0-9._,-]*\])?((@|==){_VERSION})?\Z", max_length=300)
]
Digest = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{64}\Z")]
_PACKAGE = r"(.+?)(?:(?:@|==)([^@=]+))?"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Machine(Struct, frozen=True):
    """The platform names of a machine: the registry's and npm's."""

    registry: str
    npm: str


def this_machine() -> Machine:
    """Return the machine that runs this process."""
    return Machine(current_platform(), npm_platform())


def current_platform() -> str:
    """Return this machine's platform. A platform that the registry does not know has a name of the same form."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"


@cache
def npm_platform() -> str:
    """Return this machine's platform, as packages have it in their names."""
    system, _, machine = current_platform().partition("-")
    musl = "-musl" if system == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return f"{system}-{_NPM_MACHINES.get(machine, machine)}{musl}"


class NotARegistry(ValueError):
    """The document cannot be used at all; the text says why."""


class PackageDistribution(msgspec.Struct, frozen=True):
    """A package of npm (`npx`) or of PyPI (`uvx`), and how to run it."""

    package: Package
    args: tuple[Text, ...] = ()
    env: dict[Name, Text] = {}

    @property
    def name(self) -> str:
        return self._split()[0]

    @property
    def version(self) -> str | None:
        return self._split()[1]

    def _split(self) -> tuple[str, str | None]:
        # A scope's @ stands in front, so that the first character never separates.
        found = re.fullmatch(_PACKAGE, self.package)
        assert found is not None
        return found[1], cast("str | None", found[2])


class BinaryTarget(msgspec.Struct, frozen=True):
    """An archive for one platform; `cmd` is a path inside it."""

    archive: str
    cmd: str
    args: tuple[Text, ...] = ()
    env: dict[Name, Text] = {}
    sha256: Digest | None = None


class Distribution(msgspec.Struct, frozen=True):
    """The sources of an agent's program; `binary` is by platform."""

    npx: PackageDistribution | None = None
    uvx: PackageDistribution | None = None
    binary: dict[str, BinaryTarget] = {}


class _About(msgspec.Struct, frozen=True, kw_only=True):
    id: Id
    name: str
    version: Version
    description: str
    repository: str | None = None
    authors: tuple[str, ...] = ()
    license: str | None = None
    icon: str | None = None


class RegistryEntry(_About, frozen=True, kw_only=True):
    """One agent of the registry."""

    distribution: Distribution


class _WireEntry(_About, frozen=True, kw_only=True):
    distribution: dict[str, object]


class _Document(msgspec.Struct, frozen=True):
    agents: tuple[Raw, ...]


class Content(Struct, frozen=True):
    """The content of a document. `rejected` has a sentence for everything that is left out."""

    entries: Mapping[str, RegistryEntry]
    rejected: tuple[str, ...]


def parse(document: bytes, scheme: str) -> Content:
    """Return the entries of a document that came by this scheme.

    Raises:
        NotARegistry: nothing in the document can be used.
    """
    entries: dict[str, RegistryEntry] = {}
    rejected: list[str] = []
    for number, raw in enumerate(_agents(document), 1):
        reader = _Reader(scheme)
        try:
            entry = reader.entry(raw)
            if entry.id in entries:
                reader.refuse(f"another entry has the id {entry.id!r}")
            entries.setdefault(entry.id, entry)
        except (msgspec.MsgspecError, RecursionError) as error:
            reader.refuse(str(error))
        rejected += [f"entry {number}{reader.label}: {complaint}" for complaint in reader.complaints]
    if rejected and not entries:
        raise NotARegistry(f"none of its entries can be used; {rejected[0]}")
    return Content(entries, tuple(rejected))


def _agents(document: bytes) -> tuple[Raw, ...]:
    if document.lstrip()[:1] == b"<":
        raise NotARegistry("it is HTML and not JSON; a proxy or a page to sign in may stand in between")
    try:
        return msgspec.json.decode(document, type=_Document).agents
    except msgspec.ValidationError as error:
        raise NotARegistry(f"it is JSON of another shape: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotARegistry(f"it is not whole JSON: {error}") from None
    except RecursionError:
        raise NotARegistry("its JSON is nested too deep") from None


class _Reader:
    """The reader of one entry. A part that can be left out without losing the rest becomes a complaint."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self.label = ""
        self.complaints: list[str] = []

    def refuse(self, complaint: str) -> None:
        self.complaints.append(complaint)

    def entry(self, raw: Raw) -> RegistryEntry:
        value = read(bytes(raw), object)
        if isinstance(value, dict) and isinstance(id := cast("dict[str, object]", value).get("id"), str):
            self.label = f" ({id!r:.80})"
        wire = msgspec.convert(value, _WireEntry)
        found = Distribution(
            npx=self._part("npx", wire.distribution.get("npx"), PackageDistribution),
            uvx=self._part("uvx", wire.distribution.get("uvx"), PackageDistribution),
            binary=self._binary(wire.distribution.get("binary")),
        )
        if found == Distribution():
            raise msgspec.ValidationError("; ".join(["there is no way to get it", *self._taken_complaints()]))
        about = {field: getattr(wire, field) for field in _About.__struct_fields__}
        return RegistryEntry(**about, distribution=found)

    def _taken_complaints(self) -> list[str]:
        complaints, self.complaints = self.complaints, []
        return complaints

    def _part(self, key: str, value: object, kind: type[T]) -> T | None:
        if value is None:
            return None
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            self.refuse(f"{key}: {error}")
            return None

    def _binary(self, value: object) -> dict[str, BinaryTarget]:
        targets = self._part("binary", value, dict[str, object]) or {}
        found: dict[str, BinaryTarget] = {}
        for name in PLATFORMS:
            target = self._part(name, targets.get(name), BinaryTarget)
            if target is None:
                continue
            if complaint := _wrong_archive(target.archive, self._scheme) or _wrong_command(target.cmd):
                self.refuse(f"{name}: {complaint}")
            else:
                found[name] = target
        return found


def _wrong_archive(url: str, scheme: str) -> str | None:
    """Return the complaint about an archive's address in a document that came by a scheme; None when there is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the archive's address cannot be understood"
    if parts.scheme == "https" and parts.hostname:
        return None
    if parts.scheme == "http" and parts.hostname:
        trusted = scheme != "https" or parts.hostname in _LOOPBACK
        return None if trusted else "the archive is fetched by http, and the registry by https"
    if parts.scheme == "file":
        return None if scheme == "file" else "the archive is a file of this machine, and the registry is not"
    return "the archive has no https: address"


def _wrong_command(cmd: str) -> str | None:
    """Return the complaint about the path of a program inside an archive; None when there is none."""
    parts = [part for part in cmd.split("/") if part not in ("", ".")]
    inside = parts and ".." not in parts and not cmd.startswith("/") and "\\" not in cmd and "\0" not in cmd
    return None if inside else f"the command {cmd!r:.80} is not a path inside the archive"
