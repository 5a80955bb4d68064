"""One server for the tests of the SDK. How the server keeps its log is its own tests' matter."""

from collections.abc import Generator

import pytest

from tests.conftest import AGENTS
from tests.support.running import Server


@pytest.fixture(scope="session")
def server() -> Generator[Server]:
    """A server with scripted agents. Tests share it, so each opens connections and sessions of its own."""
    with Server(agents=AGENTS) as running:
        yield running
