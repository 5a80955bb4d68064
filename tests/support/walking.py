"""The walks of docs/architecture.md: what a client does for each, and the functions with which its stacks end."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from sandboxagent.adapters.opencode.events import EventBus
from sandboxagent.adapters.opencode.hub_client import HubClient
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.client.http_local import LocalHttpClient
from sandboxagent.core.discovery import read_server_record
from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.fleet.bus.nats import NatsBus
from sandboxagent.fleet.gateway.node_calls import NodeCalls
from sandboxagent.fleet.gateway.requests import FleetRequests
from sandboxagent.fleet.gateway.tunnels import NodeExchange
from sandboxagent.fleet.node.tunnels import NodeTunnels
from sandboxagent.server.agents.install.installer import Assembly, Installer
from sandboxagent.server.agents.install.record import Store
from sandboxagent.server.agents.process import AgentProcess
from sandboxagent.server.agents.start import AgentStarter
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.file_api.routes import FileRoutes
from sandboxagent.server.files.entries import IncomingFile
from sandboxagent.server.files.replace import Replacement
from sandboxagent.server.http.http1 import HttpServer
from sandboxagent.server.http.stream import Stream as OpenStream
from sandboxagent.server.http.stream import Streams
from sandboxagent.server.http.transport import BufferedTransport
from sandboxagent.server.log.log import Log
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.idempotency import Idempotency
from sandboxagent.server.sessions.requests import Requests
from tests.fleet.gateway.conftest import until_joined
from tests.support.call_stacks import CallStacks, End, Stack
from tests.support.client import Client, Event, Stream, run
from tests.support.nats import nats_server
from tests.support.package_server import PackageServer, bare, installed
from tests.support.running import Server

GATEWAY = "gateway-prompt"
"""The one that needs a fleet, and so a NATS server."""
OPENCODE = "opencode-prompt"

WALKS: dict[str, list[End]] = {
    "prompt": [End(AgentProcess.send)],
    "prompt-keyed": [End(Log.when_flushed, Idempotency.start), End(AgentProcess.send)],
    "prompt-async": [End(AgentProcess.send)],
    "session-new": [End(Tasks.run, Requests.submit), End(AgentProcess.send)],
    "notification": [End(AgentProcess.send)],
    "update": [End(BufferedTransport.write_part, Hub.record_updates)],
    "permission": [End(OpenStream.push, Hub.ask)],
    "answer": [End(Log.when_committed, Requests.answer), End(AgentProcess.send, Hub.settle)],
    "reconnect": [End(Tasks.run, HttpServer.run), End(Streams.open), End(Log.in_memory, OpenStream.next)],
    "crash": [End(ProcessTrees.forget), End(Supervisor._gone), End(Hub.move)],
    "install": [
        *(End(Tasks.run, HttpServer.run), End(Installer.begin), End(Store.begin), End(Assembly.record)),
        *(End(AgentStarter.verify), End(Store.write), End(Store.commit)),
    ],
    "upload": [
        *(End(Tasks.run, HttpServer.run), End(Pool.start, FileRoutes.put_file), End(IncomingFile.__init__)),
        *(End(IncomingFile.write), End(Replacement.commit)),
    ],
    GATEWAY: [
        *(End(Tasks.run, FleetRequests.submit), End(NodeCalls._call), End(NatsBus.publish, NodeExchange.begin)),
        *(End(Tasks.run, NodeTunnels._open), End(AgentProcess.send)),
    ],
    "run-hello": [End(read_server_record), End(LocalHttpClient.exchange)],
    OPENCODE: [
        *(End(Tasks.run, HttpServer.run), End(HubClient.prompt), End(AgentProcess.send)),
        *(End(EventBus.publish, Transcripts.appended), End(EventBus.flushed)),
    ],
}
"""By name: a walk goes through all of these stacks, one after another."""

TARGETS = {"prompt": 8, "session-new": 12, GATEWAY: 22, "run-hello": 14}
"""How many modules a walk is to visit at most."""

_ASKED = {"toolCall": {"toolCallId": "t"}, "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]}
_ASKING = [["ask", "session/request_permission", _ASKED], ["wait_answer"]]
_PROMPT = "Hello"
_keys = count(1)
Walked = dict[str, list[Stack]]
"""Stacks by the name of their walk."""


class Walker:
    """A client of a server whose call stacks are written down, with a stream and with a session that its agent has."""

    def __init__(self, stacks: CallStacks, client: Client, stream: Stream, session: str) -> None:
        self.stacks = stacks
        self.client = client
        self.stream = stream
        self.session = session
        self.begun = 0

    def begin(self) -> None:
        """Forget what has happened so far."""
        self.begun = self.stacks.count()

    async def prompt(self) -> None:
        """Send the same head and body as the prompt before, on the same socket."""
        self.begin()
        await self.client.prompt(self.session, _PROMPT)

    async def prompt_keyed(self) -> None:
        self.begin()
        params = self.client.prompt_params(self.session, _PROMPT)
        await self.client.call("session/prompt", params, Idempotency_Key=f"key-{next(_keys)}")

    async def prompt_async(self) -> None:
        self.begin()
        id = f"async-{next(_keys)}"
        params = self.client.prompt_params(self.session, _PROMPT)
        body = {"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params}
        response = await self.client.post(body, Prefer="respond-async")
        assert response.status_code == 202
        await self.stream.until(lambda event: event.data.get("id") == id)

    async def new_session(self) -> None:
        self.begin()
        await self.client.new_session()

    async def notify(self) -> None:
        self.begin()
        await self.client.notify("x/nothing", {"sessionId": self.session})

    async def update(self) -> None:
        self.begin()
        # Its line comes alone: the agent says no more before it is told to end the turn.
        turn = asyncio.ensure_future(self.client.prompt(self.session, [["say", _PROMPT], ["wait_cancel"]]))
        await self.stream.method("session/update")
        await self.client.notify("session/cancel", {"sessionId": self.session})
        await turn

    async def ask(self) -> None:
        self.begin()
        turn = asyncio.ensure_future(self.client.prompt(self.session, _ASKING))
        await self._answer(await self.stream.method("session/request_permission"))
        await turn

    async def answer(self) -> None:
        turn = asyncio.ensure_future(self.client.prompt(self.session, _ASKING))
        asked = await self.stream.method("session/request_permission")
        self.begin()
        await self._answer(asked)
        await turn

    async def crash(self) -> None:
        session = await self.client.new_session()
        self.begin()
        await self.client.call("session/prompt", self.client.prompt_params(session, [["kill"]]))
        # The next walk finds an agent that runs.
        self.session = await self.client.new_session()

    async def upload(self) -> None:
        self.begin()
        where = {"sessionId": self.session, "path": f"{self.client.server.work}/file"}
        response = await self.client.http.put("/v1/fs/file", params=where, content=b"content")
        assert response.status_code in (200, 201), response.text

    async def reconnect(self) -> None:
        self.begin()
        async with self.client.stream(Last_Event_ID="1") as stream:
            await stream.next()

    async def _answer(self, asked: Event) -> None:
        response = await self.client.answer(asked.data["id"], {"outcome": {"outcome": "selected", "optionId": "y"}})
        assert response.status_code == 202, response.text


_ACTS: dict[str, Callable[[Walker], Awaitable[None]]] = {
    "prompt": Walker.prompt,
    "prompt-keyed": Walker.prompt_keyed,
    "prompt-async": Walker.prompt_async,
    "session-new": Walker.new_session,
    "notification": Walker.notify,
    "answer": Walker.answer,
    "update": Walker.update,
    "permission": Walker.ask,
    "crash": Walker.crash,
    "upload": Walker.upload,
    # It ends the stream that the others read.
    "reconnect": Walker.reconnect,
}
"""Those that a client of one server can do."""


def at_server() -> Walked:
    """What a client does at a server, one act after another."""

    async def main(stacks: CallStacks, server: Server) -> Walked:
        found: Walked = {}
        async with Client(server) as client, client.stream() as stream:
            walker = Walker(stacks, client, stream, await client.new_session())
            for name, act in _ACTS.items():
                # What is done the first time only is no part of the walk.
                for _ in range(2):
                    await act(walker)
                found[name] = await asyncio.to_thread(stacks.wait_for, walker.begun, WALKS[name])
        return found

    with watched() as stacks, Server(anew=True, environment=stacks.environment) as server:
        return run(main(stacks, server))


def install() -> Walked:
    """A client has an agent installed."""

    async def main(shelf: PackageServer) -> None:
        client = bare(shelf.server)
        async with client.http:
            await installed(client, shelf.box())

    with (
        watched() as stacks,
        tempfile.TemporaryDirectory() as directory,
        PackageServer(Path(directory) / "shelf", anew=True, environment=stacks.environment) as shelf,
    ):
        begun = stacks.count()
        run(main(shelf))
        return {"install": stacks.wait_for(begun, WALKS["install"])}


def at_gateway() -> Walked:
    """A client prompts an agent through a gateway."""

    async def main(stacks: CallStacks, gateway: Server) -> list[Stack]:
        client = Client(gateway)
        async with client.http:
            await until_joined(client, 1)
            await client.initialize()
            session = await client.new_session()
            # The node meets the client.
            await client.prompt(session, _PROMPT)
            begun = stacks.count()
            await client.prompt(session, _PROMPT)
            return await asyncio.to_thread(stacks.wait_for, begun, WALKS[GATEWAY])

    with watched() as stacks, tempfile.TemporaryDirectory() as directory, nats_server(Path(directory)) as nats:
        joining = ("--join", nats.url)
        node = Server(*joining, "--node", "n1", anew=True, environment=stacks.environment)
        gateway = Server(*joining, anew=True, environment=stacks.environment, command="gateway")
        with gateway, node:
            return {GATEWAY: run(main(stacks, gateway))}


def at_bridge() -> Walked:
    """One of OpenCode's programs prompts an agent and reads its events."""

    async def main(stacks: CallStacks, server: Server) -> list[Stack]:
        client = Client(server)
        said = {"parts": [{"type": "text", "text": _PROMPT}], "model": {"providerID": "scripted", "modelID": "small"}}
        async with client.http, client.http.stream("GET", "/opencode/event") as events:
            assert events.status_code == 200
            created = await client.http.post("/opencode/session", json={}, params={"directory": server.work})
            begun = 0
            # The first prompt opens the session.
            for _ in range(2):
                begun = stacks.count()
                answer = await client.http.post(f"/opencode/session/{created.json()['id']}/message", json=said)
                assert answer.status_code == 200, answer.text
            return await asyncio.to_thread(stacks.wait_for, begun, WALKS[OPENCODE])

    with watched() as stacks, Server(anew=True, environment=stacks.environment) as server:
        return {OPENCODE: run(main(stacks, server))}


def run_hello() -> Walked:
    """`sandbox-agent run mock hello` finds the server by its data directory."""
    with watched() as stacks, Server(token=None) as server:
        command = ["run", "mock", "hello", "--data-dir", str(server.directory / "data")]
        subprocess.run(
            [sys.executable, "-m", "sandboxagent", *command],
            env={**os.environ, **stacks.environment},
            check=True,
            capture_output=True,
        )
        return {"run-hello": stacks.wait_for(0, WALKS["run-hello"])}


SCENES: list[tuple[Callable[[], Walked], list[str]]] = [
    (at_server, list(_ACTS)),
    (install, ["install"]),
    (at_gateway, [GATEWAY]),
    (run_hello, ["run-hello"]),
    (at_bridge, [OPENCODE]),
]
"""Each with the walks that it takes."""


def scene_of(name: str) -> Callable[[], Walked]:
    """The scene that takes a walk."""
    (scene,) = [scene for scene, names in SCENES if name in names]
    return scene


@contextmanager
def watched() -> Generator[CallStacks]:
    """The call stacks of programs, while the block lasts."""
    with tempfile.TemporaryDirectory() as directory:
        yield CallStacks(Path(directory), {end.function for ends in WALKS.values() for end in ends})
