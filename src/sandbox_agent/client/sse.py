"""Server-sent events of an answer. httpx-sse reads them; an answer of another type is not the server's."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sandbox_agent.client.errors import foreign
from sandbox_agent.client.light_httpx import EventSource, ServerSentEvent, httpx

EVENT_STREAM = "text/event-stream"


async def events(response: httpx.Response) -> AsyncGenerator[ServerSentEvent]:
    """The events as they come, until the answer ends. To be closed.

    Raises:
        ForeignAnswer: this is no stream of events.
    """
    content_type = response.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != EVENT_STREAM:
        raise foreign(str(response.url), response.status_code, content_type, b"")
    async with aclosing(EventSource(response).aiter_sse()) as found:
        async for event in found:
            # A comment comes out as an event that has only the id of the one before.
            if event.data:
                yield event
