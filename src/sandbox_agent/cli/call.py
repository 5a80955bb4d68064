"""Call a server with the SDK, find sessions by the beginning of an id, and tell failures in words."""

import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.cli.output import EXIT_FAILED, complain, describe, one_line
from sandbox_agent.cli.parser import ParsedArguments
from sandbox_agent.client.errors import (
    ClientError,
    ConnectionLost,
    ForeignAnswer,
    RequestError,
    ServerProblem,
    StartFailed,
)
from sandbox_agent.envelope import META, Object, at, list_at, object_at, text_at
from sandbox_agent.json_bounds import read_answer
from sandbox_agent.protocol.errors import SettingsError
from sandbox_agent.settings.sources import did_you_mean

if TYPE_CHECKING:
    from sandbox_agent.client import Health, SandboxAgent, SessionInfo
    from sandbox_agent.client.api import Api
    from sandbox_agent.core.discovery import ServerAddress

AUTH_REQUIRED = -32000
"""ACP's code for an agent that wants you to log in."""
EXIT_LIMIT, EXIT_REFUSED, EXIT_CANCELLED = 3, 4, 130
CODES = {
    "end_turn": 0,
    "max_tokens": EXIT_LIMIT,
    "max_turn_requests": EXIT_LIMIT,
    "refusal": EXIT_REFUSED,
    "cancelled": EXIT_CANCELLED,
}

Failure = ClientError | ValueError
"""What calls of the SDK may raise: a ValueError comes from answers that are not what ACP says."""

_EARLIEST = datetime.min.replace(tzinfo=UTC)
_OURS = "sandbox-agent: "
_INTERNAL = "Internal error"
_MORE_TOKEN = "; here: --token, --token-file or SANDBOX_AGENT_TOKEN"  # noqa: S105 - how to give one


def exit_code(stop_reason: str | None) -> int:
    """What the end of a turn means to the shell."""
    return CODES.get(stop_reason or "", EXIT_FAILED)


def tell(failure: Failure, about: str = "") -> None:
    """Say what went wrong, with the end of what a program wrote to stderr; `about` says what it is about."""
    describe(about + sentence(failure), stderr(failure))


def sentence(failure: Failure) -> str:
    """What went wrong, in one sentence."""
    match failure:
        case ForeignAnswer():
            url = text_at(failure.fields, "url") or "what answers"
            return f"{url} does not answer like sandbox-agent (status {failure.status}); --endpoint names another"
        case ServerProblem(status=401):
            return f"{failure}{_MORE_TOKEN}"
        case ServerProblem(slug="missing-node"):
            return f"{failure}; here: --node"
        case ServerProblem(slug="unknown-agent"):
            known = [str(name) for name in list_at(failure.fields, "known")]
            return f"{failure}{did_you_mean(text_at(failure.fields, 'agent') or '', known)}"
        case StartFailed():
            return _own_words(failure) or failure.sentence
        case RequestError():
            return _of_request(failure)
        case ClientError():
            # An embedded server that dies leaves what it wrote on the lines below.
            return str(failure).partition("\n")[0]
        case ValueError():
            return f"the agent's answer is invalid: {one_line(str(failure))[:200]}"


def stderr(failure: Failure) -> str | None:
    """The end of what a failing program wrote."""
    match failure:
        case ServerProblem():
            return _lines(failure.fields.get("stderr"))
        case StartFailed():
            return None if _own_words(failure) else failure.stderr
        case ConnectionLost():
            return str(failure).partition("\n")[2] or None
        case RequestError():
            return _lines(at(failure.data, "stderr"))
        case ClientError() | ValueError():
            return None


def document(failure: Failure) -> Object:
    """A failure for programs."""
    told: Object = {"message": sentence(failure)}
    match failure:
        case ServerProblem():
            return told | {"type": failure.slug, "data": failure.fields}
        case ConnectionLost():
            return told | {"type": "connection-lost"}
        case RequestError():
            return told | {"code": failure.code, "type": text_at(failure.data, "type"), "data": failure.data}
        case ClientError() | ValueError():
            return told


