"""Whether a value is what a type says: with all that must be there, and nothing that the type does not know."""

import json
from typing import Any

import msgspec


def fits(value: Any, type: type) -> None:
    """Fails when it does not."""
    known = json.loads(msgspec.json.encode(msgspec.json.decode(json.dumps(value), type=type)))
    assert lost(value, known) == [], f"{type.__name__} does not tell of all of {value}"


def lost(value: Any, known: Any, where: str = "") -> list[str]:
    """The members of a value that came back from its type without them."""
    match value, known:
        case dict(), dict():
            gone = [f"{where}.{name}" for name in value if name not in known]
            return gone + [
                each for name in value if name in known for each in lost(value[name], known[name], f"{where}.{name}")
            ]
        case list(), list():
            return [each for one, other in zip(value, known, strict=True) for each in lost(one, other, f"{where}[]")]
        case _:
            return []
