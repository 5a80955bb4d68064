"""Check the machine, the server and the agents for `sandbox-agent doctor`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.core.settings import Settings

Status = Literal["ok", "note", "warning", "problem"]
Area = Literal["program", "directories", "configuration", "server", "agents", "registry", "limits"]


class Finding(Struct, frozen=True):
    """One fact: what it is about (`name`, for programs), how it stands, a sentence, and what to do about it."""

    area: Area
    name: str
    status: Status
    sentence: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorSubject:
    """What is looked at: this environment, and the settings that a server would have here, as far as they are right."""

    settings: Settings
    arguments: ParsedArguments
    environ: Mapping[str, str]
    offline: bool
    mistakes: tuple[str, ...] = ()
    """What is wrong with the settings, and reported already."""


Check = Callable[[DoctorSubject], list[Finding]]
"""May take its time, but changes nothing: no file is made, no process disturbed, and no secret shown."""


def join_words(words: list[str], most: int = 8) -> str:
    """Words of a sentence; of many only the first ones."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def size(count: float) -> str:
    """A number of bytes, for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