def _of_request(failure: RequestError) -> str:
    # Agents say what is wrong in many places.
    further = text_at(failure.data, "details") or text_at(failure.data, "message") or ""
    said = str(failure) or "the agent answered with an error"
    names = [str(name) for name in list_at(failure.data, META, "credentials")]
    if mine := [name for name in names if os.environ.get(name)]:
        flags = " ".join(f"--env {name}" for name in mine)
        hint = f"; your shell has {', '.join(mine)}: pass it on with {flags}, or run: sandbox-agent daemon restart"
    elif names or (failure.code == AUTH_REQUIRED and _is_login(said)):
        hint = "; see: sandbox-agent credentials check"
    else:
        hint = ""
    # It says no more than that something failed, which the details do better.
    said = said.removeprefix(f"{_INTERNAL}: ") or said
    if further and said == _INTERNAL:
        said = further
    return (f"{said}: {further}" if further and further not in said else said) + hint


def is_mentioned_in(failure: Failure, words: str) -> bool:
    """Whether an agent has mentioned its failure already, in words of its own."""
    return isinstance(failure, RequestError) and _squeeze(_of_request(failure)) in _squeeze(words)


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _is_login(said: str) -> bool:
    # The code is also used for other things.
    return any(word in said.lower() for word in ("auth", "login", "log in", "credential"))


def _own_words(failure: StartFailed) -> str:
    """What a server says that ends because of a mistake, which is for people already."""
    last = (failure.stderr.strip().splitlines() or [""])[-1]
    return last.removeprefix(_OURS) if last.startswith(_OURS) else ""


def _lines(told: object) -> str | None:
    if isinstance(told, str):
        return told
    parts = object_at(told)
    head, tail = ([str(line) for line in list_at(parts, name)] for name in ("head", "tail"))
    between = ["…"] if parts.get("truncated") and head and tail else []
    return "\n".join([*head, *between, *tail]) or None


CLIENT = "sandbox-agent command line"
"""The name other clients see on this program's answers."""
MOCK = "mock"
"""The agent that every server has."""
MOST_CANDIDATES = 10
PIECE = 1 << 16
_GONE = frozenset({"session-not-found", "removed", "not-found"})
"""What is answered for an invalid id; one with a slash leads to another route."""

T = TypeVar("T")


class _Page(Struct, rename="camel"):
    sessions: list[Raw]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class CalledServer:
    """A server that is called: by HTTP with `api`, by ACP on a connection."""

    endpoint: "ServerAddress"
    api: "Api"
    session: str | None = None
    """Whose files are meant."""
    node: str | None = None
    """Likewise, at a gateway."""

    @asynccontextmanager
    async def connected(self, agent: str) -> "AsyncGenerator[SandboxAgent]":
        """A client for the time of the block, to ask about sessions of this agent.

        Which agent its connection is opened with does not matter, so this takes one that runs: to look at a session
        must not install its agent, nor fail when that does not start any more.
        """
        from sandbox_agent.client.agents import health
        from sandbox_agent.client.client import SandboxAgent

        facts = await health(self.api)
        ready = _ready(facts, agent)
        url, token = self.endpoint.url, self.endpoint.token
        async with SandboxAgent.connect(url, token, agent=ready, name=CLIENT, reconnect_timeout=0) as client:
            yield client

    def describe(self, failure: Failure, about: str = "") -> None:
        """Report a failure, and what to do if no server runs."""
        if isinstance(failure, ConnectionLost) and not failure.outcome_unknown:
            start = "start one with: sandbox-agent server" if self.endpoint.local else "--endpoint names another"
            describe(f"{about}{sentence(failure)}; {start}")
        else:
            tell(failure, about)


def call(arguments: ParsedArguments, work: Callable[[CalledServer], Awaitable[int]]) -> int:
    """Do something with the server that the arguments name, or that of the data directory; gives the exit code."""
    import asyncio

    from sandbox_agent.cli.daemon import ServerFailed, ensure_server

    try:
        server = ensure_server(arguments, complain)
    except ServerFailed as failed:
        describe(str(failed), failed.stderr)
        return failed.code
    return asyncio.run(_call(server, work))


