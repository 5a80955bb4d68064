"""The bridge on a hub in memory, for tests that play the agent and listen as OpenCode's clients do."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from sandboxagent.adapters.opencode.events import EventBus, EventReader
from sandboxagent.adapters.opencode.hub_client import HubClient
from sandboxagent.adapters.opencode.objects import PromptBody
from sandboxagent.adapters.opencode.pending import OpenRequests
from sandboxagent.adapters.opencode.session_ids import project_id
from sandboxagent.adapters.opencode.sessions import BridgeSessions
from sandboxagent.adapters.opencode.transcripts import Transcripts
from tests.support.world import World, world

Json = dict[str, Any]
OFFERED = {"modes": {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "plan"}]}}
ONLY_ONCE = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
ALWAYS = [*ONLY_ONCE, {"optionId": "ever", "kind": "allow_always"}]


class Bridge:
    """The parts of the bridge, over a world."""

    def __init__(self, own: World, memory: int = 1 << 20) -> None:
        self.own = own
        self.bus = EventBus(1 << 20, project_id)
        self.transcripts = Transcripts(own.hub, self.bus, memory)
        client = HubClient(own.hub, own.requests)
        self.requests = OpenRequests(client, self.transcripts, self.bus)
        providers: Any = SimpleNamespace(
            find=lambda id: own.manifest if id == "a" else None,
            default_agent=lambda: "a",
            takes=lambda *_: True,
            models=lambda _: [("default", "Default")],
            mode_names=lambda _: ["ask", "plan"],
        )
        self.bridge_sessions = BridgeSessions(client, self.transcripts, self.bus, providers, own.hub.clock)
        own.log.follow_history(self.transcripts)
        own.hub.observers.add(self.requests)

    def listen(self, directory: str | None = None) -> "Listener":
        return Listener(self.bus.open(Listener, wrapped=False, directory=directory))  # type: ignore[arg-type]

    def prompt(self, id: str, text: str = "hello", **more: Any) -> "asyncio.Task[Any]":
        body = PromptBody(parts=[{"type": "text", "text": text}], **more)

        async def answer() -> Any:
            return msgspec.to_builtins(await self.bridge_sessions.finish(*await self.bridge_sessions.prompt(id, body)))

        return asyncio.create_task(answer())

    async def messages(self, id: str) -> list[Json]:
        transcript = await self.bridge_sessions.transcript(id)
        return [] if transcript is None else msgspec.to_builtins(transcript.messages())


class Listener:
    """Reads what is published."""

    def __init__(self, reader: EventReader) -> None:
        self.reader = reader
        self.seen: list[Json] = []

    @staticmethod
    def abort() -> None:
        raise AssertionError("cut off")

    async def until(self, type: str) -> Json:
        """The properties of the next event of a type."""
        while True:
            for number, event in enumerate(self.seen):
                if event["type"] == type:
                    del self.seen[: number + 1]
                    return event["properties"]
            data = await self.reader.next()
            assert data is not None
            self.seen += [json.loads(frame.removeprefix(b"data: ")) for frame in data.split(b"\n\n") if frame]


@asynccontextmanager
async def bridged(path: Path | None = None, **options: Any) -> AsyncGenerator[tuple[World, Bridge]]:
    memory = options.pop("memory", 1 << 20)
    async with world(path, **options) as own:
        yield own, Bridge(own, memory)


async def ask(own: World, options: list[Json], id: int = 0, command: str = "ls", session: str = "s") -> None:
    call = {"toolCallId": f"c{id}", "title": "List", "kind": "execute", "rawInput": {"command": command}}
    own.asks(id, sessionId=session, toolCall=call, options=options)


def answered(own: World, id: int = 0) -> Json:
    """The agent's answer to what it asked."""
    return next(one["result"] for one in own.process.sent if one.get("id") == id and "result" in one)


def is_answered(own: World, id: int = 0) -> bool:
    return any(one.get("id") == id and "result" in one for one in own.process.sent)
