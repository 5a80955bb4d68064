"""What tests of the OpenCode bridge share: a server, and OpenCode's own programs attached to it."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.opencode.host import MOCK, Host, opencode_itself, opencode_serving, ours
from tests.opencode.program import NOWHERE
from tests.opencode.run import Run
from tests.opencode.terminal import READY, Tui
from tests.support.running import Server


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Host]:
    """A server; its directory is the tests' of one module."""
    if request.config.getoption("--opencode-itself"):
        with opencode_itself(tmp_path_factory.mktemp("itself")) as host:
            yield host
        return
    with Server("--default-agent", MOCK.provider) as server:
        yield ours(server)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of OpenCode's programs."""
    return tmp_path_factory.mktemp("opencode")


@pytest.fixture(scope="module")
def tui(host: Host, home: Path) -> Generator[Tui]:
    """A terminal interface that is attached; tests of a module go on where the one before has stopped."""
    with Tui(host, home) as opened:
        opened.expect(READY)
        yield opened


@pytest.fixture(scope="module")
def run(host: Host, home: Path) -> Run:
    return Run(host, home)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Where OpenCode's web page comes from."""
    with opencode_serving(tmp_path_factory.mktemp("pages"), NOWHERE, password=None) as serving:
        yield serving
