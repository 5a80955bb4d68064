"""HTTP on a listening socket: uvicorn with our protocol, and without its own ways to start and stop."""

import asyncio
import resource
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import cast

from sandbox_agent.http.asgi import App
from sandbox_agent.http.light_uvicorn import Config, Server
from sandbox_agent.http.protocol import Protocol
from sandbox_agent.http.sockets import SocketLimits, Sockets
from sandbox_agent.settings import Settings


class HttpServer(Server):
    """Uvicorn without its signal handlers: agents and streams are ended first, elsewhere."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def make_server(app: App, settings: Settings) -> tuple[HttpServer, Sockets]:
    """A server that only has to be given its listener; and its sockets, whose clock has to run."""
    sockets = Sockets(_limits(settings))
    config = Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(Protocol, sockets)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=max(sockets.limits.anonymous, 64),
        timeout_graceful_shutdown=1,
    )
    return HttpServer(config), sockets


def _limits(settings: Settings) -> SocketLimits:
    """With few descriptors, strangers get a part of them: a burst on top must leave enough for clients and agents."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    anonymous = settings.anonymous_sockets
    if descriptors != resource.RLIM_INFINITY:
        anonymous = max(min(anonymous, descriptors // 4), 1)
    return SocketLimits(
        anonymous, settings.head_timeout, settings.body_timeout, settings.idle_timeout, settings.pong_timeout
    )
