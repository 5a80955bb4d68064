"""What agents ask in tests, and how to look at what one connection has been sent."""

import json
from itertools import count
from typing import Any

import httpx

from tests.support.client import META, Client, Event, Json, Stream
from tests.support.running import Server

PERMISSION = "session/request_permission"
QUESTION = "_sandboxagent/session/request_question"
ELICITATION = "elicitation/create"
CANCEL = "$/cancel_request"
TURN = "_sandboxagent/session/turn"
DECISION = "_sandboxagent/session/decision"
UNPARSED = "_sandboxagent/agent/unparsed"
ENDED = "_sandboxagent/session/ended"
TERMINATE = "_sandboxagent/session/terminate"

ALLOW: Json = {"outcome": {"outcome": "selected", "optionId": "yes"}}
REJECT: Json = {"outcome": {"outcome": "selected", "optionId": "no"}}
CANCELLED: Json = {"outcome": {"outcome": "cancelled"}}
PERMISSION_PARAMS: Json = {
    "toolCall": {"toolCallId": "call-1", "title": "Remove everything"},
    "options": [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "always", "name": "Always", "kind": "allow_always"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ],
}
QUESTION_PARAMS: Json = {"questionId": "q1", "prompt": "Which?", "options": [["a", "A"], ["b", "B"]]}
ELICITATION_PARAMS: Json = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}

_markers = count(1)


def permission(id: str | None = None) -> list[Any]:
    """A step that asks for permission; `id` is the JSON text of the request's id."""
    return ["ask", PERMISSION, PERMISSION_PARAMS] if id is None else ["ask_id", id, PERMISSION, PERMISSION_PARAMS]


async def opened(server: Server, agent: str = "scripted", **params: Any) -> httpx.Response:
    """The response to an `initialize` that opens a connection, whatever it is."""
    body = {"protocolVersion": 1, "clientCapabilities": {}, "_meta": {META: {"agent": agent}}, **params}
    client = Client(server)
    async with client.http:
        return await client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": body})


async def ask_outright(client: Client, session: str, *steps: list[Any]) -> None:
    """Prompt without waiting for the end of the turn; its response comes on the stream."""
    body = {"jsonrpc": "2.0", "id": f"turn-{next(_markers)}", "method": "session/prompt"}
    response = await client.post({**body, "params": client.prompt_params(session, list(steps))}, Prefer="respond-async")
    assert response.status_code == 202, response.text


async def everything(client: Client, stream: Stream) -> list[Event]:
    """All that a connection has been sent on this stream up to now."""
    id = f"marker-{next(_markers)}"
    body = {"jsonrpc": "2.0", "id": id, "method": "session/list", "params": {"cwd": "/nowhere"}}
    assert (await client.post(body, Prefer="respond-async")).status_code == 202
    await stream.until(lambda event: event.data.get("id") == id)
    return [event for event in stream.seen if not str(event.data.get("id")).startswith("marker-")]


async def received(client: Client, agent: str | None = None, session: str | None = None) -> list[str]:
    """Every line an agent has been sent."""
    params: Json = {} if agent is None else {"_meta": {META: {"agent": agent}}}
    if session is not None:
        params["sessionId"] = session
    return (await client.result("x/received", params))["lines"]


async def received_envelopes(client: Client) -> list[Json]:
    """Every JSON object among the lines an agent has been sent, by any client."""
    lines = [json.loads(line) for line in await received(client)]
    return [line for line in lines if isinstance(line, dict)]


def texts(events: list[Event], kind: str = "agent_message_chunk") -> list[str]:
    """The texts of the message chunks of a kind."""
    return [event.text for event in events if event.update.get("sessionUpdate") == kind]


def methods(events: list[Event]) -> list[str]:
    return [event.method for event in events]


def answer_line(line: str) -> Json:
    """An answer as the agent reported it."""
    return json.loads(line)
