"""docs/reference/methods.md: all methods and no other, and a server that runs takes and gives what it says."""

import asyncio
import json
import re
from base64 import b64encode
from typing import Any

import acp.schema
import msgspec
import pytest
from pydantic import TypeAdapter

from sandboxagent.protocol.files import FileView, Found
from sandboxagent.protocol.views import HealthView, InstallResult, SessionView
from sandboxagent.server.files.upload import Uploaded
from sandboxagent.server.sessions import requests as from_client
from tests.docs.source import announced_methods, answered_methods, host_methods, slugs
from tests.docs.wholeness import fits
from tests.support.archives import member, packed
from tests.support.client import Client, Json, Stream, run
from tests.support.running import BOUND, Server
from tools.reference.methods import Method, methods

METHODS = methods()
OURS = {name: method for name, method in METHODS.items() if name.startswith("_")}
CALLED = {name: method for name, method in OURS.items() if method.way == "client"}
RECEIVED = {name: method for name, method in OURS.items() if method.way == "server"}
ACPS = {name: method for name, method in METHODS.items() if name not in OURS}

# Where ACP's own models are: params, and the result of a request.
MODELS = {
    "initialize": ("InitializeRequest", "InitializeResponse"),
    "authenticate": ("AuthenticateRequest", "AuthenticateResponse"),
    "logout": ("LogoutRequest", "LogoutResponse"),
    "session/new": ("NewSessionRequest", "NewSessionResponse"),
    "session/load": ("LoadSessionRequest", "LoadSessionResponse"),
    "session/resume": ("ResumeSessionRequest", "ResumeSessionResponse"),
    "session/fork": ("ForkSessionRequest", "ForkSessionResponse"),
    "session/list": ("ListSessionsRequest", "ListSessionsResponse"),
    "session/prompt": ("PromptRequest", "PromptResponse"),
    "session/close": ("CloseSessionRequest", "CloseSessionResponse"),
    "session/delete": ("DeleteSessionRequest", "DeleteSessionResponse"),
    "session/set_mode": ("SetSessionModeRequest", "SetSessionModeResponse"),
    "session/set_config_option": ("SetSessionConfigOptionSelectRequest", "SetSessionConfigOptionResponse"),
    "session/cancel": ("CancelNotification", None),
    "session/update": ("SessionNotification", None),
    "session/request_permission": ("RequestPermissionRequest", "RequestPermissionResponse"),
    "elicitation/create": ("CreateElicitationRequest", "CreateElicitationResponse"),
    "fs/read_text_file": ("ReadTextFileRequest", "ReadTextFileResponse"),
    "fs/write_text_file": ("WriteTextFileRequest", "WriteTextFileResponse"),
    "terminal/create": ("CreateTerminalRequest", "CreateTerminalResponse"),
    "terminal/output": ("TerminalOutputRequest", "TerminalOutputResponse"),
    "terminal/wait_for_exit": ("WaitForTerminalExitRequest", "WaitForTerminalExitResponse"),
    "terminal/kill": ("KillTerminalRequest", "KillTerminalResponse"),
    "terminal/release": ("ReleaseTerminalRequest", "ReleaseTerminalResponse"),
}
VIEWS = {
    "uptimeMs": HealthView,
    "eventCount": SessionView,
    "alreadyInstalled": InstallResult,
    "entryType": FileView,
    "paths": Uploaded,
    "matches": Found,
}
"""Views of HTTP, each by a member that no other has."""
WITHOUT_A_MODEL = {"session/set_model", "$/cancel_request"}
"""Gone from ACP, and part of JSON-RPC's layer there."""


def test_every_method_of_ours_is_documented_and_no_other() -> None:
    called = {name for name in answered_methods() if name.startswith("_")}

    assert set(CALLED) == called
    assert set(RECEIVED) == {*from_client._ANNOUNCED, *announced_methods()}


def test_every_method_of_acp_that_is_answered_is_documented_and_no_other() -> None:
    answered = {name for name in answered_methods() if not name.startswith("_")}
    requests = {name for name, each in ACPS.items() if each.way == "client" and each.kind == "request"}
    asked = {name for name, each in ACPS.items() if each.way == "agent"}

    # These two are no entries of a table: the one opens a connection, the other begins a turn.
    assert requests == answered | {"initialize", "session/prompt"}
    assert asked == set(host_methods())


