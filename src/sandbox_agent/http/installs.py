"""POST /v1/agents/{agent}/install: the result when it is done, or every step of the way as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from sandbox_agent.agents.install.installer import Outcome
from sandbox_agent.agents.install.progress import Job
from sandbox_agent.envelope import Object
from sandbox_agent.errors import BadRequest, InternalError, SandboxAgentError
from sandbox_agent.http import problems
from sandbox_agent.http.negotiate import EVENT_STREAM
from sandbox_agent.hub.agent_installs import AgentInstalls, install_request
from sandbox_agent.wire.agents import InstallRequest, InstallResult

MAX_BODY = 64 * 1024
PACE = 0.2
"""Seconds between two progress events; npm reports hundreds of files."""


@dataclass(frozen=True, slots=True)
class Installs:
    """The handler."""

    installs: AgentInstalls
    heartbeat: float

    async def install(self, request: Request) -> Response:
        asked = await _asked(request)
        agent: str = request.path_params["agent"]
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return _json(await self.installs.install(agent, asked))
        begun = await self.installs.begin(agent, asked)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(begun), media_type=EVENT_STREAM, headers=headers)

    async def _events(self, begun: "InstallResult | tuple[Job, asyncio.Task[Outcome]]") -> AsyncGenerator[bytes]:
        if isinstance(begun, InstallResult):
            yield _event("result", msgspec.json.encode(begun))
            return
        job, task = begun
        shown = None
        while not task.done():
            if job.progress is not shown:
                shown = job.progress
                yield _event("progress", msgspec.json.encode(shown))
            changed = asyncio.ensure_future(job.changed())
            try:
                # The task is only watched: it is not ours to cancel.
                await asyncio.wait({changed, task}, timeout=self.heartbeat, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if not changed.done():
                yield b": still at it\n\n"
            if not task.done():
                await asyncio.wait({task}, timeout=PACE)
        yield await self._ending(task)

    async def _ending(self, task: "asyncio.Task[Outcome]") -> bytes:
        try:
            return _event("result", msgspec.json.encode(await self.installs.result(task)))
        except SandboxAgentError as error:
            return _event("problem", problems.document(error))
        except Exception:
            return _event("problem", problems.document(InternalError()))


async def _asked(request: Request) -> InstallRequest:
    body = await _body(request)
    if not body.strip():
        return InstallRequest()
    try:
        return install_request(msgspec.json.decode(body, type=Object))
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body of an install is a JSON object, or empty: {error}") from None


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise BadRequest("the body of an install is a small JSON object")
    except ClientDisconnect:  # The client is gone.
        raise BadRequest("the body stops half-way") from None
    return body


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _json(result: InstallResult) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(result), media_type="application/json", headers=headers)
