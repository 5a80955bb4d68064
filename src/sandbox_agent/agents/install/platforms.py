"""Platforms by the names that the ACP registry has for them, such as linux-x86_64."""

import platform

PLATFORMS = tuple(
    f"{system}-{machine}" for system in ("darwin", "linux", "windows") for machine in ("aarch64", "x86_64")
)

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def current_platform() -> str:
    """This machine's platform; a name of the same form for one that the registry does not know."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