async def _call(server: "ServerAddress", work: Callable[[CalledServer], Awaitable[int]]) -> int:
    from sandbox_agent.client.api import Api

    try:
        api = Api(server.url, server.token)
    except ValueError as error:
        raise SettingsError(f"--token: {error}") from None
    remote = CalledServer(server, api)
    try:
        return await work(remote)
    except ClientError as failure:
        remote.describe(failure)
        return EXIT_FAILED
    finally:
        await api.close()


async def attempt(remote: CalledServer, call: Awaitable[T], about: str = "") -> T | None:
    """The result of a call; None if it fails, after reporting it, so that the remaining calls still run."""
    from sandbox_agent.client import RequestError

    try:
        return await call
    except (ClientError, RequestError) as failure:
        remote.describe(failure, about)
        return None


def _ready(health: "Health", wanted: str) -> str:
    running = sorted(each.agent for each in health.agents if each.running)
    installed = {each.agent for each in health.agents if each.installed}
    if health.gateway is not None:
        # What runs at one node may not run at the node that the connection gets: this takes one that starts at once.
        return MOCK if MOCK in installed else wanted
    if wanted in running:
        return wanted
    return running[0] if running else MOCK if MOCK in installed else wanted


# --- sessions ---------------------------------------------------------------------------------------------------------


async def list_sessions(api: "Api", cwd: str | None = None) -> AsyncGenerator[Raw]:
    """The JSON of each session, newest first; asks for a page when it is needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        cursor = page.next_cursor
        if cursor is None:
            return


async def find_session(api: "Api", name: str) -> Raw:
    """The JSON of the session with this id or alias, or the only one whose id or alias begins like this.

    Raises:
        ClientError: there is none, or there are several.
    """
    from urllib.parse import quote

    if name not in ("", ".", ".."):
        try:
            path = f"/v1/sessions/{quote(name, safe='', errors='surrogateescape')}"
            return await api.json("GET", path, type=Raw)
        except ServerProblem as problem:
            if problem.slug not in _GONE:
                raise
    found = [(read_session(each), each) async for each in list_sessions(api)] if name else []
    same = [raw for each, raw in found if name in (each.session_id, each.alias)]
    begin = [
        (each, raw) for each, raw in found if each.session_id.startswith(name) or (each.alias or "").startswith(name)
    ]
    if same or len(begin) == 1:
        return same[0] if same else begin[0][1]
    if not begin:
        raise ClientError(f"there is no session {name!r:.200}; try: sandbox-agent sessions list")
    listed = [each.session_id for each, _ in begin[:MOST_CANDIDATES]]
    more = f" and {len(begin) - len(listed)} more" if len(begin) > len(listed) else ""
    raise ClientError(f"{name!r} is the beginning of {len(begin)} sessions: {', '.join(listed)}{more}")


def read_session(session: Raw) -> "SessionInfo":
    """The facts of a session. Raises ClientError."""
    from sandbox_agent.client.session import SessionInfo

    try:
        return read_answer(bytes(session), SessionInfo)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"the server's answer is invalid: {error}") from error


# --- input ------------------------------------------------------------------------------------------------------------


def last_use(session: "SessionInfo") -> tuple[datetime, str]:
    """When something happened in it last, and its id, for those of the same moment."""
    return session.updated_at or session.created_at or _EARLIEST, session.session_id


async def read_input(descriptor: int) -> AsyncGenerator[bytes]:
    """What comes from stdin, or from any other open file. No thread waits for it: you can always be interrupted."""
    import asyncio

    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if waits:
            ready.clear()
            try:
                loop.add_reader(descriptor, ready.set)
            except PermissionError:
                waits = False  # /dev/null and its like are always ready.
                continue
            try:
                await ready.wait()
            finally:
                loop.remove_reader(descriptor)
        piece = os.read(descriptor, PIECE)
        if not piece:
            return
        yield piece
