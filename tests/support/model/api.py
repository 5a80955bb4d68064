"""What the model server asks of a vendor's API. Each API is a module with these functions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.support.model.gate import Gate
from tests.support.model.script import Conversation, Fail, Json, Part


@dataclass
class Request:
    """One request of an agent, and what became of it. `path` has no query; names of headers are in lower case."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: Json
    conversation: Conversation | None = None
    """What the model got with a request."""
    state: str = "open"
    """`open`, then `answered`, or `abandoned` when the agent hung up first."""


class Api(Protocol):
    """A vendor's API. `Request.number` is unique, for the ids that a response needs."""

    def serves(self, path: str) -> bool:
        """Whether a path belongs to this API."""
        ...

    def other(self, request: Request) -> Json | None:
        """The whole answer to what does not ask the model to say something, such as to count tokens."""
        ...

    def conversation(self, request: Request) -> Conversation:
        """What a request tells the model."""
        ...

    def streams(self, request: Request) -> bool:
        """Whether the answer is wanted as a stream."""
        ...

    def frames(self, request: Request, parts: Sequence[Part]) -> Iterator[str | Gate]:
        """The answer as server-sent events; gates stand where the stream is to be held."""
        ...

    def whole(self, request: Request, parts: Sequence[Part]) -> Json:
        """The answer as one object."""
        ...

    def failure(self, fail: Fail) -> Json:
        """The body of an error."""
        ...


def frame(data: Json | str, event: str | None = None) -> str:
    """One server-sent event."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
