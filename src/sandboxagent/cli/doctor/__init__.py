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
    """One fact: its name for programs, a status, a sentence for people, and advice if there is something to do."""

    area: Area
    name: str
    status: Status
    sentence: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorSubject:
    """The subject of all checks: this environment, and the valid part of the settings that a server would have here."""

    settings: Settings
    arguments: ParsedArguments
    environ: Mapping[str, str]
    offline: bool
    mistakes: tuple[str, ...] = ()
    """Errors in the settings, which the report already has."""


Check = Callable[[DoctorSubject], list[Finding]]
"""A check may be slow, but changes nothing: it creates no file, disturbs no process and shows no secret."""


def join_words(words: list[str], most: int = 8) -> str:
    """Join words with commas; of more than `most`, only the first ones and the number of the others."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def size(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
