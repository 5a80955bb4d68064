"""Platforms by the registry's names."""

import platform

from sandbox_agent.agents.install.platforms import PLATFORMS, current_platform


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
