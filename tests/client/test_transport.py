"""The SDK against servers and proxies that no honest server is: it neither dies, nor races, nor answers the wrong."""

import asyncio

import pytest

from sandbox_agent.client import (
    Answer,
    ConnectionLost,
    ForeignAnswer,
    PermissionRequest,
    SandboxAgent,
    ServerProblem,
    Session,
    text_of,
)
from tests.support.client import run
from tests.support.loopback import answer
from tests.support.pretending import Json, Pretender, pretender, problem
from tests.support.sdk import permission

SESSION = {"sessionId": "s-1"}


def update(text: str, session: str = "s-1") -> Json:
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": chunk}}


def asks(id: object, title: str) -> Json:
    params = {"sessionId": "s-1", **permission()}
    params["toolCall"] = {"toolCallId": title, "title": title}
    return {"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}


async def opened(client: SandboxAgent, pretending: Pretender) -> Session:
    pretending.results["session/new"] = SESSION
    pretending.results.setdefault("_sandboxagent/session/attach", {"session": SESSION, "position": 0})
    return await client.sessions.create("any", cwd="/")


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_connection_that_is_gone_is_not_given_to_the_next() -> None:
    """There, the same id may be another request."""

    async def main() -> None:
        asked: list[str] = []
        go = asyncio.Event()

        async def decide(request: PermissionRequest) -> Answer:
            asked.append(str(request.tool_call.title))
            if request.tool_call.title == "harmless":
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    pass  # A handler that does not listen.
                return request.allow()
            return request.reject()

        async with pretender() as pretending, SandboxAgent.connect(pretending.url, on_permission=decide) as client:
            await opened(client, pretending)
            await pretending.told(1, asks(0, "harmless"))
            async with asyncio.timeout(5):
                while not asked:
                    await asyncio.sleep(0)
            pretending.restart()
            await pretending.until(lambda: pretending.opened == 2)
            go.set()
            await pretending.told(2, asks(0, "dangerous"), "c2")
            await pretending.until(lambda: any(post.connection == "c2" for post in pretending.answers()))
        given = [
            post.envelope["result"]["outcome"]["optionId"] for post in pretending.answers() if post.connection == "c2"
        ]
        assert given == ["no"]

    run(main())


def test_ids_that_are_written_differently_are_different_requests() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            await opened(client, pretending)
            for position, id in enumerate((1, 1.0, "1"), 1):
                await pretending.told(position, asks(id, repr(id)))
            withdrawn = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1.0}}
            await pretending.told(4, withdrawn)
            async with asyncio.timeout(5):
                while [request.tool_call.title for request in client.requests()] != ["1", "'1'"]:
                    await asyncio.sleep(0.005)

    run(main())
