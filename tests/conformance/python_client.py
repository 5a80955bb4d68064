"""The official Python SDK as a client of ours, whichever release is on the path.

Usage: python python_client.py <settings as JSON>. Plays each scenario over each transport, and writes a line of JSON
for each: {"scenario", "failure"}.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import acp
from acp import connection as acp_connection
from acp.http import client as http_client
from acp.http.client import create_http_stream
from acp.schema import ClientCapabilities, TextContentBlock
from acp.ws.client import create_websocket_stream

SETTINGS = json.loads(sys.argv[1])
CWD: str = SETTINGS["cwd"]
HEADERS = {"Authorization": f"Bearer {SETTINGS['token']}"}
ASK = [
    "ask",
    "session/request_permission",
    {
        "toolCall": {"toolCallId": "call-1", "title": "Remove"},
        "options": [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ],
    },
]
httpx: Any = getattr(http_client, "httpx2", None) or vars(http_client)["httpx"]
"""Releases differ in which one they use."""
Scenario = Callable[[], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, *, is_known: bool = True) -> Callable[[Scenario], Scenario]:
    """Play this, unless the release of the SDK does not know what it is about."""

    def remember(play: Scenario) -> Scenario:
        if is_known:
            SCENARIOS[name] = play
        return play

    return remember


class Person:
    """What a client hears, and how it answers."""

    def __init__(self, *, answers: bool = True) -> None:
        self.updates: list[tuple[str, Any]] = []
        self.asked = asyncio.Event()
        self.news = asyncio.Event()
        self._answers = answers
        self.agent: Any

    def on_connect(self, connection: Any) -> None: ...

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))
        self.news.set()

    async def request_permission(self, **_: Any) -> Any:
        self.asked.set()
        if not self._answers:
            await asyncio.Event().wait()
        return {"outcome": {"outcome": "selected", "optionId": "yes"}}

    async def read_text_file(self, **_: Any) -> Any:
        return {"content": "of the client"}

    async def create_elicitation(self, **_: Any) -> Any:
        return {"action": "accept", "content": {"name": "Ada"}}

    async def ext_notification(self, method: str, params: Any) -> None: ...

    async def ext_method(self, method: str, params: Any) -> Any:
        raise acp.RequestError.method_not_found(method)

    def texts(self, session: str) -> list[str]:
        chunks = [one for id, one in self.updates if id == session and one.session_update == "agent_message_chunk"]
        return [chunk.content.text for chunk in chunks]

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def new_session(self) -> str:
        return (await self.agent.new_session(cwd=CWD, mcp_servers=[])).session_id

    async def prompt(self, session: str, program: object) -> str:
        text = program if isinstance(program, str) else json.dumps(program)
        answer = await self.agent.prompt(session_id=session, prompt=[TextContentBlock(type="text", text=text)])
        return answer.stop_reason

    async def join(self, session: str) -> None:
        await self.agent.resume_session(session_id=session, cwd=CWD, mcp_servers=[])


async def transport() -> Any:
    match SETTINGS["transport"]:
        case "http":
            # The SDK's own would load certificates, which takes longer than most scenarios.
            client = httpx.AsyncClient(timeout=httpx.Timeout(None), trust_env=False, verify=False)
            return create_http_stream(f"{SETTINGS['url']}/acp", headers=HEADERS, client=client)
        case kind:
            path = "/acp" if kind == "websocket" else "/v1/rpc"
            return await create_websocket_stream(SETTINGS["url"].replace("http", "ws", 1) + path, headers=HEADERS)


@asynccontextmanager
async def people(
    count: int, *, answers: bool = True, capabilities: dict[str, Any] | None = None
) -> AsyncGenerator[list[Person]]:
    found: list[Person] = []
    try:
        for _ in range(count):
            person = Person(answers=answers)
            person.agent = acp.connect_to_agent(person, await transport(), use_unstable_protocol=True)
            person.greeting = await person.agent.initialize(
                protocol_version=acp.PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities.model_validate(capabilities or {}),
            )
            found.append(person)
        yield found
    finally:
        for person in found:
            await person.agent.close()


@scenario("initialize")
async def _initialize() -> None:
    async with people(1) as [one]:
        assert one.greeting.protocol_version == acp.PROTOCOL_VERSION
        assert one.greeting.agent_capabilities.load_session


@scenario("prompt")
async def _prompt() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        assert await one.prompt(session, "hello") == "end_turn"
        await one.until(lambda: one.texts(session) == ["hello"])


@scenario("500 updates in order")
async def _order() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        await one.prompt(session, [["flood", 500, 20]])
        await one.until(lambda: len(one.texts(session)) == 500)
        assert [int(text.split()[0]) for text in one.texts(session)] == list(range(500))


@scenario("permission")
async def _permission() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        await one.prompt(session, [ASK, ["echo_answer"]])
        await one.until(lambda: any("yes" in text for text in one.texts(session)))


@scenario("permission and cancel")
async def _permission_and_cancel() -> None:
    async with people(1, answers=False) as [one]:
        session = await one.new_session()
        turn = asyncio.create_task(one.prompt(session, [ASK, ["wait_answer"]]))
        await one.asked.wait()
        await one.agent.cancel(session_id=session)
        assert await turn == "cancelled"


@scenario("fs")
async def _fs() -> None:
    async with people(1, capabilities={"fs": {"readTextFile": True}}) as [one]:
        session = await one.new_session()
        await one.prompt(session, [["ask", "fs/read_text_file", {"path": f"{CWD}/a"}], ["echo_answer"]])
        await one.until(lambda: any("of the client" in text for text in one.texts(session)))


@scenario("elicitation")
async def _elicitation() -> None:
    async with people(1, capabilities={"elicitation": {"form": {}}}) as [one]:
        session = await one.new_session()
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        form = {"mode": "form", "message": "Who?", "requestedSchema": schema}
        await one.prompt(session, [["ask", "elicitation/create", form], ["echo_answer"]])
        await one.until(lambda: any("accept" in text and "Ada" in text for text in one.texts(session)))


@scenario("terminal")
async def _terminal() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        # Terminals are the server's: its client need not have any.
        await one.prompt(session, [["ask", "terminal/create", {"command": "echo hello"}], ["echo_answer"]])
        await one.until(lambda: any("terminalId" in text for text in one.texts(session)))


@scenario("$/cancel_request", is_known=hasattr(acp_connection, "_CANCEL_REQUEST_METHOD"))
async def _cancel_request() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        first = asyncio.create_task(one.prompt(session, [["say", "begun"], ["wait_cancel"]]))
        await one.until(lambda: one.texts(session))
        second = asyncio.create_task(one.prompt(session, "not yet"))
        # Sent by HTTP, it may arrive after what is sent later.
        while "not yet" not in str(await one.agent.ext_method("sandboxagent/session/events", {"sessionId": session})):
            pass
        second.cancel()
        await asyncio.wait([second])
        await one.agent.cancel(session_id=session)
        assert await first == "cancelled"
        assert await one.prompt(session, "after") == "end_turn"
        await one.until(lambda: "after" in one.texts(session))
        assert one.texts(session) == ["begun", "after"]


@scenario("cancel")
async def _cancel() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        turn = asyncio.create_task(one.prompt(session, [["say", "begun"], ["wait_cancel"]]))
        await one.until(lambda: one.texts(session))
        await one.agent.cancel(session_id=session)
        assert await turn == "cancelled"


@scenario("two sessions")
async def _two_sessions() -> None:
    async with people(1) as [one]:
        sessions = [await one.new_session(), await one.new_session()]
        await asyncio.gather(*(one.prompt(each, [["flood", 100, 20], ["say", each]]) for each in sessions))
        for each in sessions:
            await one.until(lambda each=each: each in one.texts(each)[-1:])


@scenario("equal ids on several connections")
async def _equal_ids() -> None:
    async with people(3) as all:

        async def talk(person: Person, word: str) -> None:
            session = await person.new_session()
            await person.prompt(session, [ASK, ["wait_answer"], ["say", word]])
            await person.until(lambda: person.texts(session) == [word])

        await asyncio.gather(*(talk(each, str(number)) for number, each in enumerate(all)))


@scenario("load and list")
async def _load() -> None:
    async with people(2) as [one, two]:
        session = await one.new_session()
        await one.prompt(session, [["flood", 50, 20]])
        await two.agent.load_session(session_id=session, cwd=CWD, mcp_servers=[])
        await two.until(lambda: len(two.texts(session)) == 50)
        await two.prompt(session, "after the load")
        await two.until(lambda: two.texts(session)[-1] == "after the load")
        assert session in [each.session_id for each in (await one.agent.list_sessions()).sessions]


@scenario("resume and close")
async def _resume() -> None:
    async with people(2) as [one, two]:
        session = await one.new_session()
        await two.join(session)
        await two.prompt(session, "resumed")
        await two.until(lambda: two.texts(session) == ["resumed"])
        await one.agent.close_session(session_id=session)
        await two.prompt(session, "and back")
        await two.until(lambda: two.texts(session)[-1] == "and back")


@scenario("1 MiB both ways")
async def _long() -> None:
    async with people(1) as [one]:
        session = await one.new_session()
        # One release breaks where a character is cut in two, with any server: so these are plain. Frames over 1 MiB
        # are more than it takes on a WebSocket.
        text = "e" * ((1 << 20) - 4096)
        await one.prompt(session, text)
        await one.until(lambda: "".join(one.texts(session)) == text)


@scenario("errors and unknown methods")
async def _errors() -> None:
    async with people(1) as [one]:
        for asking, code in (
            (one.agent.ext_method("nonesuch", {}), -32601),
            (one.prompt("nonesuch", "x"), -32002),
            (one.agent.new_session(cwd="relative", mcp_servers=[]), -32602),
        ):
            [failed] = await asyncio.gather(asking, return_exceptions=True)
            assert isinstance(failed, acp.RequestError), failed
            assert failed.code == code, failed
        session = await one.new_session()
        assert await one.prompt(session, "well") == "end_turn"


@scenario("broadcast and isolation")
async def _broadcast() -> None:
    async with people(3) as [one, two, three]:
        session = await one.new_session()
        await two.join(session)
        await one.prompt(session, [["flood", 100, 20]])
        await two.until(lambda: len(two.texts(session)) == 100)
        assert [int(text.split()[0]) for text in two.texts(session)] == list(range(100))
        assert three.updates == []


@scenario("the first answer wins")
async def _first() -> None:
    async with people(2) as [one, two]:
        session = await one.new_session()
        await two.join(session)
        await one.prompt(session, [ASK, ["wait_answer"], ["say", "went on"]])
        await one.until(lambda: one.texts(session) == ["went on"])
        for each in (one, two):
            assert await each.prompt(session, "fine") == "end_turn"


@scenario("the prompter leaves with a permission pending")
async def _leaves() -> None:
    async with people(1, answers=False) as [one]:
        session = await one.new_session()
        turn = asyncio.create_task(one.prompt(session, [ASK, ["wait_answer"], ["say", "went on"]]))
        await one.asked.wait()
    await asyncio.wait([turn])
    turn.cancelled() or turn.exception()
    async with people(1) as [two]:
        await two.join(session)
        await two.until(lambda: "went on" in two.texts(session))


@scenario("cancel by another")
async def _cancel_by_another() -> None:
    async with people(2) as [one, two]:
        session = await one.new_session()
        await two.join(session)
        turn = asyncio.create_task(one.prompt(session, [["say", "begun"], ["wait_cancel"]]))
        await two.until(lambda: two.texts(session))
        await two.agent.cancel(session_id=session)
        assert await turn == "cancelled"


@scenario("20 clients")
async def _twenty() -> None:
    async with people(20) as [first, *others]:
        session = await first.new_session()
        for each in others:
            await each.join(session)
        await first.prompt(session, [["flood", 20, 20]])
        for each in others:
            await each.until(lambda each=each: len(each.texts(session)) == 20)


async def play(scenario: Scenario) -> str | None:
    try:
        async with asyncio.timeout(60):
            await scenario()
    except BaseException:
        return traceback.format_exc()
    return None


for way in SETTINGS["transports"]:
    SETTINGS["transport"] = way
    for name, one in SCENARIOS.items():
        print(json.dumps({"scenario": f"{way}: {name}", "failure": asyncio.run(play(one))}), flush=True)
