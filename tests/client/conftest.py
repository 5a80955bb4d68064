"""One server for the tests of the SDK. How the server keeps its log is its own tests' matter."""

import pytest

from tests.support.running import Server


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, gateway: bool | None) -> Server:
    """A server with scripted agents. Tests share it, so each opens connections and sessions of its own."""
    return request.getfixturevalue("gateway_server" if gateway else "persisting_server")
