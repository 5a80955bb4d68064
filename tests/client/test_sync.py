"""The sync client: the same names, without async; a handler may take its time."""

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxagent import (
    Agents,
    Answer,
    Files,
    InvalidCall,
    LogEvent,
    PermissionRequest,
    RequestError,
    SandboxAgent,
    SandboxAgentError,
    Session,
    SessionEnded,
    Sessions,
    TurnEnded,
    text_of,
)
from sandboxagent.client import sync as blocking
from tests.support.running import BOUND, Server
from tests.support.sdk import permission


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
        events = list(session.log(0, 10**12))
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
        assert decided.wait(BOUND)
        return request.allow()

    with blocking.SandboxAgent.connect(server.url, server.token, on_permission=decide) as client:
        session = client.sessions.create("mock", cwd=server.work)
        turn = session.prompt("permission")
        assert asked.wait(BOUND)
        assert client.health().status == "ok", "nothing is held up"
        decided.set()
        assert "allow_once" in turn.text()


INTERRUPTED = """
import signal, sys, threading
from sandboxagent import text_of
from sandboxagent.client.sync import SandboxAgent

url, token, work, program = sys.argv[1:]
ready, caught = threading.Event(), threading.Event()


def decide(request):
    assert ready.wait(60)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    assert caught.wait(60)
    return request.allow()


with SandboxAgent.connect(url, token, on_permission=decide) as client:
    turn = client.sessions.create("scripted", cwd=work).prompt(program)
    seen = [text_of(next(turn))]
    try:
        ready.set()
        seen.append(text_of(next(turn)))
    except KeyboardInterrupt:
        seen.append("interrupted")
    caught.set()
    seen.append(turn.text())
print(seen)
"""


def test_ctrl_c_loses_nothing(server: Server) -> None:
    program = [["say", "a"], ["ask", "session/request_permission", permission()], ["wait_answer"], ["say", "b"]]
    command = [sys.executable, "-c", INTERRUPTED, server.url, str(server.token), server.work, json.dumps(program)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.stdout == "['a', 'interrupted', 'b']\n", done.stderr


def test_waiting_handler_does_not_keep_the_script_from_ending(server: Server) -> None:
    asked, never = threading.Event(), threading.Event()

    def decide(request: PermissionRequest) -> Answer:
        asked.set()
        never.wait()
        return request.allow()

    rescue = threading.Timer(2 * BOUND, never.set)
    rescue.start()
    with blocking.SandboxAgent.connect(server.url, server.token, on_permission=decide) as client:
        session = client.sessions.create("mock", cwd=server.work)
        session.prompt("permission")
        assert asked.wait(BOUND)
    assert not never.is_set()
    rescue.cancel()
    never.set()


@pytest.mark.parametrize("failure", [ValueError("no"), StopIteration(), SystemExit(3)], ids=repr)
def test_a_handler_that_fails_rejects(server: Server, failure: BaseException) -> None:
    def decide(request: PermissionRequest) -> Answer:
        raise failure

    with blocking.SandboxAgent.connect(server.url, server.token, on_permission=decide) as client:
        session = client.sessions.create("mock", cwd=server.work)
        assert "reject_once" in session.prompt("permission").text()


def test_handlers_can_be_given_later_and_to_a_session(server: Server) -> None:
    with blocking.SandboxAgent.connect(server.url, server.token) as client:
        assert client.token == server.token

        @client.on_permission
        def reject(request: PermissionRequest) -> Answer:
            return request.reject()

        trusted, other = (client.sessions.create("mock", cwd=server.work) for _ in range(2))

        @trusted.on_permission
        def allow(request: PermissionRequest) -> Answer:
            return request.allow()

        assert "allow_once" in trusted.prompt("permission").text()
        assert "reject_once" in other.prompt("permission").text()


def test_an_async_handler_is_refused() -> None:
    async def decide(request: PermissionRequest) -> Answer:
        return request.reject()

    with (
        pytest.raises(InvalidCall, match="plain function"),
        blocking.SandboxAgent.connect("http://127.0.0.1:1", on_permission=decide),
    ):  # type: ignore[arg-type]
        pass


def test_one_except_clause_catches_every_failure(server: Server) -> None:
    failures: list[SandboxAgentError] = []

    def fail(call: Callable[[], object]) -> None:
        with pytest.raises(SandboxAgentError) as failed:
            call()
        failures.append(failed.value)

    with blocking.SandboxAgent.connect(server.url, server.token) as client:
        session = client.sessions.create("isolated", cwd=server.work)
        updates, following = session.updates(), session.log()
        fail(lambda: client.sessions.get("no such"))
        fail(lambda: session.set_mode("no such"))
        fail(lambda: client.sessions.create("mock"))
        fail(lambda: session.files.write("x", Path("/no such file")))
        fail(lambda: session.prompt(json.dumps([["exit", 3]])).result())
        assert any(isinstance(item, SessionEnded) for item in updates), "a crash is said"
        assert session.prompt(json.dumps([["say", "back"]])).text() == "back"
        assert "back" in map(text_of, updates), "and the same loop goes on"
        client.sessions.delete(session.id)
        ends = [item for item in updates if isinstance(item, SessionEnded)]
        assert [each.reason for each in ends] == ["deleted"]
        list(following)
    fail(client.health)

    slugs = ["session-not-found", "invalid-params", "invalid-call", "local-file-failed", "agent-exited", "invalid-call"]
    assert [each.slug for each in failures] == slugs
    assert all(each.message for each in failures)


def test_a_server_of_its_own(tmp_path: object) -> None:
    with blocking.SandboxAgent.start(agent="mock") as client:
        assert "hello" in client.sessions.create().prompt("hello").text()


@pytest.mark.parametrize("kind", [SandboxAgent, Agents, Sessions, Session, Files], ids=lambda kind: kind.__name__)
def test_it_has_every_name_of_the_async_client(server: Server, kind: type) -> None:
    public = {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}
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
