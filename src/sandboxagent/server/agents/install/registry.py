"""Fetch the ACP registry when it is old, and keep it on disk for when it cannot be reached.

This module knows nothing of how an agent is installed.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from sandboxagent.core.tasks import Shared
from sandboxagent.protocol.errors import RegistryUnavailable

if TYPE_CHECKING:
    from sandboxagent.server.agents.install.download import Download
    from sandboxagent.server.agents.install.registry_entries import Content, RegistryEntry

logger = logging.getLogger(__name__)

Origin = Literal["live", "cached", "file"]

RETRY_INTERVAL = 30.0
"""Seconds until a registry that failed is tried again while there is a copy: a try may cost the whole timeout."""


class Snapshot(Struct, frozen=True):
    """The registry as it was at one time."""

    entries: "Mapping[str, RegistryEntry]"
    origin: Origin
    fetched_at: float
    """Time when this was last known to be the registry's newest state, by the wall clock."""
    problem: str | None
    """Reason why the snapshot is not live, when a fetch was tried."""
    rejected: tuple[str, ...] = ()
    """The parts that were left out, a sentence each."""


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata file beside the document."""

    location: str
    """The registry's location, for people to read."""
    source: str
    """Digest of the location, because the location may hold a password."""
    sha256: str
    """Digest of the document: the two files are written one after the other, and by several processes."""
    fetched_at: float
    etag: str | None = None
    last_modified: str | None = None


class _Copy(Struct, frozen=True):
    document: bytes
    content: "Content"
    facts: _Facts
    origin: Origin

    def snapshot(self, problem: str | None = None) -> Snapshot:
        origin = self.origin if problem is None else "cached"
        return Snapshot(self.content.entries, origin, self.facts.fetched_at, problem, self.content.rejected)


