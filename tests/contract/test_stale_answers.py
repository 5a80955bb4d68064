"""Clients that keep every id they ever saw, and allow under it: nothing but what the id was given for is allowed."""

import asyncio
import shutil
import signal
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent import SandboxAgent, ServerProblem
from tests.support.asking import ALLOW, PERMISSION_PARAMS, ask_outright
from tests.support.client import Client, run
from tests.support.nats import PROGRAM
from tests.support.running import Server, scripted

PENDING = "_sandboxagent/session/pending"
AGENTS = ("scripted", "other")
GONE = (404, 409)

steps = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(AGENTS)),
    st.tuples(st.sampled_from(["post", "socketless", "sdk", "bridge"]), st.integers(0, 1 << 16)),
    st.tuples(st.sampled_from(["cancel", "detach", "attach"]), st.integers(0, 1 << 16)),
    st.tuples(st.just("reconnect"), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from(["stopped", "killed", "lost disk"])),
)


class Play:
    """A server, its clients, and every id that they have seen."""

    def __init__(self, server: Server, base: str) -> None:
        self.server = server
        self.base = base
        self.meant: dict[str, str] = {}
        """Ids of requests → what each was given for, by the tool call."""
        self.shown: dict[str, str] = {}
        """The same, as OpenCode's programs know them."""
        self.open: dict[str, str] = {}
        """What waits, by the tool call → its session."""
        self.stack = AsyncExitStack()
        self.numbers = count(1)

    async def connect(self) -> None:
        await self.stack.aclose()
        self.one, self.two = [await self.stack.enter_async_context(Client(self.server)) for _ in range(2)]
        opened = SandboxAgent.connect(self.server.url, self.server.token, on_permission=lambda _: None)
        self.sdk = await self.stack.enter_async_context(opened)
        for session in set(self.open.values()):
            await self.attach(session)

    async def attach(self, session: str) -> None:
        for client in (self.one, self.two):
            await client.result("_sandboxagent/session/attach", {"sessionId": session})
        await self.sdk.sessions.attach(session)

    async def look(self) -> dict[str, str]:
        """What waits; all ids are noted, and what they are for."""
        waiting: dict[str, str] = {}
        for each in (await self.one.result(PENDING))["pending"]:
            call = each["envelope"]["params"]["toolCall"]["toolCallId"]
            assert each["id"] == each["envelope"]["id"]
            assert self.meant.setdefault(each["id"], call) == call, "the id was given for something else"
            waiting[call] = each["sessionId"]
        for each in (await self.one.http.get(f"{self.base}/permission")).json():
            call = each["tool"]["callID"] if "tool" in each else each["metadata"]["title"]
            assert self.shown.setdefault(each["id"], call) == call, "the id was given for something else"
        return waiting

    async def ask(self, agent: str) -> None:
        """In a session of its own; all agents ask under the same id."""
        call = f"call-{next(self.numbers)}"
        session = await self.one.new_session(agent=agent)
        asked = {**PERMISSION_PARAMS, "toolCall": {"toolCallId": call, "title": call}}
        await ask_outright(self.one, session, ["ask_id", "0", "session/request_permission", asked], ["wait_answer"])
        await self.attach(session)
        while call not in await self.look():
            pass
        self.open[call] = session
        while call not in [request.tool_call.tool_call_id for request in self.sdk.requests()]:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def allow(self, way: str, number: int) -> None:
        """Under any id ever seen: what it was given for is allowed, or nothing is."""
        ids = self.shown if way == "bridge" else self.meant
        if not ids:
            return
        id, call = list(ids.items())[number % len(ids)]
        taken = await getattr(self, f"by_{way}")(id)
        if call not in self.open:
            assert not taken or way == "post", f"{id} is stale"
        before, self.open = self.open, await self.look()
        assert before.keys() - self.open.keys() <= {call}, f"{id} was given for {call}"
        assert not (taken and call in self.open)

    async def by_post(self, id: str) -> bool:
        response = await self.two.answer(id, ALLOW)
        assert response.status_code in (202, *GONE), response.text
        return response.status_code == 202

    async def by_socketless(self, id: str) -> bool:
        """A connection of its own, which has been asked nothing."""
        async with Client(self.server) as stranger:
            assert (await stranger.answer(id, ALLOW)).status_code == 404
        return False

    async def by_sdk(self, id: str) -> bool:
        try:
            await self.sdk.reply_permission(id, "yes")
        except ServerProblem as problem:
            if problem.status not in GONE:
                raise
            return False
        return True

    async def by_bridge(self, id: str) -> bool:
        response = await self.one.http.post(f"{self.base}/permission/{id}/reply", json={"reply": "once"})
        assert response.status_code in (200, 404), response.text
        return response.status_code == 200

    async def in_session(self, what: str, number: int) -> None:
        if not self.open:
            return
        session = sorted(self.open.values())[number % len(self.open)]
        if what == "cancel":
            await self.two.notify("session/cancel", {"sessionId": session})
            self.open = {call: where for call, where in self.open.items() if where != session}
            while session in (await self.look()).values():
                pass
        else:
            await self.two.result(f"_sandboxagent/session/{what}", {"sessionId": session})

    async def restart(self, how: str) -> None:
        await self.stack.aclose()
        self.server.stop(signal.SIGKILL if how != "stopped" else signal.SIGTERM)
        if how == "lost disk":
            shutil.rmtree(self.server.directory / "data")
        self.server.start()
        self.open = {}
        await self.connect()

    async def step(self, what: str, which: Any) -> None:
        match what:
            case "ask":
                await self.ask(which)
            case "restart":
                await self.restart(which)
            case "reconnect":
                await self.connect()
            case "cancel" | "detach" | "attach":
                await self.in_session(what, which)
            case _:
                await self.allow(what, which)


@pytest.mark.requirement("5.agent-ids-never-reused", "5.agent-ids-unique")
@pytest.mark.parametrize("gateway", [False, True], ids=["server", "gateway"])
def test_a_stale_id_never_allows_anything_else(gateway: bool) -> None:
    if gateway and not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with Server(agents={"other": scripted()}, gateway=gateway) as server:
        play = Play(server, "/opencode/@n1" if gateway else "/opencode")

        @given(st.lists(steps, min_size=5, max_size=25))
        @settings(
            max_examples=3 if gateway else 8, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        def live(program: list[tuple[str, Any]]) -> None:
            async def main() -> None:
                await play.connect()
                try:
                    for what, which in program:
                        await play.step(what, which)
                finally:
                    await play.stack.aclose()

            run(main())

        live()
        assert len(play.meant) > 3