def test_every_error_of_a_method_has_a_name() -> None:
    errors = [(name, slug) for name, method in METHODS.items() for slug in method.errors]
    assert [(name, slug) for name, slug in errors if slug not in slugs()] == []


@pytest.mark.parametrize("name", OURS)
def test_an_example_of_ours_is_what_the_types_say(name: str) -> None:
    method = OURS[name]
    assert method.takes is not None
    fits(json.loads(method.example), method.takes)
    assert bool(method.answer) == (method.kind == "request") == (method.gives is not None)
    if method.gives is not None:
        fits(json.loads(method.answer), method.gives)


@pytest.mark.parametrize("name", ACPS)
def test_an_example_of_acps_is_what_acp_says(name: str) -> None:
    method = ACPS[name]
    assert (method.takes, method.gives) == (None, None)
    assert (name in MODELS) != (name in WITHOUT_A_MODEL)
    params, result = MODELS.get(name, (None, None))
    _is_acps(json.loads(method.example), params)
    assert bool(method.answer) == (method.kind == "request")
    _is_acps(json.loads(method.answer or "null"), result)


def _is_acps(value: object, model: str | None) -> None:
    if model is not None:
        TypeAdapter(getattr(acp.schema, model)).validate_python(value)


# --- a server that runs -----------------------------------------------------------------------------------------------


def test_a_server_takes_and_gives_what_is_documented() -> None:
    """Calls every method of ours, and is sent every one that clients are sent."""
    with Server("--log-max-bytes", "200KiB", "--replay-bytes", "20KiB") as server:
        called, received = run(_everything(server))

    assert called == set(CALLED)
    assert received == set(RECEIVED)


async def _everything(server: Server) -> tuple[set[str], set[str]]:
    async with Client(server) as client, client.stream() as stream:
        advertised = await _advertised(server)
        assert set(advertised) == set(OURS)
        caller = _Caller(client)
        session = await client.new_session(requestedSessionId="an-alias", title="A title")
        await _sessions(caller, session)
        await _files(caller, session)
        await caller("_sandboxagent/agent/list")
        await caller("_sandboxagent/agent/get", models=True)
        await caller("_sandboxagent/agent/install", agent="mock")
        await _asking(client, caller, stream, session)
        await _shell(client)
        await client.prompt(session, [["raw", "no envelope"], ["say", "x"]])
        for end in (["exit", 3], ["kill"]):
            await client.prompt(session, [["stderr", "last words"], end])
            await stream.method("_sandboxagent/session/ended")
        await caller("_sandboxagent/session/terminate", sessionId=session)
        again = await caller("_sandboxagent/session/terminate", sessionId=session)
        assert again["alreadyEnded"] is True
        await caller("_sandboxagent/session/detach", sessionId=session)
        received = {event.method for event in stream.seen if _is_told(event.data)}
    return caller.called, received | await _gap(server)


async def _shell(client: Client) -> None:
    """Run a command as OpenCode's programs do, the one way there is."""
    found = (await client.http.get("/opencode/session")).json()[-1]
    ran = await client.http.post(f"/opencode/session/{found['id']}/shell", json={"command": "echo hello"})
    assert ran.status_code == 200, ran.text


async def _advertised(server: Server) -> list[str]:
    client = Client(server)
    greeting = await client.initialize()
    await client.http.aclose()
    return greeting["result"]["agentCapabilities"]["_meta"]["sandboxagent.dev"]["extensions"]["methods"]


