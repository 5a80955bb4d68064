"""Decide who may call by Host, Origin and token, before a body is read."""

import binascii
import hmac
import ipaddress
import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Collection
from functools import lru_cache
from urllib.parse import parse_qs

from msgspec import Struct

from sandboxagent.protocol.errors import BadRequest, ForbiddenOrigin, Misdirected, Unauthorized
from sandboxagent.protocol.headers import (
    ACP_CONNECTION_ID,
    ACP_SESSION_ID,
    BEARER,
    CONNECTION_ID,
    IDEMPOTENCY_KEY,
    LAST_EVENT,
    PREFER,
    PREFERENCE_APPLIED,
    RESUME_AFTER,
    raw,
)
from sandboxagent.server.http.asgi import Headers, Scope, header, offers_websocket

_HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@\s]+))(:\d*)?")
_EXPOSED = (
    f"{CONNECTION_ID}, {ACP_CONNECTION_ID}, {ACP_SESSION_ID}, {LAST_EVENT}, {PREFERENCE_APPLIED}, "
    "ETag, Content-Range, Content-Disposition"
).encode()
_ALLOWED_HEADERS = (
    f"Authorization, Content-Type, Accept, {CONNECTION_ID}, {ACP_CONNECTION_ID}, {ACP_SESSION_ID}, {RESUME_AFTER}, "
    f"{PREFER}, {IDEMPOTENCY_KEY}, If-Match, If-None-Match, If-Modified-Since, If-Range, Range"
).encode()
_SINGLE = (
    b"host",
    b"authorization",
    b"origin",
    raw(CONNECTION_ID),
    raw(ACP_CONNECTION_ID),
    raw(ACP_SESSION_ID),
    raw(RESUME_AFTER),
    b"content-type",
    raw(IDEMPOTENCY_KEY),
)
"""Headers that are ambiguous when sent twice: a proxy in between may have read the other value."""
_PRIVATE = ("/v1/", "/acp/")
_PRIVATE_PATHS = ("/acp",)
"""Paths that only clients with the token may call, besides the paths of capabilities."""


class Access(Struct, frozen=True):
    """Paths that a capability answers itself. Only clients with the token may call them."""

    path: str
    """The path of the capability. All paths beneath it belong to it, too."""
    health: str | None = None
    """One more path of the capability, which `--public-health` opens to everyone."""
    passwords: bool = False
    """Whether the token may also be the password of Basic authentication, in a header or as `auth_token` in the
    query."""
    headers: tuple[str, ...] = ()
    """Further request headers that pages of an allowed origin may send, and that gateways pass on."""
    find_directory: Callable[[Scope], str | None] | None = None
    """Return the directory that a request is about. A gateway passes the request to the node with its sessions."""

    def has(self, path: str) -> bool:
        return path in (self.path, self.health) or path.startswith(f"{self.path}/")


