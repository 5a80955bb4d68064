"""Contract, section 5: with --client-fs a client that declared it is asked for files and terminals."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.asking import ask_outright, everything, methods, texts
from tests.support.client import Client, Json, Stream, run
from tests.support.history import events_of
from tests.support.hosting import CREATE, OUTPUT, READ, WRITE, answer, gets
from tests.support.running import BOUND, Server

pytestmark = pytest.mark.requirement("5.client-fs")

BOTH: Json = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}


@pytest.fixture(scope="module")
def asking() -> Generator[Server]:
    with Server("--client-fs") as server:
        yield server


class Able(Client):
    """A client that declares what it can do."""

    def __init__(self, server: Server, capabilities: Json = BOTH) -> None:
        super().__init__(server)
        self.capabilities = capabilities

    async def __aenter__(self) -> "Able":
        await self.initialize(clientCapabilities=self.capabilities)
        return self


async def asked(client: Client, stream: Stream, session: str, method: str, **params: object) -> Json:
    """What the client is asked when the session's agent asks."""
    await ask_outright(client, session, ["ask", method, params], ["echo_answer"])
    return (await stream.method(method)).data


def test_the_creator_is_asked_alone_and_its_answer_reaches_the_agent(asking: Server) -> None:
    async def main() -> None:
        async with Able(asking) as a, a.stream() as events, Able(asking) as b, b.stream() as others:
            session = await a.new_session()
            await b.result("_sandboxagent/session/attach", {"sessionId": session})
            for method, params, result in [
                (READ, {"path": "/anywhere"}, {"content": "from the client"}),
                (WRITE, {"path": "/anywhere", "content": "text"}, {}),
                (CREATE, {"command": "make"}, {"terminalId": "of-the-client"}),
                (OUTPUT, {"terminalId": "of-the-client"}, {"output": "made", "truncated": False}),
            ]:
                request = await asked(a, events, session, method, **params)
                assert request["params"] == {"sessionId": session, **params}
                assert (await a.answer(request["id"], result)).status_code == 202
                (echoed,) = texts(await events.turn_ended())
                assert json.loads(echoed)["result"] == result
            seen = methods(await everything(b, others))
            assert not {READ, WRITE, CREATE, OUTPUT} & set(seen)
            log = [event["envelope"] for event in await events_of(a, session)]
            assert [one["result"] for one in log if one.get("result", {}).get("content")] == [
                {"content": "from the client"}
            ]

    run(main())


@pytest.mark.parametrize(
    ("capabilities", "method", "params"),
    [
        ({}, READ, {}),
        ({"fs": {"readTextFile": False, "writeTextFile": True}, "terminal": True}, READ, {}),
        ({"fs": {"readTextFile": "yes"}}, READ, {}),
        ({"fs": {"readTextFile": True}}, WRITE, {"content": "text"}),
        ({"fs": BOTH["fs"]}, CREATE, {"command": "true"}),
    ],
)
def test_what_the_creator_did_not_declare_the_server_does(
    asking: Server, capabilities: Json, method: str, params: Json
) -> None:
    async def main() -> None:
        with TemporaryDirectory(dir=asking.work) as folder:
            path = Path(folder) / "file"
            path.write_text("of the server")
            async with Able(asking, capabilities) as a, a.stream() as events:
                session = await a.new_session()
                answered = await answer(a, session, method, path=str(path), **params)
                assert "result" in answered, answered
                assert method not in methods(await everything(a, events))

    run(main())


def test_without_the_flag_no_client_is_asked(server: Server) -> None:
    async def main() -> None:
        async with Able(server) as a, a.stream() as events:
            session = await a.new_session()
            assert "error" in await answer(a, session, READ, path=f"{server.work}/surely-missing")
            assert READ not in methods(await everything(a, events))

    run(main())


def test_another_connection_is_not_asked_when_the_creator_is_gone(asking: Server) -> None:
    async def main() -> None:
        with TemporaryDirectory(dir=asking.work) as folder:
            path = Path(folder) / "file"
            path.write_text("of the server")
            async with Able(asking) as a, Able(asking) as b, b.stream() as others:
                session = await a.new_session()
                await b.result("_sandboxagent/session/attach", {"sessionId": session})
                await a.close()
                assert await gets(b, session, READ, path=str(path)) == {"content": "of the server"}
                assert READ not in methods(await everything(b, others))

    run(main())


def test_what_a_connection_has_not_answered_when_it_goes_the_server_answers(asking: Server) -> None:
    async def main() -> None:
        with TemporaryDirectory(dir=asking.work) as folder:
            path = Path(folder) / "file"
            path.write_text("of the server")
            async with Able(asking) as a, a.stream() as events, Client(asking) as b, b.stream() as others:
                session = await a.new_session()
                await b.result("_sandboxagent/session/attach", {"sessionId": session})
                await asked(a, events, session, READ, path=str(path))
                pending = await b.result("_sandboxagent/session/pending", {"sessionId": session})
                assert pending == {"pending": []}
                await a.close()
                ended = await others.turn_ended()
                assert any("of the server" in event.text for event in ended)
                log = [event["envelope"] for event in await events_of(b, session)]
                assert [one.get("method") for one in log].count(READ) == 1

    run(main())


def test_who_loads_or_resumes_a_session_is_asked_from_then_on(asking: Server) -> None:
    async def main() -> None:
        async with Client(asking) as a, Able(asking) as b, b.stream() as events:
            for method in ("session/load", "session/resume"):
                session = await a.new_session()
                await a.result("session/close", {"sessionId": session})
                await b.result(method, {"sessionId": session, "cwd": asking.work, "mcpServers": []})
                request = await asked(b, events, session, READ, path="/anywhere")
                await b.answer(request["id"], {"content": ""})
                await events.turn_ended()

    run(main())


def test_a_turn_that_is_cancelled_answers_what_its_client_did_not(asking: Server) -> None:
    async def main() -> None:
        async with Able(asking) as a, a.stream() as events:
            session = await a.new_session()
            await asked(a, events, session, READ, path="/anywhere")
            await a.notify("session/cancel", {"sessionId": session})
            ended = await events.turn_ended()
            assert any("-32800" in event.text for event in ended)
            await asyncio.wait_for(a.prompt(session, "hello"), BOUND)

    run(main())
