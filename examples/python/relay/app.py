"""A web application that relays sessions to browsers, which talk, watch and answer together, whenever they come.

usage: python examples/python/relay/app.py [agent] [port]

Then open http://127.0.0.1:8000/, and what it leads to once more in another browser. The server behind it is one of its
own, or the one at SANDBOX_AGENT_URL, with SANDBOX_AGENT_TOKEN. Browsers see neither: they talk to this application
alone, which is where your users log in.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from socket import socket
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rooms import Room, Rooms
from sandboxagent import (
    ConnectionLost,
    LogEvent,
    PermissionRequest,
    QuestionRequest,
    SandboxAgentError,
    ServerProblem,
)

Json = dict[str, object]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """One client of the server for all that the application does."""
    async with Rooms(app.state.agent).open() as app.state.rooms:
        yield


app = FastAPI(title="Relay", lifespan=lifespan)
app.state.agent = "mock"
# Else a page from anywhere could let its own name lead here, and talk to your agents from a visitor's browser.
app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])


def the_rooms(request: Request) -> Rooms:
    """Those of the application."""
    return request.app.state.rooms


AllRooms = Annotated[Rooms, Depends(the_rooms)]


async def the_room(session_id: str, rooms: AllRooms) -> Room:
    """The one in the path. Here is the place to look whether this user may enter it."""
    return await rooms.find(session_id)


ThisRoom = Annotated[Room, Depends(the_room)]


def the_request(id: str, room: ThisRoom) -> str:
    """The id of something that is open in this room, and not in another one."""
    if id not in [request.id for request in room.asked()]:
        raise HTTPException(404, "nothing is open here under this id, or not any more")
    return id


OpenRequest = Annotated[str, Depends(the_request)]


class NewSession(BaseModel):
    """What a browser may say of a session that it wants."""

    title: str | None = None


class Prompt(BaseModel):
    """What a person says."""

    text: str


class Permission(BaseModel):
    """The id of an option; without one, it is rejected."""

    option: str | None = None


class Answers(BaseModel):
    """For each question its answers: ids of options, or texts. Without any, the question is rejected."""

    answers: list[list[str]] | None = None


@app.get("/")
async def page() -> FileResponse:
    """The chat."""
    return FileResponse(Path(__file__).with_name("index.html"))


@app.post("/sessions", status_code=201)
async def create_session(new: NewSession, rooms: AllRooms) -> Json:
    """Begin a session; everyone who has its id can join."""
    return {"id": (await rooms.create(new.title)).session.id}


@app.get("/sessions/{session_id}/events", response_class=EventSourceResponse)
async def events(room: ThisRoom, last_event_id: Annotated[int, Header(ge=0)] = 0) -> AsyncGenerator[ServerSentEvent]:
    """Tell a session from its beginning. A browser that was cut off says by itself what it saw last."""
    async for news in room.watch(last_event_id):
        if isinstance(news, list):
            # Without an id: it is the current state and not a past event, so every new connection gets it again.
            yield ServerSentEvent(event="asked", data=[card(request) for request in news])
        elif isinstance(news, LogEvent) and (shown := show(news.envelope)):
            yield ServerSentEvent(id=str(news.id), data=shown)


@app.post("/sessions/{session_id}/prompts", status_code=202)
async def send_prompt(room: ThisRoom, prompt: Prompt) -> None:
    """Send a prompt; the events bring what comes of it."""
    # A refusal comes at once. A turn may take an hour, and continues without a waiting request.
    with suppress(TimeoutError):
        await asyncio.wait_for(room.session.prompt(prompt.text), timeout=1)


@app.post("/sessions/{session_id}/permissions/{id}", status_code=204)
async def answer_permission(id: OpenRequest, answer: Permission, rooms: AllRooms) -> None:
    """Allow something, or do not. The first answer counts; a later one is a 404 or a 409."""
    if answer.option is None:
        await rooms.client.reject_permission(id)
    else:
        await rooms.client.reply_permission(id, answer.option)


@app.post("/sessions/{session_id}/questions/{id}", status_code=204)
async def answer_question(id: OpenRequest, answer: Answers, rooms: AllRooms) -> None:
    """Answer a question. When the answer does not fit, it is a 422, and the question stays open."""
    if answer.answers is None:
        await rooms.client.reject_question(id)
    else:
        await rooms.client.reply_question(id, answer.answers)


@app.exception_handler(SandboxAgentError)
async def refused(_: Request, error: Exception) -> JSONResponse:
    """Pass on what the browser can do something about; all else is the fault of what is behind us."""
    match error:
        case ServerProblem(status=404 | 409 | 422):
            return JSONResponse({"detail": error.detail}, error.status)
        case _:
            return JSONResponse({"detail": str(error)}, 503 if isinstance(error, ConnectionLost) else 502)


def card(request: PermissionRequest | QuestionRequest) -> Json:
    """What a browser needs in order to show a request and to answer it."""
    if isinstance(request, QuestionRequest):
        return {"kind": "question", **asdict(request)}
    options = [{"id": option.option_id, "name": option.name} for option in request.options]
    return {"kind": "permission", "id": request.id, "title": request.tool_call.title, "options": options}


def show(envelope: Json) -> Json | None:
    """What a browser sees of the log, which has more than it should know: how a session was made, for example."""
    match envelope:
        case {"method": "session/prompt", "params": {"prompt": content}}:
            return {"kind": "prompt", "content": content}
        case {"method": "session/update", "params": {"update": update}}:
            return {"kind": "update", "update": update}
        case {"method": "_sandboxagent/session/turn", "params": {"state": state, **rest}}:
            return {"kind": "turn", "state": state, "stopReason": rest.get("stopReason"), "error": rest.get("error")}
        case {"method": "_sandboxagent/session/decision", "params": {"outcome": outcome, **rest}}:
            return {"kind": "decision", "outcome": outcome, "option": rest.get("optionKind")}
        case {"method": "_sandboxagent/session/ended", "params": {"reason": reason}}:
            return {"kind": "ended", "reason": reason}
        case _:
            return None


class Server(uvicorn.Server):
    """Disconnects browsers before it stops: their streams do not end by themselves."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        app.state.rooms.close()
        await super().shutdown(sockets)


def main(agent: str = "mock", port: str = "8000") -> None:
    """Serve it, to this machine alone."""
    app.state.agent = agent
    with suppress(KeyboardInterrupt):
        Server(uvicorn.Config(app, port=int(port))).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
