"""What a client says of bodies: Accept, Content-Type, Prefer. Pure."""

from functools import lru_cache

from sandbox_agent.errors import NotAcceptable, UnsupportedMediaType

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


def check_accept(accept: bytes | None, offered: str) -> None:
    """Raises NotAcceptable when Accept excludes what we send."""
    if accept is not None and accept.strip() and not _accepts(accept, offered):
        raise NotAcceptable(offered)


def check_json(content_type: bytes | None) -> None:
    """Raises UnsupportedMediaType for a body that is not said to be JSON."""
    if content_type is None or not _is_json(content_type):
        raise UnsupportedMediaType((content_type or b"").decode("latin-1"))


@lru_cache(maxsize=256)
def _accepts(accept: bytes, offered: str) -> bool:
    """The most specific media range that matches decides, as RFC 9110 has it."""
    best, quality = -1, 0.0
    for part in accept.decode("latin-1").lower().split(","):
        media, *parameters = [piece.strip() for piece in part.split(";")]
        ranges = ("*/*", f"{offered.partition('/')[0]}/*", offered)
        if media in ranges and ranges.index(media) > best:
            best, quality = ranges.index(media), _quality(parameters)
    return quality > 0


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


@lru_cache(maxsize=256)
def _is_json(content_type: bytes) -> bool:
    media = content_type.decode("latin-1").partition(";")[0].strip().lower()
    return media == JSON or (media.startswith("application/") and media.endswith("+json"))


def wants_async(prefer: bytes | None) -> bool:
    """`Prefer: respond-async`, among others."""
    if prefer is None:
        return False
    return any(
        part.partition(";")[0].strip() == "respond-async" for part in prefer.decode("latin-1").lower().split(",")
    )
