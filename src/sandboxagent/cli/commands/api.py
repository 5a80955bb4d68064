"""Run `sandbox-agent api …`: send any request to a running server and print its answer unchanged."""

import sys
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw

from sandboxagent.cli.call import CalledServer, call, read_input
from sandboxagent.cli.commands.agents import add_install_flags
from sandboxagent.cli.commands.rpc import exchange
from sandboxagent.cli.commands.sessions import read_facts
from sandboxagent.cli.failures import sentence
from sandboxagent.cli.flags import ACCESS, add_endpoint_flags, add_node_flag
from sandboxagent.cli.output import EXIT_FAILED, complain, describe, harmless, one_line, print_json, show_install
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand, natural
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sandboxagent.client.http import Response

_OUTPUT = "The server's JSON goes to stdout, everything else to stderr.\n"

RPC = """\
Send JSON-RPC envelopes to a server, one per line of stdin, and print every envelope received, one
per line: responses and the stream, in the server's order. Requests run concurrently; envelopes
arrive in the order of the input.

--agent opens a connection, or your own initialize in the first line does. It is closed when the
input has ended and every request is answered. If the server refuses an envelope, you get a line on
stderr, and the exit code is 1; a response that is an error counts as a response. To answer an
agent's request, send a response with its id.
"""

EXAMPLES = """\
  sandbox-agent api GET /v1/health
  sandbox-agent api v1 agents list
  sandbox-agent api v1 agents install claude --endpoint http://box.example:2468 --token-file token.txt
"""


def group() -> CommandGroup:
    """Make the group `api`."""
    return CommandGroup(
        "sandbox-agent api",
        "Call a running server.",
        EXAMPLES,
        {
            "request": Subcommand("any request; the word request may be left out: api GET /v1/health", _request),
            "v1": Subcommand("the routes that begin with /v1", _v1),
        },
        implied=_implied_word,
    )


def _implied_word(argv: list[str]) -> str | None:
    return "request" if _is_request(argv) else None


def _v1() -> CommandGroup:
    return CommandGroup(
        "sandbox-agent api v1",
        "Call the routes of a running server that begin with /v1.",
        EXAMPLES,
        {
            "agents": Subcommand("agents of that server", _agents),
            "rpc": Subcommand("POST and GET /v1/rpc: envelopes in, envelopes out", _rpc),
        },
    )


def _agents() -> CommandGroup:
    return CommandGroup(
        "sandbox-agent api v1 agents",
        "See and install the agents of a running server.",
        EXAMPLES,
        {
            "list": Subcommand("GET /v1/agents", _list),
            "get": Subcommand("GET /v1/agents/{agent}", _get),
            "install": Subcommand("POST /v1/agents/{agent}/install", _install),
        },
    )


def _list() -> Command:
    parser = _parser(
        "list",
        "",
        "All agents, as GET /v1/agents returns them.",
        "  sandbox-agent api v1 agents list | jq '.agents[].id'\n",
    )
    parser.add_argument("--registry", "--all", action="store_true", help="Add all agents of the ACP registry.")
    return _agents_command(parser, _print_agents)


def _get() -> Command:
    parser = _parser(
        "get",
        "AGENT",
        "One agent, as GET /v1/agents/{agent} returns it.",
        "  sandbox-agent api v1 agents get claude | jq -r .instructions\n",
    )
    parser.add_argument("agent", metavar="AGENT", help="Its id, or its slug in the ACP registry.")
    return _agents_command(parser, _print_agent)


def _install() -> Command:
    parser = _parser(
        "install",
        "AGENT",
        "Have the server install an agent. Shows progress on stderr and prints the result. If you interrupt\n"
        "this command, the server continues.",
        "  sandbox-agent api v1 agents install claude\n"
        "  sandbox-agent api v1 agents install codex --reinstall --agent-process-version 2.6.0\n",
    )
    parser.add_argument("agent", metavar="AGENT", help="Its id, or its slug in the ACP registry.")
    add_install_flags(parser)
    return _agents_command(parser, _install_agent)


