"""Cuts at any moment, under load, on every transport of /acp: each event is seen exactly once and in order.

Contract, section 14.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.acp import Acp, websocket
from tests.support.client import Client, Json, run
from tests.support.cutting import Proxy, proxy
from tests.support.running import Server

UPDATES = 300
WITH_IDS = "sandboxagent.v1"
CUTS = st.lists(st.integers(min_value=1, max_value=UPDATES), max_size=4)
schedules = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def acp() -> Generator[Server]:
    with Server("--default-agent", "scripted", "--stream-buffer", "16KiB") as running:
        yield running


class View:
    """What one client has seen, by id; cuts the network when it has seen as much as a schedule says."""

    def __init__(self, cuts: list[int], cut: Callable[[], None]) -> None:
        self.ids: list[int] = []
        self.seen: list[Json] = []
        self._cuts = sorted(cuts)
        self._cut = cut

    def take(self, id: int, envelope: Json) -> None:
        self.ids.append(id)
        self.seen.append(envelope)
        if self._cuts and len(self.seen) >= self._cuts[0]:
            self._cuts.pop(0)
            self._cut()

    @property
    def last(self) -> int:
        return self.ids[-1] if self.ids else 0

    def has_answer(self, id: int) -> bool:
        return any(one.get("id") == id and "method" not in one for one in self.seen)

    def check(self, *, whole: bool = True) -> None:
        assert self.ids == sorted(set(self.ids)), "once, and in order"
        texts = [one["params"]["update"]["content"]["text"] for one in self.seen if "update" in one.get("params", {})]
        if whole:
            assert [int(text.split()[0]) for text in texts] == list(range(UPDATES))


@asynccontextmanager
async def behind_a_proxy(server: Server) -> AsyncGenerator[tuple[Server, Proxy]]:
    """The same server at another address, which can be cut off."""
    async with proxy(server.url) as between:
        shown = Server(directory=server.directory)
        shown.url = between.url
        yield shown, between


@pytest.mark.requirement("14.faults")
@pytest.mark.parametrize("path", ["/acp", "/v1/rpc"])
@schedules
@given(cuts=CUTS)
def test_a_websocket_that_is_cut_at_any_moment_shows_everything_once(acp: Server, path: str, cuts: list[int]) -> None:
    async def main() -> None:
        async with behind_a_proxy(acp) as (shown, between):
            async with websocket(acp, path, subprotocols=(WITH_IDS,)) as socket:
                await socket.initialize()
                id, session, last = socket.connection_id, await socket.session(acp.work), socket.last
                socket.socket.transport.abort()
            view = View(cuts, between.cut)
            view.ids.append(last)
            asked = False
            while not view.has_answer(50):
                place = f"{path}?after={view.last}&connection={id}"
                try:
                    async with websocket(shown, place, subprotocols=(WITH_IDS,)) as socket:
                        socket.seen.append({})
                        socket.last = view.last
                        prompt = Client.prompt_params(session, [["flood", UPDATES, 50]])
                        # Sent again under the same key after each cut: it runs once.
                        await socket.say("session/prompt", prompt, 50, key=f"key-{id}")
                        asked = True
                        while not view.has_answer(50):
                            envelope = await socket.next()
                            view.take(socket.last, envelope)
                except (ConnectionClosed, InvalidHandshake, OSError):
                    continue
            assert asked
            view.check()

    run(main())


@pytest.mark.requirement("14.faults")
@schedules
@given(cuts=CUTS)
def test_streams_that_are_cut_at_any_moment_show_everything_once(acp: Server, cuts: list[int]) -> None:
    async def main() -> None:
        async with behind_a_proxy(acp) as (shown, between), Acp(acp) as client:
            async with client.get() as stream:
                session = await client.session(stream)
            views = {None: View([], between.cut), session: View(cuts, between.cut)}
            over = asyncio.Event()
            far = Acp(shown)
            far.id = client.id

            async def follow(name: str | None, opened: asyncio.Event) -> None:
                view = views[name]
                while True:
                    try:
                        async with far.get(name, after=view.last or None) as stream:
                            opened.set()
                            while True:
                                event = await stream.next()
                                view.take(event.id, event.data)
                                if view.has_answer(50):
                                    over.set()
                    except (httpx.HTTPError, EOFError):
                        continue

            async with far.http:
                opened = [asyncio.Event(), asyncio.Event()]
                names = (None, session)
                tasks = [asyncio.create_task(follow(*each)) for each in zip(names, opened, strict=True)]
                await asyncio.gather(*(each.wait() for each in opened))
                prompt = client.prompt_params(session, [["flood", UPDATES, 50]])
                assert (await client.say("session/prompt", prompt, id=50)).status_code == 202
                await over.wait()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            views[session].check()
            views[None].check(whole=False)
            assert "update" not in json.dumps([one.get("params") for one in views[None].seen])
            assert set(views[None].ids).isdisjoint(views[session].ids)

    run(main())
