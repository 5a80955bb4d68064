"""Fetch bytes from an https, http or file address, and follow redirects within limits.

This module knows neither registries nor archives. The caller bounds the size.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from msgspec import Struct

from sandboxagent import __version__

if TYPE_CHECKING:
    import httpx

MAX_PIECE_BYTES = 1 << 18
"""Maximum bytes that are read at once."""

MAX_REDIRECTS = 10
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class NotFetched(Exception):
    """The fetch failed, for the reason in the text. `status` is set when a server answered."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class Download(Struct, frozen=True):
    """The content of an address.

    An error while the pieces are read becomes NotFetched at the end of the caller's block.
    """

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    total: int | None
    """Total bytes of all pieces, if announced."""


@asynccontextmanager
async def download(
    url: str, *, silence: float, headers: Mapping[str, str] | None = None, accept: Collection[int] = (200,)
) -> AsyncGenerator[Download]:
    """Fetch the content of an address. `silence` bounds the seconds without any bytes, and not the whole time.

    Raises:
        NotFetched: also when the connection is cut while the pieces are read.
    """
    path = local_path(url)
    source = _from_http(url, headers or {}, silence) if path is None else _from_file(path)
    async with source as found:
        if found.status not in accept:
            raise NotFetched(f"it answered {_status(found.status)}", found.status)
        yield found


def local_path(url: str) -> Path | None:
    """Return the file that a file: URL means; None for http and https. Raises NotFetched for any other address."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise NotFetched("the address cannot be understood") from None
    if parts.scheme in ("http", "https"):
        return None
    if parts.scheme != "file":
        raise NotFetched("only https:, http: and file: addresses are understood")
    if parts.netloc not in ("", "localhost"):
        raise NotFetched("a file: address of another machine cannot be read")
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))


def redact_url(url: str) -> str:
    """Return an address for people to read: without credentials, and without its query, which may have tokens."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be understood"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")) + ("?…" if parts.query else "")


def refuse_redirect(origin: str, target: str) -> str | None:
    """Return why a redirect is not followed; None when it is. The arguments are schemes."""
    if target not in ("http", "https"):
        return f"it redirects to an address of the kind {target}:, which is not followed"
    if origin == "https" and target == "http":
        return "it redirects from https down to http, which is not followed"
    return None


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


# --- http -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _from_http(url: str, headers: Mapping[str, str], silence: float) -> AsyncGenerator[Download]:
    # In a thread, because importing httpx and reading the certificates takes a while, and others are being served.
    client = await asyncio.to_thread(_client, silence)
    async with client:
        with _translate_errors(silence):
            response = await _follow(client, url, headers)
            try:
                length = response.headers.get("Content-Length", "")
                total = int(length) if length.isascii() and length.isdigit() else None
                yield Download(response.status_code, response.headers, response.aiter_raw(MAX_PIECE_BYTES), total)
            finally:
                await response.aclose()


def _client(silence: float) -> "httpx.AsyncClient":
    import httpx

    direct = {f"all://{host}": None for host in _LOOPBACK}
    # With identity, the counted and hashed bytes are those that were sent, and nothing small expands into something
    # large.
    headers = {"User-Agent": f"sandbox-agent/{__version__}", "Accept-Encoding": "identity"}
    try:
        return httpx.AsyncClient(timeout=silence, mounts=direct, headers=headers)
    except (ImportError, OSError, ValueError) as error:
        raise NotFetched(f"the environment's proxies or certificates cannot be used: {error}") from error


async def _follow(client: "httpx.AsyncClient", url: str, headers: Mapping[str, str]) -> "httpx.Response":
    request = client.build_request("GET", url, headers=headers)
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True)
        following = response.next_request
        if following is None:
            return response
        await response.aclose()
        if reason := refuse_redirect(request.url.scheme, following.url.scheme):
            raise NotFetched(reason, response.status_code)
        request = following
    raise NotFetched(f"it redirects in a circle, or more than {MAX_REDIRECTS} times")


@contextmanager
def _translate_errors(silence: float) -> Generator[None]:
    """Translate the errors of httpx into NotFetched."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise NotFetched(f"nothing came for {silence:g} s") from error
    except httpx.ConnectError as error:
        raise NotFetched(f"no connection: {error}") from error
    except httpx.InvalidURL as error:
        raise NotFetched("the address cannot be understood") from error
    except httpx.HTTPError as error:
        raise NotFetched(f"the connection broke: {str(error) or type(error).__name__}") from error


# --- files ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _from_file(path: Path) -> AsyncGenerator[Download]:
    with _reading():
        # Non-blocking: a FIFO may never get a writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise NotFetched("it is not a file")
        yield Download(200, {}, _pieces(file), about.st_size)
    finally:
        os.close(file)


async def _pieces(file: int) -> AsyncIterator[bytes]:
    with _reading():
        while piece := await asyncio.to_thread(os.read, file, MAX_PIECE_BYTES):
            yield piece


@contextmanager
def _reading() -> Generator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name.
        reason = error.strerror if isinstance(error, OSError) else "the address cannot be understood"
        raise NotFetched(f"the file cannot be read: {reason}") from error
