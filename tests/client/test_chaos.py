"""The Python SDK while the network is cut again and again, or the server: every reader sees each event once."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

from sandboxagent import LogEvent, RequestError, SandboxAgent, Session, text_of
from tests.support.client import run
from tests.support.cutting import Proxy, proxy
from tests.support.running import Server, scripted
from tests.support.sdk import connected, log_of, new_session, play, texts

TURNS, UPDATES = 4, 150
EXPECTED = [str(number) for number in range(UPDATES)]


async def cut_at_random(cutting: Proxy, chance: random.Random) -> None:
    """Cut the network all the time, ever more rarely: on a busy machine, too, a request must get through one day."""
    longest = 0.15
    while True:
        await asyncio.sleep(chance.uniform(0.005, longest))
        cutting.cut()
        longest *= 1.05


async def prompts(session: Session) -> None:
    for _ in range(TURNS):
        assert await texts(play(session, [["say", text] for text in EXPECTED])) == EXPECTED


async def updates(client: SandboxAgent, session_id: str, ready: asyncio.Barrier) -> list[str]:
    session = await client.sessions.attach(session_id)
    following = session.updates()
    await ready.wait()
    return [text_of(item) for item in [item async for item in following] if text_of(item)]


async def log(client: SandboxAgent, session_id: str) -> list[int]:
    session = await client.sessions.attach(session_id)
    return [event.id async for event in session.log() if isinstance(event, LogEvent)]


@pytest.mark.parametrize(("seed", "way"), [(0, "http"), (2, "websocket")])
def test_each_event_comes_once_and_in_order_however_often_the_network_is_cut(
    server: Server, seed: int, way: str
) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        async with (
            proxy(server.url) as cutting,
            connected(server, cutting.url, transport=way) as client,
            connected(server, cutting.url, transport=way, buffer=2000) as slow,
            connected(server, cutting.url, transport=way) as storing,
        ):
            sessions = [await new_session(client, server) for _ in range(3)]
            ready = asyncio.Barrier(len(sessions) + 1)
            followers = [asyncio.create_task(updates(slow, session.id, ready)) for session in sessions]
            stores = [asyncio.create_task(log(storing, session.id)) for session in sessions]
            await ready.wait()
            cutter = asyncio.create_task(cut_at_random(cutting, chance))
            await asyncio.gather(*(prompts(session) for session in sessions))
            for session in sessions:
                await session.terminate()
            seen = await asyncio.gather(*followers)
            stored = await asyncio.gather(*stores)
            cutter.cancel()
            assert seen == [EXPECTED * TURNS] * len(sessions)
            for session, ids in zip(sessions, stored, strict=True):
                history = await log_of(session)
                assert ids == [event.id for event in history if isinstance(event, LogEvent)]
                turns = [event for event in history if isinstance(event, LogEvent) and _is_start(event)]
                assert len(turns) == TURNS, "no prompt ran twice"

    run(scenario())


def _is_start(event: LogEvent) -> bool:
    params = event.envelope.get("params")
    return isinstance(params, dict) and params.get("state") == "started"


async def prompts_until(session: Session, over: asyncio.Event) -> None:
    """Prompt again and again, and until a turn came to its end. One that the server took with it tells a part."""
    ended = False
    while not over.is_set() or not ended:
        said: list[str] = []
        try:
            async for item in play(session, [["say", text] for text in EXPECTED]):
                said += [text_of(item)] if text_of(item) else []
        except RequestError:
            assert said == EXPECTED[: len(said)]
        else:
            assert said == EXPECTED
            ended = True


@pytest.mark.parametrize(
    ("numbers", "way"),
    [((signal.SIGTERM, signal.SIGKILL), "http"), ((signal.SIGKILL, signal.SIGTERM), "websocket")],
    ids=["http", "websocket"],
)
def test_each_event_comes_once_and_in_order_over_restarts(
    tmp_path: Path, numbers: tuple[signal.Signals, ...], way: str
) -> None:
    chance = random.Random(sum(numbers))

    async def scenario(server: Server) -> None:
        async with (
            proxy(server.url) as cutting,
            connected(server, cutting.url, transport=way, buffer=3000) as client,
            connected(server, cutting.url, transport=way) as storing,
        ):
            sessions = [await new_session(client, server, "keeping") for _ in range(2)]
            stores = [asyncio.create_task(log(storing, session.id)) for session in sessions]
            over = asyncio.Event()
            turns = [asyncio.create_task(prompts_until(session, over)) for session in sessions]
            for number in numbers:
                for _ in range(3):
                    await asyncio.sleep(chance.uniform(0.01, 0.2))
                    cutting.cut()
                await asyncio.to_thread(server.stop, number)
                await asyncio.to_thread(server.start)
                cutting.target = server.url
            over.set()
            await asyncio.gather(*turns)
            for session in sessions:
                await session.terminate()
            for session, ids in zip(sessions, await asyncio.gather(*stores), strict=True):
                history = await log_of(session)
                assert ids == [event.id for event in history if isinstance(event, LogEvent)]

    keeping = scripted("--state", str(tmp_path / "state"))
    with Server(directory=tmp_path, agents={"keeping": keeping}) as server:
        run(scenario(server))
