"""A disk that hangs at the installations of agents: it stops who asks for them, and nobody else."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.install.record import Record, Store
from sandboxagent.server.agents.launch import Launch
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.start import _lock_folder  # pyright: ignore[reportPrivateUsage]
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.http.health import HealthCheck, InstalledAgents
from tests.support.running import BOUND
from tests.support.workshop import Workshop
from tests.support.world import run, world


class HangingStore(Store):
    """A directory of installations that is read when a test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked, self.go = threading.Event(), threading.Event()

    def record(self, agent: str) -> Record | None:
        assert threading.current_thread() is not threading.main_thread()
        self.asked.set()
        assert self.go.wait(BOUND)
        return super().record(agent)


def hang(shop: Workshop) -> tuple[Catalog, HangingStore]:
    store = HangingStore(shop.store.directory)
    return Catalog(shop.catalog.manifest, store, shop.catalog.registry, {}), store


IDLE: Any = type("Idle", (), {"running": lambda *_: None})()
HEALTHY: Any = type("Healthy", (), {"failure": None, "publisher": None, "damage": type("No", (), {"reason": None})})()


def test_a_disk_that_hangs_at_the_catalog_does_not_hold_up_health(tmp_path: Path) -> None:
    async def main() -> None:
        catalog, store = hang(Workshop(tmp_path))
        health = HealthCheck(HEALTHY, InstalledAgents(catalog, timeout=0.01), IDLE, lambda: ())
        before = threading.active_count()
        views = [await health.view() for _ in range(3)]
        assert [each.agent for each in views[0].agents] == [agent.id for agent in catalog.manifest.agents]
        assert not any(agent.installed for view in views for agent in view.agents)
        assert threading.active_count() == before + 1
        store.go.set()
        health = HealthCheck(HEALTHY, InstalledAgents(catalog, timeout=BOUND), IDLE, lambda: ())
        assert {each.agent: each.installed for each in (await health.view()).agents}["mock"]

    run(main())


def test_a_disk_that_hangs_at_the_catalog_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        catalog, store = hang(Workshop(tmp_path))
        offers: Any = type("None", (), {"find": lambda *_: None})()
        views = AgentViews(lambda _: None, offers, catalog, offers, IDLE, {})
        asking = [asyncio.create_task(each) for each in (catalog.find("nobody"), catalog.all(), views.all())]
        assert await asyncio.to_thread(store.asked.wait, BOUND)
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        store.go.set()
        await asyncio.wait(asking)

    run(main())


class HangingCatalog:
    """An agent whose installation is looked up when a test says so."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.asked, self.go = threading.Event(), threading.Event()

    def agent(self, _: str) -> Agent:
        self.asked.set()
        assert self.go.wait(BOUND)
        return self._agent


@pytest.mark.parametrize("method", ["session/new", "session/load"])
def test_a_disk_that_hangs_at_an_installation_does_not_hold_the_event_loop(method: str) -> None:
    async def main() -> None:
        async with world() as own:
            catalog: Any = HangingCatalog(own.manifest)
            own.dispatcher._catalog = catalog  # pyright: ignore[reportPrivateUsage]
            asking = own.request(
                method, {"cwd": "/", "mcpServers": [], "sessionId": "unknown"} if "/" in method else {}
            )
            assert await asyncio.to_thread(catalog.asked.wait, BOUND)
            echo = own.request("x/echo", {"sessionId": "s"})
            request = await own.process.request("x/echo")
            own.says(id=request["id"], result={})
            await echo
            assert not asking.done()
            catalog.go.set()
            request = await own.process.request(method)
            own.says(id=request["id"], result={"sessionId": "unknown"})
            await asking

    run(main())


async def until(condition: Callable[[], object]) -> None:
    """Wait until it holds; `run` bounds it."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)


def test_a_start_that_is_cancelled_while_its_folder_is_locked_leaves_no_lock(tmp_path: Path) -> None:
    async def main() -> None:
        launch, asked, go = Launch((), folder=tmp_path), threading.Event(), threading.Event()

        class Hanging:
            def lock_folder(self) -> Any:
                asked.set()
                assert go.wait(BOUND)
                locks.append(launch.lock_folder())
                return locks[0]

        locks: list[Any] = []
        hanging: Any = Hanging()
        locking = asyncio.create_task(_lock_folder(hanging))
        assert await asyncio.to_thread(asked.wait, BOUND)
        locking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await locking
        go.set()
        await until(lambda: locks and locks[0]._descriptor is None)

    run(main())