class Auth(Struct, frozen=True):
    """The checks of Host, Origin and token, with the allowed values."""

    token: str | None
    host: str
    allowed_hosts: Collection[str]
    cors_origins: Collection[str]
    public_health: bool
    accesses: tuple[Access, ...] = ()

    def check(self, scope: Scope) -> bool:
        """Check a request. Return whether its route asks for the token, which the client has then shown.

        Raises BadRequest, Misdirected, ForbiddenOrigin or Unauthorized.
        """
        if len(scope["headers"]) != len(scope["headers_by_name"]):
            names = [name for name, _ in scope["headers"]]
            repeated = next((name for name in _SINGLE if names.count(name) > 1), None)
            if repeated is not None:
                raise BadRequest(f"the header {repeated.decode()} was sent twice", header=repeated.decode())
        self._check_host(scope)
        self._check_origin(scope)
        if not self._needs_token(scope):
            return False
        self._check_token(scope)
        return True

    def _needs_token(self, scope: Scope) -> bool:
        """Whether only clients with the token may make the request."""
        path = scope["path"]
        access = self._access(path)
        if access is None and path not in _PRIVATE_PATHS and not path.startswith(_PRIVATE):
            return False
        healths = ("/v1/health", access.health if access else None)
        return not (self.public_health and path in healths) and not self.is_preflight(scope)

    def _access(self, path: str) -> Access | None:
        return next((access for access in self.accesses if access.has(path)), None)

    def cors(self, scope: Scope) -> Headers:
        """Return the headers that let a page of an allowed origin read the response."""
        origin = header(scope, b"origin")
        if origin is None or origin.decode("latin-1") not in self.cors_origins:
            return []
        found = [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        ]
        if _is_preflight(scope):
            found += [
                (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE, HEAD"),
                (b"access-control-allow-headers", self._allowed_headers()),
                (b"access-control-max-age", b"600"),
            ]
        return found

    def _allowed_headers(self) -> bytes:
        further = [name.encode() for access in self.accesses for name in access.headers]
        return b", ".join((_ALLOWED_HEADERS, *further))

    def is_preflight(self, scope: Scope) -> bool:
        """Whether the request is a CORS preflight for a page of an allowed origin."""
        return _is_preflight(scope) and bool(self.cors(scope))

    def _check_host(self, scope: Scope) -> None:
        host = (header(scope, b"host") or b"").decode("latin-1")
        name = _host_name(host)
        if not name:
            raise Misdirected(host)
        if name in ("localhost", self.host.lower()) or name in self.allowed_hosts or _is_loopback(name):
            return
        # When the server is bound to a wildcard, the address that the client reached counts as the bound host. DNS
        # rebinding uses a name, never an address.
        server = scope.get("server")
        if server is None or name != str(server[0]):
            raise Misdirected(host)

    def _check_origin(self, scope: Scope) -> None:
        value = header(scope, b"origin")
        if value is None:
            return
        origin = value.decode("latin-1")
        own = f"{scope['scheme']}://{(header(scope, b'host') or b'').decode('latin-1')}"
        if origin.lower() != own.lower() and origin not in self.cors_origins:
            raise ForbiddenOrigin(origin)

    def _check_token(self, scope: Scope) -> None:
        if self.token is None:
            return
        authorization = header(scope, b"authorization")
        if authorization is None and offers_websocket(scope):
            given = _token_among_subprotocols(header(scope, b"sec-websocket-protocol") or b"")
        else:
            scheme, _, given = (authorization or b"").partition(b" ")
            access = self._access(scope["path"])
            if access is not None and access.passwords and scheme.lower() != b"bearer":
                given = _password(given.strip() if scheme.lower() == b"basic" else _query_token(scope))
            else:
                given = given.strip() if scheme.lower() == b"bearer" else b""
        if not given or not hmac.compare_digest(given, self.token.encode()):
            raise Unauthorized


def _query_token(scope: Scope) -> bytes:
    """Return the user and password in the query of a link, which cannot have headers."""
    try:
        given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=100).get("auth_token", [])
    except ValueError:
        return b""
    # A plus sign means a space there, which base64 does not have.
    return given[0].replace(" ", "+").encode("latin-1", "replace") if len(given) == 1 else b""


def _password(encoded: bytes) -> bytes:
    """Return the password of `user:password`, whatever the user's name is."""
    try:
        return b64decode(encoded + b"=" * (-len(encoded) % 4)).partition(b":")[2]
    except (ValueError, binascii.Error):
        return b""


def _token_among_subprotocols(offered: bytes) -> bytes:
    """Return the token that a browser offers as a subprotocol; empty when there is none.

    Browsers cannot set headers.
    """
    found = [name for each in offered.split(b",") if (name := each.strip()).startswith(BEARER.encode())]
    if len(found) != 1:
        return b""
    encoded = found[0].removeprefix(BEARER.encode())
    try:
        return urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except (ValueError, binascii.Error):
        return b""


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None


@lru_cache(maxsize=256)
def _host_name(host: str) -> str:
    """Return the name or address in a Host header, without its port; empty for an invalid header."""
    match = _HOST.fullmatch(host.lower())
    return (match["address"] or match["name"].removesuffix(".")) if match else ""


@lru_cache(maxsize=256)
def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
