"""Fixtures that all black-box tests share: one server per worker and way of keeping the log."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.running import Server, scripted

# CI tries the same examples every time; who works here tries new ones, and keeps what fails.
# Neither asks how long an example takes: that depends on what else the machine does.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")

AGENTS = {
    "other": scripted(),
    "twin": scripted("--session-id", "same"),
    "twin2": scripted("--session-id", "same"),
    "bare": scripted("--capabilities", "{}"),
    "isolated": scripted(isolation="session"),
    "models": scripted("--models"),
    "plain": scripted("--plain"),
    "signin": scripted("--auth", "--capabilities", '{"auth": {"logout": {}}}'),
}


@pytest.fixture(scope="session", params=["persist", "no-persist"])
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    """A server with scripted agents. Tests share it, so each opens connections and sessions of its own."""
    flags = ["--no-persist"] if request.param == "no-persist" else []
    with Server(*flags, agents=AGENTS) as running:
        yield running