class _Caller:
    """Calls methods, and compares params and results with their documentation."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.called: set[str] = set()

    async def __call__(self, name: str, **params: Any) -> Json:
        method = CALLED[name]
        assert method.takes is not None
        assert method.gives is not None
        fits(params, method.takes)
        result = await self._client.result(name, params)
        fits(result, method.gives)
        self.called.add(name)
        return result


def _is_told(envelope: Json) -> bool:
    """Whether it is one of ours; then its params are as documented."""
    method: Method | None = RECEIVED.get(envelope.get("method", ""))
    if method is not None:
        assert method.takes is not None
        assert ("id" in envelope) == (method.kind == "request")
        fits(envelope["params"], method.takes)
    return method is not None


async def _sessions(caller: _Caller, session: str) -> None:
    await caller("_sandboxagent/session/attach", sessionId="an-alias")
    listed = await caller("_sandboxagent/session/list")
    await caller("_sandboxagent/session/changes", after=listed["changes"], wait=0)
    await caller("_sandboxagent/session/list", changedAfter=listed["changes"])
    await caller("_sandboxagent/session/get", sessionId=session)
    await caller("_sandboxagent/session/list_models", sessionId=session)
    await caller("_sandboxagent/session/list_models", agent="scripted")
    await caller("_sandboxagent/session/set_metadata", sessionId=session, metadata={"ticket": "A-1"})
    page = await caller("_sandboxagent/session/events", sessionId=session, after=0, limit=1)
    assert page["next"] == page["events"][0]["id"]


async def _files(caller: _Caller, session: str) -> None:
    await caller("_sandboxagent/fs/mkdir", path="folder", sessionId=session)
    content = b64encode(b"hello").decode()
    await caller("_sandboxagent/fs/write_file", path="folder/a", content=content, sessionId=session)
    read = await caller("_sandboxagent/fs/read_file", path="folder/a", offset=1, length=2, sessionId=session)
    assert read["content"] == b64encode(b"el").decode()
    await caller("_sandboxagent/fs/move", **{"from": "folder/a", "to": "folder/b"}, sessionId=session)
    await caller("_sandboxagent/fs/entries", path="folder", limit=1, sessionId=session)
    await caller("_sandboxagent/fs/stat", path="folder/b", follow=False, sessionId=session)
    await caller("_sandboxagent/fs/search", path="folder", text="hello", sessionId=session)
    archive = b64encode(packed(member("c", b"hello"))).decode()
    await caller("_sandboxagent/fs/upload_batch", path="folder", archive=archive, sessionId=session)
    await caller("_sandboxagent/fs/delete", path="folder", recursive=True, sessionId=session)


async def _asking(client: Client, caller: _Caller, stream: Stream, session: str) -> None:
    """A question and a permission, each answered."""
    question = json.loads(RECEIVED["_sandboxagent/session/request_question"].example)
    permission = json.loads(ACPS["session/request_permission"].example)
    for method, example in (
        ("_sandboxagent/session/request_question", question),
        ("session/request_permission", permission),
    ):
        params = {name: value for name, value in example.items() if name != "sessionId"}
        turn = asyncio.create_task(client.prompt(session, [["ask", method, params], ["wait_answer"]]))
        asked = await stream.method(method)
        (waiting,) = (await caller("_sandboxagent/session/pending", sessionId=session))["pending"]
        assert waiting["id"] == asked.data["id"]
        answer = await client.answer(asked.data["id"], json.loads(METHODS[method].answer))
        assert answer.status_code == 202, answer.text
        await turn


async def _gap(server: Server) -> set[str]:
    """What is sent to a client that comes back after too long."""
    async with Client(server) as client:
        session = await client.new_session()
        await client.prompt(session, [["flood", 50, 500], ["update", {"sessionUpdate": "usage_update"}]] * 20)
        async with asyncio.timeout(2 * BOUND):
            while True:
                # The log is trimmed soon, not at once.
                async with client.stream(Last_Event_ID="0") as stream:
                    first = await stream.next()
                if _is_told(first.data):
                    return {first.method}


# --- the contract's examples ------------------------------------------------------------------------------------------


def test_the_contracts_examples_are_what_the_types_say(contract_examples: list[Json]) -> None:
    found = [example for example in contract_examples if str(example.get("method", "")).startswith("_sandboxagent/")]

    assert found
    for example in found:
        method = OURS[example["method"]]
        assert method.takes is not None
        fits(example["params"], method.takes)


def test_the_contracts_views_are_what_the_types_say(contract_examples: list[Json]) -> None:
    seen = [(type, example) for example in contract_examples for name, type in VIEWS.items() if name in example]

    assert {type for type, _ in seen} == set(VIEWS.values())
    for type, example in seen:
        fits(example, type)


@pytest.fixture
def contract_examples() -> list[Json]:
    from tests.docs.pages import DOCS

    blocks = re.findall(r"^```json\n(.*?)^```$", (DOCS / "contract.md").read_text(), re.MULTILINE | re.DOTALL)
    return [msgspec.json.decode(block) for block in blocks]
