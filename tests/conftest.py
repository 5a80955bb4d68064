"""Fixtures that all black-box tests share: one server per worker and way of keeping the log."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.agents.trying import is_unchanged, is_whole, remember
from tests.support.grouping import group_of
from tests.support.running import THROUGH_GATEWAY, Server, scripted

if TYPE_CHECKING:
    from tests.browser.driving import Browser

pytest_plugins = ["tests.support.rerun_alone"]

# Bytecode is written also where the environment forbids it: without it every worker rewrites the assertions of all
# tests, and each of the hundreds of servers and commands that tests start compiles its modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Thousands of tests are collected, and none of them is garbage: looking for some meanwhile is a third of the time.
gc.disable()

# A shell that runs the suite in the background ignores the one, nohup the other, and programs would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# CI tries the same hundred examples every time; a run by hand tries fifty new ones, and keeps what fails.
# Neither asks how long an example takes: that depends on what else the machine does.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "here")

AGENTS = {
    "other": scripted(),
    "twin": scripted("--session-id", "same"),
    "twin2": scripted("--session-id", "same"),
    "impostor": scripted("--session-id", "$claim"),
    "bare": scripted("--capabilities", "{}"),
    "isolated": scripted(isolation="session"),
    "models": scripted("--models"),
    "plain": scripted("--plain"),
    "signin": scripted("--auth", "--capabilities", '{"auth": {"logout": {}}}'),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-agents", action="store_true", help="try all real agents, not only those that changed")
    parser.addoption(
        "--opencode-itself", action="store_true", help="try the tests of the bridge on OpenCode's own server"
    )
    parser.addoption("--gateway", action="store_true", help="put a gateway in front of every server that tests start")


def pytest_configure(config: pytest.Config) -> None:
    # In the environment, so that it also counts in programs that tests run.
    if config.getoption("--gateway"):
        os.environ[THROUGH_GATEWAY] = "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    alone = item.get_closest_marker("server_alone")
    callspec = getattr(item, "callspec", None)
    if alone is not None and (THROUGH_GATEWAY in os.environ or (callspec and callspec.params.get("gateway"))):
        pytest.skip(f"at a gateway: {alone.args[0]}")


STORAGE = {"test_idempotency", "test_post", "test_sse"}
"""Modules whose promises depend on where the log is: their tests run on disk and with `--no-persist`. All else is the
same code: without a file, the log is a database in memory."""
AT_GATEWAY = {"test_turns", "test_asking", "test_requests", "test_api_request"}
"""Modules of the SDK's and the command line's tests that run at a server and at a gateway in front of one every time.
With `--gateway`, all of them run at a gateway."""
SLOW = (
    *("sdk_typescript", "chaos", "fleet"),
    *("opencode", "inspector", "browser", "examples", "test_distribution.py", "test_first_hour.py"),
    *("docs", "contract", "agents", "cli", "client"),
)
"""Rooms that come before all others, in this order: those that wait most, beside which others can work; then those
whose tests take longest, so that no worker has a long test left when the others have ended."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests about storage on both kinds of it."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    module = metafunc.module.__name__.rpartition(".")[2]
    if "gateway" in metafunc.fixturenames and module in AT_GATEWAY and not metafunc.config.getoption("--gateway"):
        ways = {"server": False, "gateway": True}
        metafunc.parametrize("gateway", list(ways.values()), ids=list(ways), indirect=True, scope="session")
    if "server" in metafunc.fixturenames and "server" not in chosen and module in STORAGE:
        metafunc.parametrize("server", ["persist", "no-persist"], indirect=True, scope="session")


def pytest_collection_finish() -> None:
    """What was collected stays until the end, and is not looked at again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Remember that all agents were tried, after a second look at what has failed."""
    yield
    config = session.config
    asked = config.getoption("--all-agents") and not hasattr(config, "workerinput")
    chosen = config.option.keyword or config.option.markexpr or config.option.deselect
    if asked and session.exitstatus == 0 and not chosen and is_whole(config.args, config.invocation_params.dir):
        remember()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["agents_unchanged"] = is_unchanged()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=rank)


def rank(item: pytest.Item) -> int:
    room = item.nodeid.partition("::")[0].split("/", 2)[1]
    return SLOW.index(room) if room in SLOW else len(SLOW)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand tests out to workers in groups, in the order in which they are collected."""
    config.option.loadscopereorder = False
    return Groups(config, log)


class Groups(LoadScopeScheduling):
    """Tests of one group run on one worker: it makes what they share once."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.fixture(scope="session")
def persisting_server() -> Generator[Server]:
    with Server(agents=AGENTS) as running:
        yield running


@pytest.fixture(scope="session")
def forgetting_server() -> Generator[Server]:
    with Server("--no-persist", agents=AGENTS) as running:
        yield running


@pytest.fixture(scope="session")
def gateway_server() -> Generator[Server]:
    with Server(agents=AGENTS, gateway=True) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> "Generator[Browser]":
    """One for all tests of a worker; without one they are skipped, and say why."""
    from tests.browser.driving import Browser, Unavailable

    try:
        opened = Browser()
    except Unavailable as reason:
        pytest.skip(f"there is no browser: {reason}")
    with opened:
        yield opened


@pytest.fixture(scope="session")
def gateway(request: pytest.FixtureRequest) -> bool | None:
    """Whether servers have a gateway in front of them; None: as the command line says."""
    return getattr(request, "param", None)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """A server with scripted agents. Tests share it, so each opens connections and sessions of its own."""
    names = {"persist": "persisting_server", "no-persist": "forgetting_server"}
    return request.getfixturevalue(names[getattr(request, "param", "persist")])
