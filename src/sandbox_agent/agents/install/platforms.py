"""What machine this is, as the ACP registry and as npm packages spell it."""

import platform
import sys
from dataclasses import dataclass
from functools import cache

_NPM = {"x86_64": "x64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Platform:
    """A system and a processor."""

    registry: str
    """As the registry has it: linux-x86_64."""
    npm: str
    """As packages have it in their names: linux-x64, linux-x64-musl."""


@cache
def current_platform() -> Platform:
    """This machine."""
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    musl = "-musl" if system == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return Platform(f"{system}-{machine}", f"{system}-{_NPM.get(machine, machine)}{musl}")
