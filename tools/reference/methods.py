"""Read the descriptions of methods for the pages (methods.toml).

A description has the directions of a method, its params and result, and an example.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from sandboxagent.protocol.extensions import TYPES

Way = Literal["client", "server", "agent", "both"]


class Method(Struct, frozen=True, forbid_unknown_fields=True):
    """The description of one method."""

    way: Way
    text: str
    example: str
    """The params of an example, as JSON."""
    kind: Literal["request", "notification"] = "request"
    params: str | None = None
    """Name of the type of its params; None when ACP defines them."""
    result: str | None = None
    errors: tuple[str, ...] = ()
    """Slugs of its own errors. Any request may also end in `internal-error`."""
    answer: str = ""
    """The result of the example, as JSON; empty for a notification."""

    @property
    def takes(self) -> type[Struct] | None:
        return None if self.params is None else TYPES[self.params]

    @property
    def gives(self) -> type[Struct] | None:
        return None if self.result is None else TYPES[self.result]


def methods() -> dict[str, Method]:
    """Return all methods by their names: ours first, then those of ACP."""
    text = Path(__file__).with_name("methods.toml").read_text()
    return msgspec.toml.decode(text, type=dict[str, Method])