def _rpc() -> Command:
    examples = (
        "examples:\n"
        "  sandbox-agent api v1 rpc --agent mock -d \\\n"
        '      \'{"jsonrpc": "2.0", "id": 1, "method": "_sandboxagent/agent/list"}\'\n'
        "  sandbox-agent api v1 rpc < envelopes.jsonl\n"
        "      the first line is an initialize\n"
        "  sandbox-agent api v1 rpc --agent claude --follow\n"
        "      type envelopes, and see the answers\n"
    )
    parser = Parser("sandbox-agent api v1 rpc", RPC, f"{ACCESS}\n{examples}")
    parser.add_argument(
        "-d", "--data", metavar="ENVELOPE", action="append", help="Envelope to send instead of stdin. May be repeated."
    )
    parser.add_argument("--agent", metavar="AGENT", help="Open the connection with this agent.")
    parser.add_argument("--connection", metavar="ID", help="Use this open connection, and keep it open.")
    parser.add_argument("--keep", action="store_true", help="Keep the connection open, and print its id to stderr.")
    parser.add_argument(
        "--after",
        metavar="ID",
        type=natural,
        help="Begin the stream after this event (default: the opening; with --connection, the newest event).",
    )
    parser.add_argument(
        "--no-stream", action="store_true", help="Print only responses, one request at a time; do not read the stream."
    )
    parser.add_argument("-f", "--follow", action="store_true", help="Continue until interrupted.")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=natural,
        help="Fail if nothing arrives for this long while a request waits (default: no limit).",
    )
    return _command(parser, exchange)


def _parser(name: str, words: str, description: str, examples: str) -> Parser:
    return Parser(
        f"sandbox-agent api v1 agents {name}", description, f"{ACCESS}{_OUTPUT}\nexamples:\n{examples}", words
    )


def _agents_command(parser: Parser, act: Callable[[ParsedArguments], int]) -> Command:
    add_node_flag(parser, "that has the agents")
    return _command(parser, act)


def _command(parser: Parser, act: Callable[[ParsedArguments], int]) -> Command:
    """Make a command with the flags that select a server."""
    add_endpoint_flags(parser)
    return Command(parser, act)


# --- the work ---------------------------------------------------------------------------------------------------------


def _print_agents(arguments: ParsedArguments) -> int:
    return _print_answer(arguments, "/v1/agents", registry=arguments.switch("registry") or None)


def _print_agent(arguments: ParsedArguments) -> int:
    return _print_answer(arguments, f"/v1/agents/{quote(arguments.word('agent') or '', safe='')}")


def _print_answer(arguments: ParsedArguments, path: str, **query: bool | None) -> int:
    async def work(remote: CalledServer) -> int:
        params = {**query, "node": arguments.word("node")}
        print_json(bytes(await remote.api.json("GET", path, params=params, type=Raw)))
        return 0

    return call(arguments, work)


def _install_agent(arguments: ParsedArguments) -> int:
    agent = arguments.word("agent") or ""

    async def work(remote: CalledServer) -> int:
        from sandboxagent.client.agents import Agents

        install = Agents(remote.api, node=arguments.word("node")).install(
            agent,
            reinstall=arguments.switch("reinstall"),
            agent_version=arguments.word("agent_version"),
            agent_process_version=arguments.word("agent_process_version"),
        )
        await show_install(install)
        result = msgspec.to_builtins(await install)
        print_json(msgspec.json.encode(_said(result)))
        return 0

    try:
        return call(arguments, work)
    except KeyboardInterrupt:
        complain(f"interrupted; the server continues to install {agent}")
        raise


