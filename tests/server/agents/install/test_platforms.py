"""Platforms by the registry's names."""

import platform

from sandboxagent.server.agents.install.registry_entries import (
    PLATFORMS,
    Machine,
    current_platform,
    npm_platform,
    this_machine,
)


def test_the_registry_has_six_platforms() -> None:
    assert PLATFORMS == (
        "darwin-aarch64",
        "darwin-x86_64",
        "linux-aarch64",
        "linux-x86_64",
        "windows-aarch64",
        "windows-x86_64",
    )


def test_this_machine_is_named_as_in_the_registry() -> None:
    system, _, machine = current_platform().partition("-")

    assert system == platform.system().lower()
    assert machine not in ("amd64", "arm64")
    assert machine == machine.lower() != ""


def test_this_machine_has_a_name_for_packages_too() -> None:
    system, machine, *libc = npm_platform().split("-")

    assert system == platform.system().lower()
    assert machine not in ("x86_64", "aarch64", "amd64")
    assert libc in ([], ["musl"])
    assert this_machine() == Machine(current_platform(), npm_platform())
