"""Both buses, under one suite: what holds for one holds for the other."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count

import pytest

from sandboxagent.fleet.bus.interface import Bus
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.bus.nats import connect
from tests.support.nats import PROGRAM, NatsServer, nats_server

Members = Callable[[int], AbstractAsyncContextManager[list[Bus]]]


@pytest.fixture(scope="package")
def nats_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with nats_server(tmp_path_factory.mktemp("nats") / "one") as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
def members(request: pytest.FixtureRequest) -> Members:
    """Opens so many members of one bus."""
    if request.param == "memory":

        @asynccontextmanager
        async def in_memory(number: int) -> AsyncGenerator[list[Bus]]:
            cluster = Cluster()
            yield [MemoryBus(cluster) for _ in range(number)]

        return in_memory
    server: NatsServer = request.getfixturevalue("nats_of_tests")

    @asynccontextmanager
    async def on_nats(number: int) -> AsyncGenerator[list[Bus]]:
        buses = [await connect([server.url], f"gw.g{place}.in", f"g{place}") for place in range(number)]
        try:
            yield list(buses)
        finally:
            for bus in buses:
                await bus.close()

    return on_nats


_names = count(1)


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t{next(_names)}"
