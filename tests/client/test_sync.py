"""The sync client: the same names, without async; a handler may take its time."""

import inspect
import threading

import pytest

from sandbox_agent.client import (
    Agents,
    Answer,
    Files,
    LogEvent,
    PermissionRequest,
    RequestError,
    SandboxAgent,
    Session,
    Sessions,
    TurnEnded,
    text_of,
)
from sandbox_agent.client import sync as blocking
from tests.support.running import Server

HANDLERS = {"on_permission", "on_question", "on_elicitation"}


def test_a_script_can_prompt_and_read_on(server: Server) -> None:
    with blocking.SandboxAgent.connect(server.url, server.token) as client:
        assert client.health().status == "ok"
        session = client.sessions.create("mock", cwd=server.work)
        items = list(session.prompt("hello"))
        assert "hello" in "".join(map(text_of, items))
        assert isinstance(items[-1], TurnEnded)
        assert session.prompt("hello").result().stop_reason == "end_turn"
        assert "again" in session.prompt("again").text()
        assert session.id in [info.session_id for info in client.sessions.list()]
        assert session.models().current_model_id == "mock-small"
        events = list(session.history())
        assert events
        assert all(isinstance(event, LogEvent) for event in events)
        session.files.write("a.txt", "text")
        assert session.files.read_text("a.txt") == "text"
        assert "a.txt" in [entry.name for entry in session.files.list()]
        with pytest.raises(RequestError):
            session.set_mode("no-such-mode")
        updates = session.updates()
        session.terminate()
        assert [item.session_update for item in updates][-1] == "session_ended"


def test_a_handler_may_block(server: Server) -> None:
    asked, decided = threading.Event(), threading.Event()

    def decide(request: PermissionRequest) -> Answer:
        asked.set()
        assert decided.wait(5)
        return request.allow()

    with blocking.SandboxAgent.connect(server.url, server.token, on_permission=decide) as client:
        session = client.sessions.create("mock", cwd=server.work)
        turn = session.prompt("permission")
        assert asked.wait(5)
        assert client.health().status == "ok", "nothing is held up"
        decided.set()
        assert "allow_once" in turn.text()


def test_an_async_handler_is_refused() -> None:
    async def decide(request: PermissionRequest) -> Answer:
        return request.reject()

    with (
        pytest.raises(TypeError, match="plain function"),
        blocking.SandboxAgent.connect("http://127.0.0.1:1", on_permission=decide),
    ):  # type: ignore[arg-type]
        pass


def test_a_server_of_its_own(tmp_path: object) -> None:
    with blocking.SandboxAgent.start(agent="mock") as client:
        assert "hello" in client.sessions.create().prompt("hello").text()


@pytest.mark.parametrize("kind", [SandboxAgent, Agents, Sessions, Session, Files], ids=lambda kind: kind.__name__)
def test_it_has_every_name_of_the_async_client(server: Server, kind: type) -> None:
    public = {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")} - HANDLERS
    with blocking.SandboxAgent.connect(server.url, server.token) as client:
        session = client.sessions.create("mock", cwd=server.work)
        there = {
            "SandboxAgent": client,
            "Agents": client.agents,
            "Sessions": client.sessions,
            "Session": session,
            "Files": client.files,
        }
        missing = {name for name in public if not hasattr(there[kind.__name__], name)}
    assert missing == set()
