"""The Python SDK against a test's server: a client, a session of the scripted agent, programs as prompts."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from sandboxagent import Gap, LogEvent, SandboxAgent, Session, Turn, text_of
from tests.support.running import BOUND, Server

Program = list[list[Any]]


@asynccontextmanager
async def connected(server: Server, url: str | None = None, **options: Any) -> AsyncGenerator[SandboxAgent]:
    """A client of a test's server, or of what stands before it; it waits as long as a busy machine may take."""
    async with SandboxAgent.connect(
        url or server.url, server.token, **{"reconnect_timeout": BOUND, **options}
    ) as client:
        yield client


async def new_session(client: SandboxAgent, server: Server, agent: str = "scripted", **options: Any) -> Session:
    return await client.sessions.create(agent, cwd=server.work, **options)


def play(session: Session, program: Program, **options: Any) -> Turn:
    """Prompt the scripted agent with a program."""
    return session.prompt(json.dumps(program), **options)


async def texts(turn: Turn) -> list[str]:
    """What the agent says in a turn, piece by piece."""
    return [text_of(item) async for item in turn if text_of(item)]


def permission(*options: tuple[str, str]) -> dict[str, Any]:
    """The params of a permission request; options are ids and kinds."""
    offered = options or (("yes", "allow_once"), ("no", "reject_once"))
    return {
        "toolCall": {"toolCallId": "call-1", "title": "Write a file", "kind": "edit"},
        "options": [{"optionId": id, "name": id, "kind": kind} for id, kind in offered],
    }


def asking(method: str, params: dict[str, Any]) -> Program:
    """Asks, and says what it was answered."""
    return [["ask", method, params], ["echo_answer"]]


async def asked(session: Session) -> None:
    """Wait until the session's agent has asked something: a cancel before that would not withdraw it."""
    async with asyncio.timeout(BOUND):
        while not (await session.info()).pending:
            pass


async def answered(turn: Turn) -> dict[str, Any]:
    """The answer that the agent got, as it says at the end of `asking`."""
    return json.loads((await texts(turn))[-1])["result"]


async def log_of(session: Session, after: int = 0) -> list[LogEvent | Gap]:
    """All that the session's log has by now."""
    log = session.log(after)
    log.close()
    return [event async for event in log]
