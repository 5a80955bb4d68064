"""What has arrived from the server, and what an agent's request is called."""

import json
from typing import NamedTuple, cast

import msgspec

from sandbox_agent.envelope import Object


class Arrival(NamedTuple):
    """An envelope from the server, the position that it has on the stream, and its size."""

    envelope: Object
    position: int | None
    size: int
    generation: int
    """Which of the client's connections it came on, one after another."""


class RequestId(NamedTuple):
    """What an agent's request is called: ids are those of one connection, the next may use them for something else."""

    generation: int
    text: str
    """The id as it is written: `1`, `1.0` and `"1"` are three."""

    @classmethod
    def of(cls, arrival: Arrival, id: object) -> "RequestId":
        return cls(arrival.generation, msgspec.json.encode(id).decode())


def decode(data: str | bytes) -> Object:
    """An envelope; raises ValueError when it is none."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Half a surrogate pair, from a program that cuts strings: other parsers accept it as JSON.
        found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not an envelope")  # noqa: TRY004 - what is sent is wrong, not who calls
    return cast("Object", found)
