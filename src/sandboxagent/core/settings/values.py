"""Turn a text, a number or a list into a setting, or into an error that names its place.

Each kind accepts the text of a flag or a variable, and the types of TOML.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar, cast

from sandboxagent.protocol.errors import SettingsError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FLAG, VARIABLE, FILE = range(3)


class Given:
    """A value as the user wrote it. `where` names the place, and `base` is the directory for a relative path."""

    __slots__ = ("base", "raw", "source", "where")

    def __init__(self, raw: object, source: int = FLAG, where: str = "", base: Path | None = None) -> None:
        self.raw, self.source, self.where, self.base = raw, source, where, base or Path()


class ValueKind(Generic[T_co]):
    """A kind of value. `read` raises ValueError for a value that is not `expected`."""

    __slots__ = ("expected", "many", "metavar", "read", "secret", "switch")

    def __init__(
        self,
        metavar: str,
        expected: str,
        read: Callable[[Given], T_co],
        *,
        many: bool = False,
        switch: bool = False,
        secret: bool = False,
    ) -> None:
        self.metavar, self.expected, self.read = metavar, expected, read
        self.many, self.switch, self.secret = many, switch, secret

    def value(self, given: Given) -> T_co:
        """Return the value. Raises SettingsError, which names the place, the value and the expected kind of value."""
        try:
            return self.read(given)
        except ValueError:
            got = "" if self.secret else f", got {given.raw!r:.100}"
            raise SettingsError(f"{given.where}: expected {self.expected}{got}") from None


def _text(given: Given) -> str:
    if not isinstance(given.raw, str) or not given.raw:
        raise ValueError
    return given.raw


def _match(pattern: str, text: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text, re.ASCII)
    if found is None:
        raise ValueError
    return found


def _number(given: Given) -> float | None:
    # In Python True is an int, but a user who writes true does not mean a number.
    return given.raw if isinstance(given.raw, int | float) and not isinstance(given.raw, bool) else None


def _switch(given: Given) -> bool:
    if isinstance(given.raw, bool):
        return given.raw
    return _match("(1|true|yes|on)|0|false|no|off", _text(given).strip().lower())[1] is not None


def _token(given: Given) -> str:
    return _match("[!-~]+", _text(given))[0]


def _agent(given: Given) -> str:
    return _match("[a-z0-9][a-z0-9._-]{0,63}", _text(given))[0]


def _node(given: Given) -> str:
    return _match("[a-z0-9-]{1,40}", _text(given))[0]


def _nats(given: Given) -> str:
    return _match(r"(?:nats|tls|ws|wss)://[^\s/?#@]+", _text(given))[0]


def _proxy(given: Given) -> str:
    return _match(r"https?://[^\s/?#@]+", _text(given))[0]


def _label(given: Given) -> str:
    return _match(r"[A-Za-z0-9_.-]{1,63}=[A-Za-z0-9_.-]{0,63}", _text(given))[0]


def _host(given: Given) -> str:
    host = _text(given).lower()
    if ":" not in host:
        return _match("[a-z0-9_][a-z0-9._-]*", host)[0]
    import ipaddress

    return str(ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]")))


def _origin(given: Given) -> str:
    return _match(r"[a-z][a-z0-9+.-]*://[^\s/?#@*,;'\"]+", _text(given).lower().removesuffix("/"))[0]


def _path(given: Given) -> Path:
    raw = str(given.raw) if isinstance(given.raw, Path) else _text(given)
    if "\0" in raw:
        raise ValueError
    try:
        return (given.base / Path(raw).expanduser()).absolute()
    except (RuntimeError, OSError) as no_such_place:  # an unknown user's home, a deleted working directory
        raise ValueError from no_such_place


def _location(given: Given) -> str:
    text = _text(given)
    if re.match("[A-Za-z][A-Za-z0-9+.-]*://", text):
        return _match(r"(?:https?|file)://\S+", text)[0]
    return str(_path(given))


def _whole(highest: int) -> Callable[[Given], int]:
    def read(given: Given) -> int:
        number = _number(given)
        if number is None:
            number = int(_match("[0-9]{1,18}", _text(given))[0])
        if not isinstance(number, int) or not 0 <= number <= highest:
            raise ValueError
        return number

    return read


def _quantity(units: Mapping[str, float], least: float) -> Callable[[Given], float]:
    def read(given: Given) -> float:
        amount = _number(given)
        if amount is None:
            found = _match(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", _text(given).strip().lower())
            if found[2] not in units:
                raise ValueError
            amount = float(found[1]) * units[found[2]]
        if not least <= amount < 2**63:
            raise ValueError
        return float(amount)

    return read


def _or_none(read: Callable[[Given], T]) -> Callable[[Given], T | None]:
    """Accept the word `none` as well, which turns the setting off."""
    return lambda given: None if given.raw == "none" else read(given)


def _size(given: Given) -> int:
    return int(_quantity(_BYTES, least=1)(given))


def choice(*words: str) -> ValueKind[str]:
    """Make a kind that accepts one of these words, in any case."""
    return ValueKind(
        "|".join(words), f"one of {', '.join(words)}", lambda given: _match("|".join(words), _text(given).lower())[0]
    )


def many(kind: ValueKind[T]) -> ValueKind[tuple[T, ...]]:
    """Make a kind that accepts any number of values; a single one need not be in a list."""

    def read(given: Given) -> tuple[T, ...]:
        items = cast("Sequence[object]", given.raw) if isinstance(given.raw, list | tuple) else [given.raw]
        return tuple(kind.read(Given(item, given.source, given.where, given.base)) for item in items)

    return ValueKind(kind.metavar, kind.expected, read, many=True)


_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
# As in coreutils: a single letter and KiB count in powers of 1024, KB in powers of 1000.
_BYTES = {
    unit: size
    for power, letter in enumerate(("", "k", "m", "g", "t"))
    for unit, size in ((letter, 1024**power), (f"{letter}ib", 1024**power), (f"{letter}b", 1000**power))
}

SWITCH = ValueKind("", "true or false", _switch, switch=True)
TOKEN = ValueKind("TOKEN", "printable ASCII characters without spaces", _token, secret=True)
AGENT = ValueKind("AGENT", "an agent's id, such as claude", _agent)
NODE = ValueKind("NAME", "1 to 40 small letters, digits and hyphens", _node)
NATS = ValueKind("URL", "an address such as nats://host:4222 or wss://host, with credentials in --creds", _nats)
PROXY = ValueKind("URL", "an address such as http://proxy:3128", _proxy)
LABEL = ValueKind("KEY=VALUE", "a key and a value, such as zone=eu", _label)
HOST = ValueKind("HOST", "a host name or address without scheme or port", _host)
ORIGIN = ValueKind("ORIGIN", "an origin such as https://app.example.org", _origin)
PATH = ValueKind("PATH", "a path", _path)
LOCATION = ValueKind("LOCATION", "an http, https or file address, or a path", _location)
PORT = ValueKind("PORT", "a port number from 0 to 65535", _whole(65535))
COUNT = ValueKind("N", "a whole number from 0 to 1000000", _whole(1_000_000))
DURATION = ValueKind(
    "TIME",
    "a time of at least 1ms, in seconds or with a unit: 500ms, 30s, 30m, 1h, 2d",
    _quantity(_SECONDS, least=0.001),
)
DURATION_OR_NONE = ValueKind("TIME", f"{DURATION.expected}, or none", _or_none(DURATION.read))
SIZE = ValueKind("SIZE", "a size of at least 1 byte, in bytes or with a unit: 64k, 10MB, 32MiB, 1GiB", _size)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address. Names other than localhost may mean any machine."""
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
