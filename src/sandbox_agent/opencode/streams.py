"""`/event` and `/global/event`: events as they happen, to the end of the client or of the server."""

from dataclasses import dataclass

from sandbox_agent.http.asgi import Scope, Send, is_gone, transport
from sandbox_agent.opencode.bus import Bus
from sandbox_agent.opencode.missed import Missed
from sandbox_agent.opencode.requests import Requests

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Writes them."""

    bus: Bus
    requests: Requests
    missed: Missed

    async def write(self, scope: Scope, send: Send, *, wrapped: bool, directory: str | None) -> None:
        """Events around which their directory stands (`wrapped`), or those of one directory."""
        reader = self.bus.open(transport(scope), wrapped=wrapped, directory=directory)
        try:
            if wrapped:
                # The programs that people look at read this stream; those that read the other one have just begun.
                self.missed.tell(reader)
            self.requests.greet(reader)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while (data := await reader.next()) is not None:
                if not data:
                    self.bus.send(reader, None, "server.heartbeat", {})
                    continue
                await send({"type": "http.response.body", "body": data, "more_body": True})
                if is_gone(scope):
                    break
        finally:
            self.bus.forget(reader)
        await send({"type": "http.response.body", "body": b""})
