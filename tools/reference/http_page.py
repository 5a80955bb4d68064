"""Write docs/reference/http.md, every route with its requests and answers, from a running server."""

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from itertools import chain
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import msgspec
from msgspec import Struct

from sandboxagent.server.http.openapi import ALWAYS
from tools.reference.markdown import heading_link, row
from tools.reference.schema import Schema, error_links, kind, table

_TOP = """\
<!-- Written by `./dev docs`; change the endpoints in the code, not this page. -->

# HTTP

Every route with its requests and answers. `GET /openapi.json` has the same for programs. [methods.md](methods.md) has
the methods of `POST /v1/rpc`. The contract says how the routes behave: [`/v1/rpc`](../contract.md#2-connections) in
sections 2 to 5, [sessions](../contract.md#6-sessions), [agents](../contract.md#9-agents),
[files](../contract.md#13-files).

Every route below requires `Authorization: Bearer <token>` ([security](../contract.md#10-security)). An error is a
[Problem](#problem) with a slug ([errors.md](../errors.md)). Any route may answer with these problems, which the tables
of the routes do not repeat:

"""

_ELSEWHERE = """
A path with another method answers 405 `method-not-allowed`. A path under `/v1/` that is not listed here answers 410
`removed`, any other path 404 `not-found`. These need no token: `GET /openapi.json`, this document for programs, and
`GET /ui/`, a page for people, to which `/` and `/ui` lead. `/opencode/*` is for [OpenCode](../opencode.md)'s programs.

At the gateway of a [fleet](../fleet.md), routes for files and agents also take `node`, and may answer 400
`missing-node`, 503 `no-node` or 503 `node-unreachable`; every route may answer 503 `fleet-unreachable`. A gateway also
has `GET /v1/nodes` and `GET /v1/nodes/{node}`. Its own `/openapi.json` describes all of this.

"""


class Parameter(Struct, rename={"place": "in"}):
    """A part of a path, a query or a header."""

    name: str
    place: str
    schema: Schema
    description: str
    required: bool = False


class Media(Struct):
    """The body of one media type."""

    schema: Schema | None = None


class Body(Struct):
    """The body of a request."""

    content: dict[str, Media]
    required: bool = False


class Header(Struct):
    """A header of a response."""

    description: str


class Response(Struct, rename={"problems": "x-problems"}):
    """A possible answer of a route."""

    description: str
    content: dict[str, Media] = {}
    headers: dict[str, Header] = {}
    problems: list[str] = []


class Operation(Struct, rename="camel"):
    """One method of one route."""

    summary: str
    responses: dict[str, Response]
    parameters: list[Parameter] = []
    request_body: Body | None = None
    deprecated: bool = False


class Components(Struct):
    """The types that routes share."""

    schemas: dict[str, Schema]


class Document(Struct):
    """The members of an OpenAPI document that the page uses."""

    paths: dict[str, dict[str, Operation]]
    components: Components


def render_http() -> str:
    """Return the whole page."""
    document = _document()
    routes = {
        f"{method.upper()} {path}": operation
        for path, operations in document.paths.items()
        for method, operation in operations.items()
        if not operation.deprecated
    }
    parts = [_TOP, _problems({str(error.status): _always(error.status) for error in ALWAYS}), _ELSEWHERE]
    parts += _overview(routes)
    parts += chain.from_iterable(_route(name, operation) for name, operation in routes.items())
    parts += _types(document.components.schemas)
    return "".join(parts)


def http_types() -> list[str]:
    """Return the names of the types on the page."""
    return sorted(_document().components.schemas)


@cache
def _document() -> Document:
    """Start a server of this code and return its answer to GET /openapi.json."""
    with TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "sandboxagent", "server", "--port", "0", "--no-persist", "--no-token"]
        command += ["--data-dir", directory, "--config-dir", directory]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_AGENT_")}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            try:
                url = server.stdout.readline().split()[-1]
                with urlopen(f"{url}/openapi.json", timeout=30) as answer:  # noqa: S310 - the address of our own server
                    return msgspec.json.decode(answer.read(), type=Document)
            finally:
                server.terminate()


def _always(status: int) -> list[str]:
    return [error.slug for error in ALWAYS if error.status == status]


def _overview(routes: dict[str, Operation]) -> Iterable[str]:
    yield row("route", "what it does") + "|---|---|\n"
    for name, operation in routes.items():
        yield row(f"[`{name}`]({heading_link(name)})", operation.summary)


def _route(name: str, operation: Operation) -> Iterable[str]:
    yield f"\n## {name}\n\n{operation.summary}\n"
    if operation.parameters:
        yield "\n" + row("parameter", "in", "type", "what it means") + "|---|---|---|---|\n"
        for each in operation.parameters:
            needed = "**required**. " if each.required and each.place != "path" else ""
            yield row(f"`{each.name}`", each.place, kind(each.schema), needed + each.description)
    body = operation.request_body
    if body is not None:
        types = "; ".join(_media(type, media) for type, media in body.content.items())
        yield f"\nBody: {types}{'' if body.required else ', which may be left out'}.\n"
    yield "\n" + row("answer", "body", "what it means") + "|---|---|---|\n"
    for status, each in operation.responses.items():
        if not each.problems:
            yield from _answer(status, each)
    own = {status: _own(each, status) for status, each in operation.responses.items() if each.problems}
    yield "\n" + _problems({status: slugs for status, slugs in own.items() if slugs}) if any(own.values()) else ""


def _answer(status: str, response: Response) -> Iterable[str]:
    headers = "".join(f" `{name}`: {header.description}" for name, header in response.headers.items())
    for number, (type, media) in enumerate(response.content.items() or [("", Media())]):
        text = response.description + headers
        if number and media.schema is not None:
            text = f"With `Accept: {type}`. {media.schema.description}"
        yield row(status, _media(type, media) if type else "none", text)


def _media(type: str, media: Media) -> str:
    if media.schema is None or type != "application/json":
        return "any" if type == "*/*" else f"`{type}`"
    return kind(media.schema)


def _own(response: Response, status: str) -> list[str]:
    """Return the problems of a route that not every route can have."""
    return [slug for slug in response.problems if slug not in _always(int(status))]


def _problems(found: dict[str, list[str]]) -> str:
    lines = [row("status", "problems"), "|---|---|\n"]
    lines += [row(status, error_links(slugs)) for status, slugs in sorted(found.items())]
    return "".join(lines)


def _types(schemas: dict[str, Schema]) -> Iterable[str]:
    yield "\n## Types\n\nMembers that may be absent have a `?`. Programs must accept further members.\n"
    for name in sorted(schemas):
        yield f"\n### {name}\n\n{schemas[name].description}\n\n"
        yield from table(schemas[name])
