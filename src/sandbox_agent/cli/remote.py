"""Calling a server: requests and streams over HTTP, and whatever goes wrong as one sentence for people."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec
from httpx_sse import EventSource, ServerSentEvent
from msgspec import Raw

from sandbox_agent import __version__
from sandbox_agent.cli.arguments import Arguments, complain
from sandbox_agent.cli.endpoint import Endpoint, endpoint
from sandbox_agent.cli.failures import EXIT_FAILED, describe
from sandbox_agent.cli.output import print_json
from sandbox_agent.cli.progress import shown
from sandbox_agent.envelope import Object, text_at
from sandbox_agent.wire.agents import Progress

CONNECT = 10.0
SILENCE = 600.0
"""Seconds to reach the server, and in which it may say nothing: the interval of its signs of life is its own choice."""

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
MOST_OF_A_PROBLEM = 1 << 20

T = TypeVar("T")
Query = Mapping[str, str | int | bool | None]
"""What is None is left out."""


class Refused(Exception):
    """There is no answer, or it is a problem; the text is for people, the `slug` of a problem for programs."""

    def __init__(self, sentence: str, *, slug: str = "", stderr: object = None) -> None:
        super().__init__(sentence)
        self.slug = slug
        self.stderr = stderr

    def tell(self, about: str = "") -> None:
        """Say it, with a word in front about what was refused."""
        describe(f"{about}{self}", self.stderr)


class Remote:
    """A server that is called. Every method may raise Refused."""

    def __init__(self, server: Endpoint, client: httpx.Client) -> None:
        self.server = server
        self._client = client

    def json(self, method: str, path: str, type: type[T], query: Query | None = None, body: object = None) -> T:
        """What it answers, read as a `type`; `body` is sent as JSON unless it is None."""
        content = None if body is None else msgspec.json.encode(body)
        return self.decoded(self.request(method, path, query, content, {"Content-Type": JSON}), type)

    def decoded(self, response: httpx.Response, type: type[T]) -> T:
        """An answer that has been read, as a `type`."""
        try:
            return msgspec.json.decode(response.content, type=type)
        except msgspec.DecodeError as error:
            raise self._strange(response.status_code) from error

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = SILENCE,
    ) -> httpx.Response:
        """An answer and all of its body; `silence` is how many seconds the server may say nothing."""
        with self.stream(method, path, query, content, headers, silence) as response:
            self.whole(response)
            return response

    def whole(self, response: httpx.Response) -> bytes:
        """The body of an answer, which is JSON if there is one."""
        body = response.read()
        if body and not response.headers.get("content-type", "").startswith(JSON):
            raise self._strange(response.status_code)
        return body

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = SILENCE,
    ) -> Generator[httpx.Response]:
        """An answer whose body is still to be read."""
        timeout = httpx.Timeout(silence, connect=CONNECT)
        target = path + _written(query or {})
        with self._client.stream(method, target, content=content, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                raise self.problem(_beginning(response), response.status_code)
            yield response

    def problem(self, document: bytes, status: int | None = None) -> Refused:
        """What a problem document says."""
        try:
            problem = msgspec.json.decode(document, type=Object)
        except msgspec.DecodeError:
            problem: Object = {}
        if "title" not in problem:
            return self._strange(status)
        hint = ""
        if problem.get("status") == httpx.codes.UNAUTHORIZED:
            hint = "; here: --token, --token-file or SANDBOX_AGENT_TOKEN"
        slug = (text_at(problem, "type") or "").rpartition(":")[2]
        return Refused(f"{problem['title']}: {problem.get('detail')}{hint}", slug=slug, stderr=problem.get("stderr"))

    @contextmanager
    def named(self) -> Generator[None]:
        """What breaks in the block is a Refused."""
        url = self.server.url
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            start = "start one with: sandbox-agent server" if self.server.local else "--endpoint names another"
            raise Refused(f"no server answers at {url} ({error}); {start}") from error
        except httpx.TimeoutException as error:
            raise Refused(f"{url} said nothing for {SILENCE:g} s") from error
        except httpx.HTTPError as error:
            raise Refused(f"the connection to {url} broke: {str(error) or type(error).__name__}") from error

    def _strange(self, status: int | None) -> Refused:
        return Refused(
            f"{self.server.url} does not answer like sandbox-agent (status {status}); --endpoint names another"
        )


def calling(arguments: Arguments, work: Callable[[Remote], int]) -> int:
    """Do something with the server that is meant; gives the exit code. What is refused is told."""
    server = endpoint(arguments, os.environ)
    headers = {"User-Agent": f"sandbox-agent/{__version__}", "Accept-Encoding": "identity"}
    if server.token is not None:
        headers["Authorization"] = f"Bearer {server.token}"
    # No proxy leads to this machine.
    direct = {"http://": None, "https://": None} if server.local else None
    # To read the machine's certificates takes longer than most calls.
    verify = not (server.local and server.url.startswith("http:"))
    try:
        with httpx.Client(base_url=server.url, headers=headers, mounts=direct, verify=verify) as client:
            remote = Remote(server, client)
            with remote.named():
                return work(remote)
    except Refused as refused:
        refused.tell()
        return EXIT_FAILED


def events(response: httpx.Response) -> Iterator[ServerSentEvent]:
    """Server-sent events as they come."""
    # The library makes an empty one of each comment that comes after an event with an id.
    return (event for event in EventSource(response).iter_sse() if event.data)


def understood(document: bytes | Raw, type: type[T]) -> T:
    """A part of an answer as a `type`. Raises Refused."""
    try:
        return msgspec.json.decode(document, type=type)
    except msgspec.DecodeError as error:
        raise Refused(f"what the server answers makes no sense: {error}") from error


def is_stream(response: httpx.Response) -> bool:
    """Whether an answer consists of events."""
    return response.headers.get("content-type", "").startswith(EVENT_STREAM)


def part(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="", errors="surrogateescape")


def _written(query: Query) -> str:
    pairs = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    # Names of files are bytes, and are sent as they are.
    given = {name: value for name, value in pairs.items() if value is not None}
    return "?" + urlencode(given, quote_via=quote, errors="surrogateescape") if given else ""


def _beginning(response: httpx.Response) -> bytes:
    body = b""
    for piece in response.iter_bytes():
        body += piece
        if len(body) > MOST_OF_A_PROBLEM:
            break
    return body


# --- calls whose answer is printed ------------------------------------------------------------------------------------


def get(arguments: Arguments, path: str) -> int:
    """Print what the server answers; the result is the exit code."""
    return calling(arguments, lambda remote: _printed(remote.request("GET", path).content))


def install(arguments: Arguments, path: str, agent: str, asked: Mapping[str, object]) -> int:
    """Let the server install an agent and show how far it is; the result is the exit code."""
    try:
        return calling(arguments, lambda remote: _printed(_install(remote, path, agent, asked)))
    except KeyboardInterrupt:
        complain(f"interrupted; the server goes on installing {agent}")
        raise


def _printed(document: bytes) -> int:
    print_json(document)
    return 0


def _install(remote: Remote, path: str, agent: str, asked: Mapping[str, object]) -> bytes:
    headers = {"Accept": f"{EVENT_STREAM}, {JSON}", "Content-Type": JSON}
    with remote.stream("POST", path, content=msgspec.json.encode(asked), headers=headers) as response:
        if not is_stream(response):
            return remote.whole(response)
        with shown(agent) as show:
            for event in events(response):
                match event.event:
                    case "progress":
                        show(msgspec.json.decode(event.data, type=Progress))
                    case "result":
                        return event.data.encode()
                    case "problem":
                        raise remote.problem(event.data.encode())
                    case _:
                        pass  # Of a newer server.
    raise Refused(f"{remote.server.url} ended its answer before the install had ended")