class Registry:
    """The registry at one location: an http(s) or file: URL, or a path. `cache` is a folder for its copy."""

    def __init__(
        self,
        location: str,
        cache: Path,
        *,
        timeout: float = 10.0,
        max_bytes: int = 8 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        is_url = "://" in location or location.lower().startswith("file:")
        self._url = location if is_url else Path(location).absolute().as_uri()
        self._scheme = self._url.partition(":")[0].lower()
        self._location = location
        self._is_url = is_url
        self._document = cache / "registry.json"
        self._metadata = cache / "registry.metadata.json"
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._clock = clock
        self._copy: _Copy | None = None
        self._failure: tuple[float, str] | None = None
        self._fetching = Shared[str, Snapshot]()

    async def snapshot(self, max_age: float = 300.0) -> Snapshot:
        """Return the registry, at most `max_age` seconds old.

        When there is no newer one, return an older copy, with its problem. A file is read each time. Callers that wait
        at the same time share one fetch.

        Raises:
            RegistryUnavailable: the fetch failed, and there is no copy.
        """
        recent = self._recent(max_age)
        if recent is not None:
            return recent
        return await self._fetching.get(self._location, self._refresh, "fetch the registry")

    def cached(self) -> Snapshot | None:
        """Return the kept copy, without network."""
        copy = self._known()
        return None if copy is None else replace(copy.snapshot(), origin="cached")

    def _known(self) -> _Copy | None:
        if self._copy is None:
            self._copy = self._load()
        return self._copy

    def _recent(self, max_age: float) -> Snapshot | None:
        """Return the copy, when it is new enough, or when there was no newer one a moment ago."""
        copy = self._known()
        if copy is None or self._scheme == "file":
            return None
        now = self._clock()
        # An age below 0 says nothing: the clock was set back.
        if 0 <= now - copy.facts.fetched_at < max_age:
            return copy.snapshot()
        if self._failure is not None and 0 <= now - self._failure[0] < min(max_age, RETRY_INTERVAL):
            return copy.snapshot(self._failure[1])
        return None

    @property
    def _shown(self) -> str:
        """The location, for people to read."""
        from sandboxagent.server.agents.install.download import redact_url

        return redact_url(self._location) if self._is_url else self._location

    async def _refresh(self) -> Snapshot:
        from sandboxagent.server.agents.install.download import NotFetched
        from sandboxagent.server.agents.install.registry_entries import NotARegistry

        try:
            copy = await self._fetch(self._copy)
        except (NotFetched, NotARegistry) as failed:
            return self._fall_back(str(failed))
        self._copy, self._failure = copy, None
        await asyncio.to_thread(self._keep, copy)
        return copy.snapshot()

    def _fall_back(self, reason: str) -> Snapshot:
        logger.warning("registry not fetched location=%s reason=%s", self._shown, reason)
        if self._copy is None:
            raise RegistryUnavailable(
                f"the ACP registry at {self._shown} cannot be used, and there is no copy of it: {reason}; check the "
                "network, or let SANDBOX_AGENT_ACP_REGISTRY_URL name another address or a file",
                location=self._shown,
                reason=reason,
            )
        problem = f"the registry at {self._shown} cannot be used: {reason}"
        self._failure = self._clock(), problem
        return self._copy.snapshot(problem)

    # --- fetching -----------------------------------------------------------------------------------------------------

    async def _fetch(self, known: _Copy | None) -> _Copy:
        from sandboxagent.server.agents.install.download import NotFetched, download
        from sandboxagent.server.agents.install.registry_entries import parse

        origin = "file" if self._scheme == "file" else "live"
        conditions = {} if known is None else _conditions(known.facts)
        accept = (200, 304) if conditions else (200,)
        try:
            async with (
                asyncio.timeout(self._timeout),
                download(self._url, silence=self._timeout, headers=conditions, accept=accept) as found,
            ):
                if found.status == 304 and known is not None:
                    return replace(known, facts=structs.replace(known.facts, fetched_at=self._clock()), origin=origin)
                document = await self._whole(found)
                headers = found.headers
        except TimeoutError:
            raise NotFetched(f"it did not come whole within {self._timeout:g} s") from None
        content = await asyncio.to_thread(parse, document, self._scheme)
        facts = _Facts(
            location=self._shown,
            source=_digest(self._url.encode("utf-8", "surrogateescape")),
            sha256=_digest(document),
            fetched_at=self._clock(),
            etag=headers.get("ETag"),
            last_modified=headers.get("Last-Modified"),
        )
        return _Copy(document, content, facts, origin)

    async def _whole(self, found: "Download") -> bytes:
        from sandboxagent.server.agents.install.download import NotFetched

        coding = found.headers.get("Content-Encoding", "identity")
        if coding.lower() != "identity":
            raise NotFetched(f"it is encoded with {coding!r:.40}, which was not requested")
        document = bytearray()
        async for piece in found.pieces:
            document += piece
            if len(document) > self._max_bytes:
                raise NotFetched(f"it is larger than {self._max_bytes} bytes")
        return bytes(document)

    # --- the copy -----------------------------------------------------------------------------------------------------

    def _load(self) -> _Copy | None:
        """Return the copy on disk; None when there is none, when it is broken, or when it is of another location."""
        if not self._metadata.exists():
            return None
        from sandboxagent.server.agents.install.registry_entries import NotARegistry, parse

        try:
            facts = msgspec.json.decode(_read(self._metadata, self._max_bytes), type=_Facts)
            document = _read(self._document, self._max_bytes)
            same = facts.source == _digest(self._url.encode("utf-8", "surrogateescape"))
            if not same or facts.sha256 != _digest(document):
                return None
            return _Copy(document, parse(document, self._scheme), facts, "cached")
        except (OSError, msgspec.MsgspecError, NotARegistry):
            return None

    def _keep(self, copy: _Copy) -> None:
        try:
            self._document.parent.mkdir(parents=True, exist_ok=True)
            _write(self._document, copy.document)
            _write(self._metadata, msgspec.json.encode(copy.facts))
        except OSError as error:
            logger.warning("registry copy not kept path=%s reason=%s", self._document, error.strerror)


def _conditions(facts: _Facts) -> dict[str, str]:
    """Return headers that ask for the document only if it has changed."""
    asked = {"If-None-Match": facts.etag, "If-Modified-Since": facts.last_modified}
    return {name: value for name, value in asked.items() if value and value.isascii() and value.isprintable()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} is larger than {most} bytes")
    return data


def _write(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
