"""What the pages say of methods (methods.toml): which way each goes, what it takes and gives, and an example."""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from sandboxagent.protocol.extensions import TYPES

Way = Literal["client", "server", "agent", "both"]


class Method(Struct, frozen=True, forbid_unknown_fields=True):
    """One of them, by its name in a table."""

    way: Way
    text: str
    example: str
    """The params of an example, as JSON."""
    kind: Literal["request", "notification"] = "request"
    params: str | None = None
    """Its type's name; None when ACP says what they are."""
    result: str | None = None
    errors: tuple[str, ...] = ()
    """Slugs of those with a name of their own; any request may end in `internal-error`."""
    answer: str = ""
    """The result of the example, as JSON; empty for a notification."""

    @property
    def takes(self) -> type[Struct] | None:
        return None if self.params is None else TYPES[self.params]

    @property
    def gives(self) -> type[Struct] | None:
        return None if self.result is None else TYPES[self.result]


def methods() -> dict[str, Method]:
    """All of them: ours first, then those of ACP."""
    text = Path(__file__).with_name("methods.toml").read_text()
    return msgspec.toml.decode(text, type=dict[str, Method])