def _said(value: object) -> object:
    """Return a document without the members that are None, because the server has left them out."""
    if isinstance(value, dict):
        return {name: _said(each) for name, each in cast("Object", value).items() if each is not None}
    return [_said(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


# --- any request ------------------------------------------------------------------------------------------------------

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_IN_THE_QUERY = ("GET", "HEAD")
"""Methods with which fields go into the query."""
_KEPT_BYTES = 1 << 20
"""Bytes of an answer that are kept, to find the sentence of a problem in them."""

REQUEST = """\
Send any request to a server, and print the body of the answer as it comes. The word request may be
left out: sandbox-agent api /v1/health. The method is GET, or POST with a body.

The exit code is 0 for a status below 400, else 1. The body is printed in both cases, and stderr says
what went wrong.
"""

REQUEST_EXAMPLES = """\
examples:
  sandbox-agent api request GET /v1/health
  sandbox-agent api /v1/health
      the same in short
  sandbox-agent api GET /v1/sessions -f limit=5 | jq '.sessions[].sessionId'
      fields of a GET are its query
  sandbox-agent api POST /v1/agents/claude/install -f 'reinstall:=true' --include
      fields are texts; KEY:=JSON is anything else
  sandbox-agent api PUT '/v1/fs/file?path=/tmp/notes.txt' --input notes.txt
"""


def _request() -> Command:
    parser = Parser("sandbox-agent api request", REQUEST, f"{ACCESS}\n{REQUEST_EXAMPLES}", "[METHOD] PATH")
    parser.add_argument("words", metavar="PATH", nargs="+", help="The path, such as /v1/health; before it, the method.")
    parser.add_argument("-X", "--method", metavar="METHOD", help="The method; you can also write it before the path.")
    parser.add_argument(
        "-f",
        "--field",
        metavar="KEY=TEXT",
        action="append",
        help="A field of a JSON body, or KEY:=JSON. May be repeated.",
    )
    parser.add_argument("--input", metavar="PATH", help="Send this file as the body; - is stdin.")
    parser.add_argument(
        "-H", "--header", metavar="NAME:VALUE", action="append", help="A header to send. May be repeated."
    )
    parser.add_argument("-i", "--include", action="store_true", help="Print the status and the headers, too.")
    add_endpoint_flags(parser)
    return Command(parser, _send)


def _is_request(argv: Sequence[str]) -> bool:
    """Whether the arguments are a request without the word `request`."""
    first = argv[0] if argv else ""
    return first.startswith("/") or first.upper() in METHODS or (first.startswith("-") and any(map(_is_path, argv)))


def _send(arguments: ParsedArguments) -> int:
    """Send the request and print the answer. Return the exit code."""
    method, path = _read_words(arguments)
    headers = _read_headers(arguments.words("header"))
    fields, source = read_facts(arguments.words("field")), arguments.word("input")
    if fields and source is not None:
        raise SettingsError("--field and --input exclude each other: both are the body")
    if not method:
        method = "POST" if fields or source is not None else "GET"
    if fields and method in _IN_THE_QUERY:
        query = urlencode({name: each if isinstance(each, str) else _json(each) for name, each in fields.items()})
        path, fields = f"{path}{'&' if '?' in path else '?'}{query}", {}
    if fields or source is not None:
        headers = {"Content-Type": "application/json", **headers}

    async def work(remote: CalledServer) -> int:
        async with (
            _body(fields, source) as body,
            remote.api.exchange(method, path, content=body, headers=headers) as response,
        ):
            if arguments.switch("include"):
                _print_head(response)
            said = await _print_body(response)
        return _finish(response, said)

    return call(arguments, work)


def _is_path(word: str) -> bool:
    return word.startswith("/")


def _read_words(arguments: ParsedArguments) -> tuple[str, str]:
    """Return the method, empty when none is given, and the path. Raises SettingsError."""
    *before, path = arguments.words("words")
    given = [*before, *([arguments.word("method")] if arguments.word("method") else [])]
    if len(before) > 1 or len(given) > 1:
        raise SettingsError("expected one method and one path, such as GET /v1/health")
    method = (given[0] or "").upper() if given else ""
    if method and method not in METHODS:
        raise SettingsError(f"{given[0]!r:.40} is not a method; expected one of {', '.join(METHODS)}")
    # The token must go to this server only. Such a path could name another server.
    if not _is_path(path) or path.startswith("//") or any(letter.isspace() for letter in path):
        raise SettingsError(f"expected a path such as /v1/health, got {path!r:.100}")
    return method, path


def _read_headers(given: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for each in given:
        name, colon, value = each.partition(":")
        if not colon or not name.strip() or not each.isascii() or not each.isprintable():
            raise SettingsError("--header: expected NAME:VALUE")  # The value may be a secret.
        headers[name.strip()] = value.strip()
    return headers


@asynccontextmanager
async def _body(fields: Object, source: str | None) -> "AsyncGenerator[bytes | AsyncIterable[bytes] | None]":
    from sandboxagent.client.api import sending

    if source is None:
        yield msgspec.json.encode(fields) if fields else None
        return
    async with sending(read_input(0) if source == "-" else Path(source)) as body:
        yield body


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _print_head(response: "Response") -> None:
    lines = [f"{response.http_version} {response.status_code} {response.reason_phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    print("\n".join(map(one_line, lines)), end="\n\n", flush=True)


async def _print_body(response: "Response") -> bytes:
    """Print the body as it arrives, and return its beginning.

    A terminal gets JSON indented, and no control characters.
    """
    kept = bytearray()
    if sys.stdout.isatty() and "json" in response.headers.get("content-type", ""):
        body = await response.aread()
        if body:
            try:
                print_json(body)
            except msgspec.DecodeError:
                print(harmless(body.decode(errors="replace")))
        return body[:_KEPT_BYTES]
    sys.stdout.flush()
    last = b"\n"
    async for piece in response.aiter_bytes():
        kept += piece[: _KEPT_BYTES - len(kept)]
        last = piece[-1:] or last
        if sys.stdout.isatty():
            print(harmless(piece.decode(errors="replace")), end="", flush=True)
        else:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    if sys.stdout.isatty() and last != b"\n":
        print(flush=True)
    return bytes(kept)


def _finish(response: "Response", said: bytes) -> int:
    from sandboxagent.client.errors import problem

    if response.status_code < HTTPStatus.BAD_REQUEST:
        return 0
    failure = problem(said)
    told = response.reason_phrase if failure is None else sentence(failure)
    describe(f"{told} (HTTP {response.status_code})")
    return EXIT_FAILED
