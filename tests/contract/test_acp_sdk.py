"""The upstream Python SDK as a client: its models check our envelopes, its connection our order."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import acp
import httpx
import pytest
from acp.client.connection import ClientSideConnection
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    Implementation,
    RequestPermissionResponse,
    TextContentBlock,
)

from tests.support.client import META, Json, run
from tests.support.running import BOUND, Server


class HttpTransport:
    """The SDK's messages over our transport: POST what goes out, take in what answers and what streams."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.AsyncClient(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=httpx.Timeout(30),
            trust_env=False,
            verify=False,
        )
        self._arrived: asyncio.Queue[Json | None] = asyncio.Queue()
        self._seen = asyncio.Condition()
        self._last_event = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.statuses: list[int] = []

    async def send(self, message: Json) -> None:
        if message.get("method") == "initialize":
            await self._initialize(message)
        elif "method" in message and "id" in message:
            self._spawn(self._ask(message))
        else:
            response = await self._http.post("/v1/rpc", json=message)
            self.statuses.append(response.status_code)

    async def receive(self) -> Json | None:
        return await self._arrived.get()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()
        await self._arrived.put(None)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _initialize(self, message: Json) -> None:
        response = await self._http.post("/v1/rpc", json=message)
        response.raise_for_status()
        self._http.headers["X-ACP-Connection-Id"] = response.headers["X-ACP-Connection-Id"]
        opened = asyncio.Event()
        self._spawn(self._read(opened))
        await opened.wait()
        await self._arrived.put(response.json())

    async def _ask(self, message: Json) -> None:
        response = await self._http.post("/v1/rpc", json=message)
        self.statuses.append(response.status_code)
        # The answer may overtake the updates before it; the header says how many there were.
        async with self._seen:
            await self._seen.wait_for(lambda: self._last_event >= int(response.headers["X-ACP-Last-Event-Id"]))
        await self._arrived.put(response.json())

    async def _read(self, opened: asyncio.Event) -> None:
        headers = {"Accept": "text/event-stream"}
        async with self._http.stream("GET", "/v1/rpc", headers=headers) as response:
            response.raise_for_status()
            opened.set()
            position = 0
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    position = int(value)
                elif name == "data":
                    await self._arrived.put(json.loads(value))
                    async with self._seen:
                        self._last_event = position
                        self._seen.notify_all()


