"""Fixtures that all black-box tests share: one server per worker and way of keeping the log."""

import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.running import Server, scripted

# Bytecode is written also where the environment forbids it: without it every worker rewrites the assertions of all tests,
# and each of the hundreds of servers and commands that tests start compiles its modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the suite in the background ignores it, and programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-agents", action="store_true", help="try all real agents, not only those that changed")


STORAGE = {"test_idempotency", "test_session_deleting", "test_session_inventory", "test_slow_readers", "test_sse"}
"""Modules whose promises depend on where the log is: their tests run on disk and with `--no-persist`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests about storage on both kinds of it. Everything else is the same code on either."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    module = metafunc.module.__name__.rpartition(".")[2]
    if "server" in metafunc.fixturenames and module in STORAGE and "server" not in chosen:
        metafunc.parametrize("server", ["persist", "no-persist"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    """A server with scripted agents. Tests share it, so each opens connections and sessions of its own."""
    flags = ["--no-persist"] if getattr(request, "param", "persist") == "no-persist" else []
    with Server(*flags, agents=AGENTS) as running:
        yield running
