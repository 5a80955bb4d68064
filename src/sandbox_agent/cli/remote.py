"""Calling a server: its JSON to stdout, progress to stderr, and a problem as one readable line."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager

import httpx
import msgspec

from sandbox_agent import __version__
from sandbox_agent.agents.install.progress import Progress
from sandbox_agent.cli.arguments import Arguments, complain
from sandbox_agent.cli.endpoint import Endpoint, endpoint
from sandbox_agent.cli.failures import EXIT_FAILED, describe
from sandbox_agent.cli.output import print_json
from sandbox_agent.cli.progress import shown
from sandbox_agent.envelope import Object

CONNECT = 10.0
SILENCE = 600.0
"""Seconds to reach the server, and in which it may say nothing: the interval of its signs of life is its own choice."""

EVENT_STREAM = "text/event-stream"


class _Refused(Exception):
    """There is no answer, or it is a problem; the text is for people."""

    def __init__(self, sentence: str, stderr: object = None) -> None:
        super().__init__(sentence)
        self.stderr = stderr


def get(arguments: Arguments, path: str) -> int:
    """Print what the server answers; the result is the exit code."""
    server = endpoint(arguments, os.environ)
    return _told(lambda: _get(server, path))


def install(arguments: Arguments, path: str, agent: str, asked: Mapping[str, object]) -> int:
    """Let the server install an agent and show how far it is; the result is the exit code."""
    server = endpoint(arguments, os.environ)
    try:
        return _told(lambda: _install(server, path, agent, asked))
    except KeyboardInterrupt:
        complain(f"interrupted; the server goes on installing {agent}")
        raise


def _told(call: Callable[[], bytes]) -> int:
    try:
        print_json(call())
    except _Refused as refused:
        describe(str(refused), refused.stderr)
        return EXIT_FAILED
    return 0


def _get(server: Endpoint, path: str) -> bytes:
    with _client(server) as client:
        response = client.get(path)
    return _checked(server, response)


def _install(server: Endpoint, path: str, agent: str, asked: Mapping[str, object]) -> bytes:
    headers = {"Accept": f"{EVENT_STREAM}, application/json"}
    with _client(server) as client, client.stream("POST", path, json=asked, headers=headers) as response:
        if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
            response.read()
            return _checked(server, response)
        with shown(agent) as show:
            for event, data in events(response.iter_lines()):
                match event:
                    case "progress":
                        show(msgspec.json.decode(data, type=Progress))
                    case "result":
                        return data
                    case "problem":
                        raise _problem(server, data)
                    case _:
                        pass  # Of a newer server.
    raise _Refused(f"{server.url} ended its answer before the install had ended")


def events(lines: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Server-sent events: their names and data."""
    event, data = "message", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif not line and data:
            yield event, "\n".join(data).encode()
            event, data = "message", []


@contextmanager
def _client(server: Endpoint) -> Generator[httpx.Client]:
    headers = {"User-Agent": f"sandbox-agent/{__version__}"}
    if server.token is not None:
        headers["Authorization"] = f"Bearer {server.token}"
    # No proxy leads to this machine.
    direct = {"http://": None, "https://": None} if server.local else None
    timeout = httpx.Timeout(SILENCE, connect=CONNECT)
    try:
        with httpx.Client(base_url=server.url, headers=headers, timeout=timeout, mounts=direct) as client:
            yield client
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        start = "start one with: sandbox-agent server" if server.local else "--endpoint names another"
        raise _Refused(f"no server answers at {server.url} ({error}); {start}") from error
    except httpx.TimeoutException as error:
        raise _Refused(f"{server.url} said nothing for {SILENCE:g} s") from error
    except httpx.HTTPError as error:
        raise _Refused(f"the connection to {server.url} broke: {str(error) or type(error).__name__}") from error


def _checked(server: Endpoint, response: httpx.Response) -> bytes:
    """The JSON of an answer; a problem, or what no sandbox-agent would say, is raised."""
    if response.is_success and response.headers.get("content-type", "").startswith("application/json"):
        return response.content
    raise _problem(server, response.content, response.status_code)


def _problem(server: Endpoint, document: bytes, status: int | None = None) -> _Refused:
    try:
        problem = msgspec.json.decode(document, type=Object)
    except msgspec.DecodeError:
        problem: Object = {}
    if "title" not in problem:
        return _Refused(f"{server.url} does not answer like sandbox-agent (status {status}); --endpoint names another")
    hint = ""
    if problem.get("status") == httpx.codes.UNAUTHORIZED:
        hint = "; here: --token, --token-file or SANDBOX_AGENT_TOKEN"
    return _Refused(f"{problem['title']}: {problem.get('detail')}{hint}", problem.get("stderr"))
