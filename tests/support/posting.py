"""Envelopes by POST, as they are."""

import asyncio

import httpx

from tests.support.client import Client
from tests.support.running import BOUND


def envelope(id: str, method: str, params: str = "{}") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'.encode()


async def post(client: Client, headers: list[tuple[str, str]], body: bytes) -> httpx.Response:
    """A POST with exactly these headers besides the connection's id."""
    own = [("X-ACP-Connection-Id", str(client.id)), *headers]
    request = client.http.build_request("POST", "/v1/rpc", content=body)
    for name in ("accept", "content-type"):
        request.headers.pop(name, None)
    request.headers = httpx.Headers([*request.headers.raw, *((a.encode(), b.encode()) for a, b in own)])
    return await client.http.send(request)


async def released(client: Client, hanging: list[asyncio.Task[httpx.Response]]) -> None:
    """Release what hangs at the agent until all of these are answered."""
    async with asyncio.timeout(BOUND):
        while not all(task.done() for task in hanging):
            await client.result("x/release")
