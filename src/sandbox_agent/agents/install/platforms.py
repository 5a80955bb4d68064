"""What machine this is, by the names that the ACP registry (linux-x86_64) and npm packages (linux-x64-musl) have."""

import platform
from dataclasses import dataclass
from functools import cache

PLATFORMS = tuple(
    f"{system}-{machine}" for system in ("darwin", "linux", "windows") for machine in ("aarch64", "x86_64")
)

_NPM_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, by both names."""

    registry: str
    npm: str


def this_machine() -> Machine:
    """The one we are on."""
    return Machine(current_platform(), npm_platform())


def current_platform() -> str:
    """This machine's platform; a name of the same form for one that the registry does not know."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"


@cache
def npm_platform() -> str:
    """This machine, as packages have it in their names."""
    system, _, machine = current_platform().partition("-")
    musl = "-musl" if system == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return f"{system}-{_NPM_MACHINES.get(machine, machine)}{musl}"
