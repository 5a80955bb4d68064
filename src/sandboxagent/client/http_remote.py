"""Send HTTP requests to a server on another machine by httpx: TLS, proxies, cookies of load balancers.

The module is imported when such a server is called, because httpx takes longer to import than all of the SDK. The
command line of httpx, imported where click and rich are installed, takes longer still.
"""

import socket
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager

from sandboxagent.client.errors import ConnectionLost, TlsFailed
from sandboxagent.client.http import CONNECT_TIMEOUT, IDLE_TIMEOUT, MAX_IDLE, Request, Response, reason_of
from sandboxagent.core.tls import find_tls_problem

if "httpx" in sys.modules:
    import httpx
else:
    sys.modules["httpx._main"] = None  # type: ignore[assignment] - so that importing the command line fails
    try:
        import httpx
    finally:
        del sys.modules["httpx._main"]

# Any number of prompts may wait for their answers, for hours.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE, keepalive_expiry=IDLE_TIMEOUT)
# Settings of TCP keep-alive, in seconds. Nothing is sent while a request waits. Without keep-alive, the client would
# wait forever for a server that vanished, and a router in between would forget the connection. TCP_KEEPALIVE is the
# name of TCP_KEEPIDLE on macOS.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class RemoteHttpClient:
    """An HTTP client for a server on another machine."""

    def __init__(self, url: str, headers: Mapping[str, str], *, direct: bool) -> None:
        self._url = url
        self.is_direct = direct
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=_timeout(None),
            limits=_LIMITS,
            transport=_direct(url) if direct else None,
        )

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncGenerator[Response]:
        built = self._client.build_request(
            request.method,
            request.path,
            params=request.query or None,
            content=request.content,
            headers=request.headers,
            timeout=_timeout(request.silence),
        )
        with self._translate_failures(request):
            response = await self._client.send(built, stream=True)
            try:
                yield response
            finally:
                await response.aclose()

    @contextmanager
    def _translate_failures(self, request: Request) -> Generator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            problem = find_tls_problem(error)
            if problem is not None:
                raise TlsFailed(f"{self._url} {problem.cause}: {problem.advice}") from error
            raise ConnectionLost(f"no server answers at {self._url} ({reason_of(error)})") from error
        except httpx.ReadTimeout as error:
            raise ConnectionLost(
                f"{self._url} said nothing for {request.silence:g} s after {request}", outcome_unknown=True
            ) from error
        except httpx.RequestError as error:
            raise ConnectionLost(
                f"the connection to {self._url} broke during {request} ({reason_of(error)})", outcome_unknown=True
            ) from error


def _timeout(silence: float | None) -> httpx.Timeout:
    return httpx.Timeout(None, connect=CONNECT_TIMEOUT, read=silence)


def _direct(url: str) -> httpx.AsyncHTTPTransport:
    """Return a transport without a proxy. Without a transport, httpx uses the proxy that the environment names."""
    probes = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _PROBES.items() if hasattr(socket, name)
    ]
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *probes]
    # Certificates are loaded only for HTTPS, because loading them takes longer than connecting.
    return httpx.AsyncHTTPTransport(verify=url.startswith("https"), limits=_LIMITS, socket_options=options)
