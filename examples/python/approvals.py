"""A web application that keeps agents' requests as buttons in SQLite, and draws sessions on the server.

usage: python examples/python/approvals.py [agent] [port]

Then open http://127.0.0.1:8001/. The sandbox-agent server is the one at SANDBOX_AGENT_URL, with SANDBOX_AGENT_TOKEN.
You may stop this application while an agent waits, and start it again: its buttons still work, once. They are in
approvals.sqlite, in the current directory.
"""

import os
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sandboxagent import (
    AlreadyAnswered,
    PermissionRequest,
    RequestItem,
    SandboxAgent,
    SandboxAgentError,
    SessionView,
    TextItem,
    ToolCallItem,
    UserItem,
)

AGENT = sys.argv[1] if len(sys.argv) > 1 else "mock"
PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 8001
# Two ids are all that is needed to show a request and to answer it.
TABLE = "create table if not exists buttons (request_id text primary key, session_id text not null)"
ADD = "insert or ignore into buttons values (?, ?)"
ALL = "select request_id, session_id from buttons"
REMOVE = "delete from buttons where request_id = ?"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """Have one database, and one client of the server, for all requests."""
    database = app.state.database = sqlite3.connect("approvals.sqlite", isolation_level=None)
    database.execute(TABLE)

    def keep(request: PermissionRequest) -> None:
        # Without an answer of this handler the request stays open, for whoever presses its button.
        database.execute(ADD, [request.id, request.session_id])

    url, token = os.environ.get("SANDBOX_AGENT_URL", "http://127.0.0.1:2468"), os.environ.get("SANDBOX_AGENT_TOKEN")
    async with SandboxAgent.connect(url, token, name="approvals", on_permission=keep) as app.state.client:
        yield
    database.close()


async def home(request: Request) -> Response:
    """Show all buttons whose requests are still open, and a form for a new session."""
    database: sqlite3.Connection = request.app.state.database
    cards: list[str] = []
    for id, session_id in database.execute(ALL).fetchall():
        found = await find(request.app.state.client, id, session_id)
        if found is None:
            database.execute(REMOVE, [id])
        else:
            cards.append(card(found))
    begin = '<form method="post" action="/sessions"><input name="prompt" autofocus><button>Start</button></form>'
    return page("".join(cards) or "<p>Nothing waits for you.</p>", begin)


async def find(client: SandboxAgent, id: str, session_id: str) -> PermissionRequest | None:
    """Find a request by its stored ids; None if it is no longer open."""
    try:
        pending = await client.pending(session_id)
    except SandboxAgentError:  # The session is gone.
        return None
    return next((each for each in pending if each.id == id and isinstance(each, PermissionRequest)), None)


def card(request: PermissionRequest) -> str:
    """Draw the buttons of a request."""
    title = f'<a href="/sessions/{escape(request.session_id)}">{escape(request.tool_call.title or "")}</a>'
    hidden = f'<input type="hidden" name="session" value="{escape(request.session_id)}">'
    options = [(escape(each.option_id), escape(each.name)) for each in request.options]
    buttons = "".join(f'<button name="option" value="{id}">{name}</button>' for id, name in options)
    return f'<form method="post" action="/requests/{escape(request.id)}">{title} {hidden}{buttons}</form>'


async def create(request: Request) -> Response:
    """Start a session in the current directory. The turn runs whether somebody watches or not."""
    client: SandboxAgent = request.app.state.client
    session = await client.sessions.create(AGENT, cwd=Path.cwd())
    session.prompt((await form(request)).get("prompt", ""))
    return RedirectResponse(f"/sessions/{session.id}", 303)


async def answer(request: Request) -> Response:
    """Press a button. Two people may press at the same time: the first one counts, and the other one is told."""
    client: SandboxAgent = request.app.state.client
    fields, id = await form(request), request.path_params["id"]
    try:
        await client.reply_permission(id, fields.get("option", ""), session_id=fields.get("session"))
    except AlreadyAnswered as error:
        decision = error.decision
        chosen = "" if decision is None else f": {decision.option_id} by {decision.by.get('kind')}"
        return page(f"<p>Too late. It was {escape(error.outcome + chosen)}.</p>", status=409)
    except SandboxAgentError as error:
        return page(f"<p>Not answered: {escape(error.message)}</p>", status=404)
    return RedirectResponse(f"/sessions/{fields.get('session')}", 303)


async def session(request: Request) -> Response:
    """Draw a session: its past, and what it waits for."""
    client: SandboxAgent = request.app.state.client
    following = (await client.sessions.attach(request.path_params["id"])).follow()
    async for _ in following:
        if following.is_live:
            break
    following.close()
    return page(draw(following.view))


def draw(view: SessionView) -> str:
    """Draw a view as HTML. An agent's text may contain anything, so all of it is escaped."""
    parts = [f"<h1>{escape(view.title or view.agent or 'Session')}: {view.status}</h1>"]
    for item in (item for turn in view.turns for item in turn.items):
        match item:
            case UserItem(blocks=blocks):
                parts.append(f"<h2>{escape(' '.join(str(block.get('text', '')) for block in blocks))}</h2>")
            case TextItem(text=text):
                parts.append(f"<p>{escape(text)}</p>")
            case ToolCallItem(title=title, status=status):
                parts.append(f"<p><code>{status}</code> {escape(title)}</p>")
            case RequestItem(decision=decision):
                outcome = "waits for you" if decision is None else f"{decision.outcome} {decision.option_id or ''}"
                parts.append(f'<p><a href="/">permission</a>: {escape(outcome)}</p>')
            case _:
                pass  # Not shown here.
    return "".join(parts)


def page(*parts: str, status: int = 200) -> HTMLResponse:
    """Make a page, which is read again every two seconds."""
    head = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>Approvals</title>'
    return HTMLResponse(f"{head}{''.join(parts)}", status)


async def form(request: Request) -> dict[str, str]:
    """Read the fields of a form."""
    written = (await request.body()).decode(errors="replace")
    return {name: values[0] for name, values in parse_qs(written).items()}


app = Starlette(
    routes=[
        Route("/", home),
        Route("/sessions", create, methods=["POST"]),
        Route("/sessions/{id}", session),
        Route("/requests/{id}", answer, methods=["POST"]),
    ],
    # Else a page from anywhere could let its own name lead here, and press the buttons of a visitor.
    middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
    lifespan=lifespan,
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
