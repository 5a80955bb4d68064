"""`sandbox-agent api [METHOD] PATH`: any request to a server, and what it answers as it came."""

import sys
from collections.abc import AsyncIterable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from sandbox_agent.cli.calling import CalledServer, call, read_input, sentence
from sandbox_agent.cli.commands.sessions import read_facts
from sandbox_agent.cli.flags import ACCESS, add_endpoint_flags
from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.cli.output import EXIT_FAILED, describe, harmless, one_line, print_json
from sandbox_agent.envelope import Object
from sandbox_agent.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sandbox_agent.client.ways import Response

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_IN_THE_QUERY = ("GET", "HEAD")
"""Methods whose fields go into the query."""
_KEPT = 1 << 20
"""Bytes of an answer that are kept to find the sentence of a problem in it."""

DESCRIPTION = """\
Send any request to a server, and print the body of the answer as it comes. The word request may be
left out: sandbox-agent api /v1/health. The method is GET, or POST with a body.

The exit code is 0 for a status below 400, else 1; then the body is printed too, and stderr has what
went wrong.
"""

EXAMPLES = """\
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


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent api request", DESCRIPTION, f"{ACCESS}\n{EXAMPLES}", "[METHOD] PATH")
    parser.add_argument("words", metavar="PATH", nargs="+", help="The path, such as /v1/health; before it, the method.")
    parser.add_argument("-X", "--method", metavar="METHOD", help="The method, too.")
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
    return Command(parser, send)


def is_request(argv: Sequence[str]) -> bool:
    """Whether these words are a request without the word for it."""
    first = argv[0] if argv else ""
    return first.startswith("/") or first.upper() in METHODS or (first.startswith("-") and any(map(_is_path, argv)))


def send(arguments: Arguments) -> int:
    """Send the request; gives the exit code."""
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


def _read_words(arguments: Arguments) -> tuple[str, str]:
    """The method, empty when none is given, and the path. Raises SettingsError."""
    *before, path = arguments.words("words")
    given = [*before, *([arguments.word("method")] if arguments.word("method") else [])]
    if len(before) > 1 or len(given) > 1:
        raise SettingsError("expected one method and one path, such as GET /v1/health")
    method = (given[0] or "").upper() if given else ""
    if method and method not in METHODS:
        raise SettingsError(f"{given[0]!r:.40} is no method; expected one of {', '.join(METHODS)}")
    # The token goes to this server alone, and not to another that a path might name.
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
    from sandbox_agent.client.api import sending

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
    """Print the body as it comes; gives its beginning. A terminal gets JSON on lines, and nothing that moves it."""
    kept = bytearray()
    if sys.stdout.isatty() and "json" in response.headers.get("content-type", ""):
        body = await response.aread()
        if body:
            try:
                print_json(body)
            except msgspec.DecodeError:
                print(harmless(body.decode(errors="replace")))
        return body[:_KEPT]
    sys.stdout.flush()
    last = b"\n"
    async for piece in response.aiter_bytes():
        kept += piece[: _KEPT - len(kept)]
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
    from sandbox_agent.client.errors import problem

    if response.status_code < HTTPStatus.BAD_REQUEST:
        return 0
    failure = problem(said)
    told = response.reason_phrase if failure is None else sentence(failure)
    describe(f"{told} (HTTP {response.status_code})")
    return EXIT_FAILED
