"""What OpenCode's clients are attached to, and what to say to it: our server with the mock agent, or OpenCode's own.

The suite uses ours. `--opencode-itself` runs the same tests on OpenCode's own server, whose model is scripted: a test
that fails there is wrong.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.opencode.program import environment, program
from tests.support.model.script import Call, Json, Say, Think
from tests.support.model.server import ModelServer
from tests.support.running import BOUND, TOKEN, Server


@dataclass(frozen=True)
class Play:
    """A prompt, what is seen of it first, and what is said at its end."""

    prompt: str
    shows: str
    says: str = ""


@dataclass(frozen=True)
class Repertoire:
    """What the agent, or the model, can be brought to do."""

    hello: Play
    again: Play
    permission: Play
    rejected: str
    """What a permission that was rejected looks like on a screen."""
    question: Play
    """Its second answer is Green."""
    endless: Play
    thought: Play
    model: tuple[str, str]
    """The names of the model at the start, and of another one."""
    provider: str
    model_ids: tuple[str, str]


MOCK = Repertoire(
    hello=Play("good morning", "You said: good morning"),
    again=Play("and good night", "You said: and good night"),
    permission=Play("ask for permission", "Write notes.txt", "You chose: allow_once"),
    rejected="You chose: reject_once",
    question=Play("ask a question", "Which color do you like?", "You answered: ["),
    endless=Play("be slow 600", "word 2"),
    thought=Play("think of it", "This needs a thought", "I thought about it"),
    model=("Mock small", "Mock large"),
    provider="mock",
    model_ids=("mock-small", "mock-large"),
)


@dataclass(frozen=True)
class Host:
    """A server that OpenCode's clients can be attached to."""

    url: str
    password: str
    directory: str
    can: Repertoire

    @property
    def is_opencode_itself(self) -> bool:
        return self.can is not MOCK

    @property
    def client(self) -> httpx.Client:
        """Plain requests, as OpenCode's clients authenticate themselves."""
        auth = ("opencode", self.password)
        # Plain HTTP: to load certificates would take longer than most tests.
        return httpx.Client(base_url=self.url, auth=auth, timeout=BOUND, trust_env=False, verify=False)


def ours(server: Server) -> Host:
    """The bridge of a server of ours."""
    return Host(f"{server.url}/opencode", TOKEN, server.work, MOCK)


@contextmanager
def opencode_itself(directory: Path, *flags: str) -> Generator[Host]:
    """OpenCode's own server."""
    with ModelServer() as model, opencode_serving(directory, model.url, *flags) as url:
        work = directory / "work"
        yield Host(url, TOKEN, str(work), _scripted(model))


@contextmanager
def opencode_serving(directory: Path, model: str, *flags: str, password: str | None = TOKEN) -> Generator[str]:
    """`opencode serve`, by its address."""
    work = directory / "work"
    work.mkdir(exist_ok=True)
    port = free_port()
    secret = {} if password is None else {"OPENCODE_SERVER_PASSWORD": password}
    process = subprocess.Popen(
        [program(), "serve", "--port", str(port), "--hostname", "127.0.0.1", *flags],
        env={**environment(directory / "home", model), **secret},
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "listening on" in line:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def free_port() -> int:
    """A port that is free now: given 0, it takes one that it likes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def _scripted(model: ModelServer) -> Repertoire:
    def play(shows: str, *steps: Say | Call | list[Say | Call], says: str = "") -> Play:
        return Play(f"please do {model.script(*steps).marker}", shows, says)

    ask = Call("bash", {"command": "echo of a command", "description": "Writes notes.txt"})
    options = [{"label": "Red", "description": "r"}, {"label": "Green", "description": "g"}]
    question: Json = {"header": "Color", "question": "Which color do you like?", "options": options}
    return Repertoire(
        hello=play("Good morning to you", Say("Good morning to you")),
        again=play("Good night to you", Say("Good night to you")),
        permission=play("echo of a command", ask, Say("It was allowed"), says="It was allowed"),
        rejected="echo of a command",
        question=play(
            "Which color do you like?",
            Call("question", {"questions": [question]}),
            Say("Now I know"),
            says="Now I know",
        ),
        endless=play("It begins", Say("It begins", model.gate(), "and goes on")),
        thought=play("a thought or two", [Think("a thought or two"), Say("thought about")], says="thought about"),
        model=("Large", "Small"),
        provider="scripted",
        model_ids=("large", "small"),
    )