class Person:
    """The client's side: allows what it is asked, and writes down what it gets."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.extensions: list[tuple[str, Json]] = []
        self.told = asyncio.Event()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any
    ) -> RequestPermissionResponse:
        self.asked.append(tool_call)
        [allow] = [option for option in options if option.kind == "allow_once"]
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=allow.option_id))

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self.told.set()

    async def ext_notification(self, method: str, params: Json) -> None:
        self.extensions.append((method, params))

    async def ext_method(self, method: str, params: Json) -> Json:
        raise acp.RequestError.method_not_found(method)

    @property
    def text(self) -> str:
        chunks = [update for update in self.updates if update.session_update == "agent_message_chunk"]
        return "".join(chunk.content.text for chunk in chunks)


@pytest.fixture(scope="module")
def mock_server() -> Generator[Server]:
    with Server() as running:
        yield running


@asynccontextmanager
async def connected(server: Server) -> AsyncGenerator[tuple[ClientSideConnection, Person, HttpTransport]]:
    person, transport = Person(), HttpTransport(server)
    connection = acp.connect_to_agent(person, transport, use_unstable_protocol=True)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(2 * BOUND):  # the first one boots the mock agent
            yield connection, person, transport
    finally:
        await connection.close()
        await transport.close()


async def begin(connection: ClientSideConnection, server: Server) -> str:
    await connection.initialize(
        protocol_version=acp.PROTOCOL_VERSION,
        client_capabilities=ClientCapabilities(),
        client_info=Implementation(name="upstream", version="1"),
        **{META: {"agent": "mock"}},
    )
    return (await connection.new_session(cwd=server.work, mcp_servers=[])).session_id


def text(words: str) -> list[TextContentBlock]:
    return [TextContentBlock(type="text", text=words)]


@pytest.mark.requirement("6.upstream-sdk")
def test_the_sdk_understands_the_handshake(mock_server: Server) -> None:
    async def main() -> None:
        async with connected(mock_server) as (connection, _, _):
            answer = await connection.initialize(
                protocol_version=acp.PROTOCOL_VERSION, client_capabilities=None, **{META: {"agent": "mock"}}
            )
            assert answer.protocol_version == acp.PROTOCOL_VERSION
            assert answer.agent_info is not None
            assert answer.agent_info.name == "mock"
            assert answer.agent_capabilities is not None
            assert answer.agent_capabilities.load_session is True
            assert answer.agent_capabilities.field_meta is not None
            assert answer.agent_capabilities.field_meta[META]["extensions"]["methods"]

    run(main())


@pytest.mark.requirement("6.upstream-sdk")
def test_a_turn_of_the_sdk_has_all_its_updates_before_its_result(mock_server: Server) -> None:
    async def main() -> None:
        async with connected(mock_server) as (connection, person, _):
            session = await begin(connection, mock_server)
            result = await connection.prompt(session_id=session, prompt=text("echo these few words"))
            assert result.stop_reason == "end_turn"
            assert "echo these few words" in person.text
            turns = [params["state"] for method, params in person.extensions if method.endswith("session/turn")]
            assert turns == ["started", "ended"]

    run(main())


@pytest.mark.requirement("6.upstream-sdk")
def test_the_sdk_is_asked_for_permission_and_its_answer_reaches_the_agent(mock_server: Server) -> None:
    async def main() -> None:
        async with connected(mock_server) as (connection, person, transport):
            session = await begin(connection, mock_server)
            result = await connection.prompt(session_id=session, prompt=text("permission"))
            assert result.stop_reason == "end_turn"
            assert len(person.asked) == 1
            kinds = [update.session_update for update in person.updates]
            assert "tool_call_update" in kinds
            statuses = [u.status for u in person.updates if u.session_update.startswith("tool_call")]
            assert statuses[-1] == "completed"
            assert set(transport.statuses) == {200, 202}

    run(main())


@pytest.mark.requirement("6.upstream-sdk")
def test_a_cancel_by_the_sdk_ends_its_turn(mock_server: Server) -> None:
    async def main() -> None:
        async with connected(mock_server) as (connection, person, _):
            session = await begin(connection, mock_server)
            person.told.clear()
            turn = asyncio.create_task(connection.prompt(session_id=session, prompt=text("slow 30")))
            while "slow" not in person.text and not person.text:
                person.told.clear()
                await person.told.wait()
            await connection.cancel(session_id=session)
            assert (await turn).stop_reason == "cancelled"

    run(main())


@pytest.mark.requirement("6.upstream-sdk")
def test_the_sdk_reads_our_inventory_and_loads_resumes_forks_and_closes_sessions(mock_server: Server) -> None:
    async def main() -> None:
        async with connected(mock_server) as (connection, person, _):
            session = await begin(connection, mock_server)
            await connection.prompt(session_id=session, prompt=text("echo remembered"))
            listed = await connection.list_sessions(cwd=mock_server.work)
            [entry] = [one for one in listed.sessions if one.session_id == session]
            assert entry.cwd == mock_server.work
            assert entry.field_meta is not None
            assert entry.field_meta[META]["agent"] == "mock"

            person.updates.clear()
            await connection.load_session(cwd=mock_server.work, session_id=session, mcp_servers=[])
            assert "echo remembered" in person.text
            await connection.resume_session(session_id=session, cwd=mock_server.work, mcp_servers=[])
            await connection.set_session_mode(session_id=session, mode_id="plan")
            options = await connection.set_config_option(config_id="model", session_id=session, value="mock-large")
            assert options.config_options
            fork = await connection.fork_session(session_id=session, cwd=mock_server.work, mcp_servers=[])
            assert fork.session_id != session
            await connection.close_session(session_id=fork.session_id)

    run(main())


@pytest.mark.requirement("6.upstream-sdk")
def test_errors_are_errors_of_the_sdk(mock_server: Server) -> None:
    async def main() -> None:
        async with connected(mock_server) as (connection, _, _):
            await begin(connection, mock_server)
            with pytest.raises(acp.RequestError) as unknown:
                await connection.prompt(session_id="none", prompt=text("hello"))
            assert unknown.value.code == -32002
            with pytest.raises(acp.RequestError) as relative:
                await connection.new_session(cwd="relative", mcp_servers=[])
            assert relative.value.code == -32602

    run(main())
