"""The TypeScript SDK in a real browser while the network breaks, the server restarts and the page sleeps."""

import json
import random
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.browser.conftest import BUNDLED, OpenPage, connect
from tests.browser.driving import Browser, Context, Page
from tests.browser.network import Network, network
from tests.support.asking import PERMISSION
from tests.support.client import run
from tests.support.running import Server, scripted
from tests.support.sdk import asking, connected, permission

pytestmark = pytest.mark.xdist_group("browser")

FOLLOW = """
    window.session = await client.sessions.create({ cwd });
    window.seen = [];
    window.following = session.updates();
    window.over = (async () => {
      for await (const item of following) if (sdk.textOf(item)) seen.push(sdk.textOf(item));
    })();
    return session.id;
"""
"""A session, and what its agent says in it."""


@pytest.fixture
def wire(server: Server) -> Generator[Network]:
    with network(server.url) as passing:
        yield passing


async def cancel_elsewhere(server: Server, session_id: str) -> None:
    """End the turn of a session from another client, and wait until it has ended."""
    async with connected(server) as client:
        session = await client.sessions.attach(session_id)
        updates = session.updates()
        await session.cancel()
        async for item in updates:
            if item.session_update == "turn_ended":
                return


def test_what_happens_while_the_network_is_down_is_there_when_it_is_up_again(
    open_page: OpenPage, server: Server, wire: Network
) -> None:
    with open_page(url=wire.url) as page:
        id = page.run(FOLLOW)
        page.run(
            "window.turn = session.prompt(text);", text=json.dumps([["say", "1"], ["wait_cancel"], ["flood", 50, 9]])
        )
        page.until("seen.length === 1")
        wire.down()
        run(cancel_elsewhere(server, id))
        page.run("window.next = session.prompt('while it is down');")
        wire.tried_again(3)
        assert page.run("return seen;") == ["1"]
        wire.up()
        told = page.run("return [(await turn).stopReason, (await next).stopReason];")
        page.until("seen.at(-1) === 'while it is down'")
        said = page.run("return seen;")
        prompts = page.run("return (await logOf(session)).map(({ envelope }) => envelope.method);")

    assert told == ["cancelled", "end_turn"]
    assert [text.strip("x ") for text in said] == ["1", *map(str, range(50)), "while it is down"]
    assert prompts.count("session/prompt") == 2


def test_cut_again_and_again_each_update_comes_once_and_in_order(open_page: OpenPage, wire: Network) -> None:
    turns, updates, sessions = 3, 100, 3
    chance = random.Random(7)
    done = Event()

    def cut() -> int:
        times = 0
        while not done.wait(chance.uniform(0.01, 0.15)):
            wire.cut()
            times += 1
        return times

    with open_page(url=wire.url) as page, ThreadPoolExecutor(1) as beside:
        # Not among what is cut: no client can know whether a session was made whose answer is lost.
        make = (
            "window.sessions = await Promise.all(Array.from({ length: count }, () => client.sessions.create({ cwd })));"
        )
        page.run(make, count=sessions)
        cutting = beside.submit(cut)
        try:
            told = page.run(
                """
                const number = (item) => (sdk.textOf(item) ? [Number(sdk.textOf(item))] : []);
                return await Promise.all(sessions.map(async (session) => {
                  const hearing = all(session.updates());
                  const storing = all(session.log());
                  const said = [];
                  for (let turn = 0; turn < turns; turn += 1) {
                    for await (const item of session.prompt(text)) said.push(...number(item));
                  }
                  await session.terminate();
                  const stored = (await storing).map(({ id }) => id);
                  const history = (await logOf(session)).map(({ id }) => id);
                  const heard = (await hearing).flatMap(number);
                  return { said, heard, whole: stored.length > 0 && String(stored) === String(history) };
                }));
                """,
                turns=turns,
                text=json.dumps([["say", str(number)] for number in range(updates)]),
            )
        finally:
            done.set()

    assert cutting.result() > 1
    expected = [*range(updates)] * turns
    assert told == [{"said": expected, "heard": expected, "whole": True}] * sessions


def test_a_browser_that_is_offline_for_a_while_catches_up(
    browser: Browser, open_page: OpenPage, server: Server, wire: Network
) -> None:
    with browser.context() as own, open_page(where=own, url=wire.url) as page:
        id = page.run(FOLLOW)
        page.run("window.turn = session.prompt(text);", text=json.dumps([["say", "1"], ["wait_cancel"], ["say", "2"]]))
        page.until("seen.length === 1")
        own("setOffline", True)
        # The browser lets go of nothing that is open.
        wire.cut()
        run(cancel_elsewhere(server, id))
        page.run("window.next = session.prompt('3');")
        assert page.run("return seen;") == ["1"]
        own("setOffline", False)
        told = page.run("return [(await turn).stopReason, (await next).stopReason];")
        page.until("seen.at(-1) === '3'")
        seen = page.run("return seen;")

    assert told == ["cancelled", "end_turn"]
    assert seen == ["1", "2", "3"]


