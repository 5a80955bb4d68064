"""The companion of OpenCode, before a port that speaks as OpenCode's does."""

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from sandboxagent.server.agents.dialects.opencode import OpenCode, Timeouts, listening_ports
from tests.support.client import Json, run
from tests.support.running import BOUND

QUICK = Timeouts(connect=2, tries=(0, 0.01), event=5, post=5, again=0.01, cancel=0.05)
QUESTION = {
    "id": "que_1",
    "sessionID": "ses_1",
    "questions": [{"header": "Database", "question": "Which?", "options": [{"label": "SQLite", "description": "x"}]}],
    "tool": {"callID": "call_1"},
}
SECRET = "secret"


class Port:
    """A port with a stream of events, and a place for answers."""

    def __init__(self) -> None:
        self.number = 0
        self.posted: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
        self.streams: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.serving: list[asyncio.Task[None] | None] = []
        self.refused: set[str] = set()
        """Paths that end so are answered 400."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._one(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *headers = head.split("\r\n")
        fields = {name.lower(): value for name, _, value in (header.partition(": ") for header in headers)}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        method, path, _ = line.split(" ")
        expected = base64.b64encode(f"opencode:{SECRET}".encode()).decode()
        if fields.get("authorization") != f"Basic {expected}":
            writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        elif method == "GET":
            assert path == "/global/event"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            await writer.drain()
            self.streams.put_nowait(writer)
        else:
            assert fields["x-opencode-directory"] == "/srv/a%20b"
            self.posted.put_nowait((path, json.loads(body)))
            status = b"400 No" if path.rpartition("/")[2] in self.refused else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 4\r\n\r\ntrue" % status)


class Scene:
    """A companion in front of that port, and what it has said."""

    def __init__(self, port: Port, companion: OpenCode) -> None:
        self.port = port
        self.companion = companion
        self.said: asyncio.Queue[Json] = asyncio.Queue()
        self.stream: asyncio.StreamWriter

    def say(self, line: bytes) -> None:
        self.said.put_nowait(json.loads(line))

    def tell(self, kind: str, facts: Json) -> None:
        event = {"directory": "/srv/a b", "payload": {"type": kind, "properties": facts}}
        self.stream.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")

    async def asked(self) -> Json:
        self.tell("question.asked", QUESTION)
        return await self.next()

    async def next(self) -> Json:
        return await asyncio.wait_for(self.said.get(), BOUND)

    async def posted(self) -> tuple[str, Json]:
        return await asyncio.wait_for(self.port.posted.get(), BOUND)

    def answer(self, id: object, result: Json) -> bool:
        return self.companion.answer(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())


@asynccontextmanager
async def opened() -> AsyncGenerator[Port]:
    port = Port()
    server = await asyncio.start_server(port.serve, "127.0.0.1", 0)
    port.number = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()
        # A companion that is stopped closes all its sockets.
        await asyncio.wait_for(asyncio.gather(*(task for task in port.serving if task)), BOUND)


def companion_at(*ports: int, password: str = SECRET) -> OpenCode:
    companion = OpenCode(lambda _: list(ports), QUICK)
    environment = companion.prepare({"OPENCODE_SERVER_PASSWORD": password})
    assert environment["OPENCODE_ENABLE_QUESTION_TOOL"] == "1"
    return companion


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    async with opened() as port:
        companion = companion_at(port.number)
        scene = Scene(port, companion)
        assert await companion.connect(1)
        companion.start(scene.say)
        scene.stream = await asyncio.wait_for(port.streams.get(), BOUND)
        try:
            yield scene
        finally:
            companion.stop()


def test_a_question_is_said_as_if_the_agent_had_asked_it() -> None:
    async def main() -> None:
        async with scene() as here:
            said = await here.asked()
            assert (said["id"], said["method"]) == ("que_1", "_sandboxagent/session/request_question")
            assert said["params"]["sessionId"] == "ses_1"
            assert said["params"]["toolCallId"] == "call_1"
            assert said["params"]["questions"][0]["options"] == [
                {"id": "SQLite", "label": "SQLite", "description": "x"}
            ]

    run(main())


@pytest.mark.parametrize(
    ("result", "what", "body"),
    [
        ({"status": "answered", "answers": [["SQLite", "mine"]]}, "reply", {"answers": [["SQLite", "mine"]]}),
        ({"status": "rejected"}, "reject", {}),
        ({"status": "cancelled"}, "reject", {}),
        ({}, "reject", {}),
    ],
    ids=["answered", "rejected", "cancelled", "odd"],
)
def test_an_answer_goes_to_where_the_question_came_from(result: Json, what: str, body: Json) -> None:
    async def main() -> None:
        async with scene() as here:
            await here.asked()
            assert here.answer("que_1", result)
            assert await here.posted() == (f"/question/que_1/{what}", body)
            assert not here.answer("que_1", result), "it is answered once"

    run(main())


def test_refused_reply_rejects_the_question() -> None:
    """Otherwise the agent would wait for ever."""

    async def main() -> None:
        async with scene() as here:
            here.port.refused = {"reply"}
            await here.asked()
            here.answer("que_1", {"status": "answered", "answers": [[], []]})
            assert [(await here.posted())[0] for _ in range(2)] == [
                "/question/que_1/reply",
                "/question/que_1/reject",
            ]

    run(main())


@pytest.mark.parametrize("how", ["replied", "rejected"])
def test_a_question_that_is_answered_elsewhere_is_withdrawn_and_not_answered_again(how: str) -> None:
    async def main() -> None:
        async with scene() as here:
            await here.asked()
            taken: list[bool] = []

            def withdraw(line: bytes) -> None:
                here.say(line)
                taken.append(here.answer("que_1", {"status": "cancelled"}))

            here.companion._say = withdraw  # pyright: ignore[reportPrivateUsage]
            here.tell(f"question.{how}", {"requestID": "que_1"})
            assert await here.next() == {
                "jsonrpc": "2.0",
                "method": "$/cancel_request",
                "params": {"requestId": "que_1"},
            }
            assert taken == [True]
            here.tell("question.asked", QUESTION | {"id": "que_2"})
            await here.next()
            here.companion.answer(b'{"jsonrpc":"2.0","id":"que_2","result":{"status":"rejected"}}')
            assert (await here.posted())[0].startswith("/question/que_2/reject")

    run(main())


def test_event_about_our_own_answer_is_ignored() -> None:
    async def main() -> None:
        async with scene() as here:
            await here.asked()
            here.answer("que_1", {"status": "rejected"})
            await here.posted()
            here.tell("question.rejected", {"requestID": "que_1"})
            here.tell("question.asked", QUESTION | {"id": "que_2"})
            assert (await here.next())["id"] == "que_2"

    run(main())


def test_other_events_and_what_is_no_event_are_passed_over() -> None:
    async def main() -> None:
        async with scene() as here:
            here.tell("message.part.updated", {"text": "a question. " * 1000})
            here.tell("question.thought", {})
            here.tell("question.asked", {"id": "que_0"})
            here.stream.write(b'data: {"payload":{"type":"question.asked\n\n: "question.\n\n')
            assert (await here.asked())["id"] == "que_1"

    run(main())


def test_an_event_may_come_in_pieces() -> None:
    async def main() -> None:
        async with scene() as here:
            event = {"directory": "/", "payload": {"type": "question.asked", "properties": QUESTION}}
            for byte in b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n":
                here.stream.write(bytes([byte]))
                await here.stream.drain()
            assert (await here.next())["id"] == "que_1"

    run(main())


def test_an_answer_to_what_was_not_asked_here_is_the_agents_own() -> None:
    async def main() -> None:
        async with scene() as here:
            await here.asked()
            assert not here.answer(0, {"outcome": {"outcome": "cancelled"}})
            assert not here.answer("que_9", {"status": "rejected"})

    run(main())


def test_a_stream_that_ends_is_opened_again() -> None:
    async def main() -> None:
        async with scene() as here:
            here.stream.close()
            here.stream = await asyncio.wait_for(here.port.streams.get(), BOUND)
            assert (await here.asked())["id"] == "que_1"

    run(main())


def test_it_finds_the_port_that_speaks_so_among_others() -> None:
    async def main() -> None:
        async with opened() as port:
            with socket.create_server(("127.0.0.1", 0)) as silent:
                closed = silent.getsockname()[1]
            companion = companion_at(closed, port.number)
            assert await companion.connect(1)
            companion.stop()

    run(main())


@pytest.mark.parametrize("why", ["no port", "another password", "no process"])
def test_an_agent_that_cannot_be_reached_is_left_alone(why: str) -> None:
    async def main() -> None:
        async with opened() as port:
            match why:
                case "no port":
                    companion = companion_at()
                case "another password":
                    companion = companion_at(port.number, password="guess")
                case _:
                    companion = OpenCode(timeouts=QUICK)
            assert not await companion.connect(2**22 + 1)
            companion.stop()

    run(main())


def test_variable_that_is_already_set_stays() -> None:
    prepared = OpenCode().prepare({"OPENCODE_ENABLE_QUESTION_TOOL": "0", "PATH": "/bin"})

    assert prepared == {"OPENCODE_ENABLE_QUESTION_TOOL": "0", "PATH": "/bin"}


def test_ports_are_those_on_loopback_that_a_process_listens_on() -> None:
    before = listening_ports(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert sorted(listening_ports(os.getpid())) == sorted([*before, listening.getsockname()[1]])