def test_an_answer_whose_way_is_cut_is_given_once(open_page: OpenPage, wire: Network) -> None:
    with open_page(url=wire.url) as page:
        page.run(
            "window.session = await client.sessions.create({ cwd }); window.turn = session.prompt(text);",
            text=json.dumps(asking(PERMISSION, permission())),
        )
        page.until("client.requests().length === 1")
        wire.down()
        page.run("window.reply = client.replyPermission(client.requests()[0].id, 'yes');")
        wire.tried_again(2)
        wire.up()
        answer = page.run("await reply; return await turn.text();")
        decisions = page.run("return (await logOf(session)).filter(({ envelope }) => envelope.result?.outcome);")

    assert json.loads(answer)["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert len(decisions) == 1


def test_a_server_that_dies_and_comes_back_is_gone_on_with(context: Context, origin: str, tmp_path: Path) -> None:
    agents = {"keeping": scripted("--state", str(tmp_path / "state"))}
    with (
        Server("--cors-origin", origin, agents=agents, directory=tmp_path) as server,
        network(server.url) as wire,
        context.page(origin + BUNDLED, "window.sdk") as page,
    ):
        connect(page, server, wire.url, agent="keeping")
        page.run(FOLLOW)
        page.run("window.storing = all(session.log()); await session.prompt('before');")
        page.run("window.turn = session.prompt(text);", text=json.dumps([["say", "half"], ["wait_cancel"]]))
        page.until("seen.length === 2")
        # What is acknowledged is on disk, and all before it.
        page.run("await session.setMetadata({ kept: true });")
        server.kill()
        server.start()
        wire.lead_to(server.url)
        failure = page.run("return await failure(turn);")
        said = page.run("return await session.prompt('after').text();")
        page.run("await session.terminate();")
        seen = page.run("await over; return seen;")
        stored, history = page.run("return [await storing, await logOf(session)];")

    assert failure["name"] == "RequestError"
    assert failure["data"]["type"] == "outcome-unknown"
    assert said == "after"
    # The session has ended with the server, and was resumed by the prompt: its updates go on, and so does the log.
    assert seen == ["before", "half", "after"]
    assert stored == history
    updates = [event["envelope"].get("params", {}).get("update", {}) for event in history]
    assert [update["content"]["text"] for update in updates if update] == ["before", "half", "after"]


def test_a_slow_reader_gets_everything_and_delays_no_other(open_page: OpenPage) -> None:
    with open_page(buffer=20_000) as page:
        told = page.run(
            """
            const session = await client.sessions.create({ cwd });
            const unread = session.updates();
            for (let turn = 0; turn < 3; turn += 1) await session.prompt(text);
            const other = await (await client.sessions.create({ cwd })).prompt("meanwhile").text();
            const numbers = [];
            for await (const item of unread) {
              if (sdk.textOf(item)) numbers.push(parseInt(sdk.textOf(item)));
              if (numbers.length % 100 === 0) await new Promise(requestAnimationFrame);
              if (numbers.length === 900) break;
            }
            return { numbers, other };
            """,
            text=json.dumps([["flood", 300, 500]]),
        )

    assert told == {"numbers": [*range(300)] * 3, "other": "meanwhile"}


def test_a_page_that_the_browser_froze_goes_on_where_it_was(
    context: Context, open_page: OpenPage, server: Server
) -> None:
    with open_page() as page:
        developer = context("newCDPSession", page.reference)
        id = page.run(FOLLOW)
        page.run(
            "window.turn = session.prompt(text);", text=json.dumps([["say", "1"], ["wait_cancel"], ["flood", 50, 9]])
        )
        page.until("seen.length === 1")
        developer("send", "Page.setWebLifecycleState", {"state": "frozen"})
        run(cancel_elsewhere(server, id))
        developer("send", "Page.setWebLifecycleState", {"state": "active"})
        told = page.run("return [(await turn).stopReason, await session.prompt('awake').text(), seen.length];")

    assert told == ["cancelled", "awake", 52]


def test_ten_megabytes_of_updates_do_not_stay_in_memory(context: Context, page: Page) -> None:
    developer = context("newCDPSession", page.reference)

    def heap() -> int:
        developer("send", "HeapProfiler.collectGarbage")
        return developer("send", "Runtime.getHeapUsage")["usedSize"]

    page.run("window.session = await client.sessions.create({ cwd }); await session.prompt('warm');")
    before = heap()
    read = page.run(
        """
        window.unread = session.updates();
        let read = 0;
        for await (const item of session.prompt(text)) if (sdk.textOf(item)) read += 1;
        return read;
        """,
        text=json.dumps([["flood", 5_000, 2_000]]),
    )
    grown = heap() - before

    assert read == 5_000
    # What the agent said is 10 MB; one of the two iterators has not been read yet, and keeps 4 MiB at most.
    assert grown < 8_000_000
    numbers = page.run("""
        const numbers = [];
        for await (const item of unread) {
          if (sdk.textOf(item)) numbers.push(parseInt(sdk.textOf(item)));
          if (numbers.length === 5_000) return numbers;
        }
    """)
    assert numbers == [*range(5_000)]
    assert heap() - before < 2_000_000
