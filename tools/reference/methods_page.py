"""Write docs/reference/methods.md: our methods, and the methods of ACP that the server changes.

A method of ACP that the server answers is on the page, too.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from sandboxagent.server.http.openapi import components_of
from tools.reference.http_page import http_types
from tools.reference.markdown import heading_link, row
from tools.reference.methods import Method, Way, methods
from tools.reference.schema import Schema, error_links, refs, table

_TOP = """\
<!-- Written by `./dev docs`; change tools/reference/methods.toml and protocol/extensions.py, not this page. -->

# Methods

The JSON-RPC methods of `/v1/rpc`, one by one: [ours](#ours), whose names begin with `_sandboxagent/`, and
[methods of ACP](#methods-of-acp) that the server answers or changes. Every other method is passed on unchanged, in both
directions. This page is part of the [contract](../contract.md), which has the rules for all methods.

A `sessionId` may always be an alias. An error is a JSON-RPC error with a slug ([errors.md](../errors.md)); any request
may end in `internal-error` or, where an agent or the disk is needed, with [a status](../contract.md#3-post).

"""
_OURS = """
## Ours

`initialize` advertises these, each as a flag and by name. Members that may be absent have a `?`. Clients must accept
members that are not listed here.
"""
_ACPS = """
## Methods of ACP

Params and results are [ACP's own](https://agentclientprotocol.com/protocol/schema), except for the differences here.
"""
LONGEST = 120
"""Maximum number of characters of an example on one line."""
_WAYS: dict[Way, str] = {
    "client": "from a client",
    "server": "to clients",
    "agent": "from an agent, answered by the server",
    "both": "from a client, and to clients",
}


def render_methods() -> str:
    """Return the whole page."""
    every = methods()
    ours = {name: each for name, each in every.items() if name.startswith("_")}
    acps = {name: each for name, each in every.items() if name not in ours}
    elsewhere = dict.fromkeys(http_types(), "http.md")
    types = [type for each in ours.values() for type in (each.takes, each.gives) if type is not None]
    schemas = msgspec.convert(components_of(types)[1], dict[str, Schema])
    parts = [_TOP, *_overview(every), _OURS]
    for name, each in ours.items():
        parts += _method(name, each, schemas, elsewhere)
    parts += _types(schemas, elsewhere)
    parts.append(_ACPS)
    for name, each in acps.items():
        parts += _method(name, each, schemas, elsewhere)
    return "".join(parts)


def _overview(every: Mapping[str, Method]) -> Iterable[str]:
    yield row("method", "kind", "direction") + "|---|---|---|\n"
    for name, each in every.items():
        yield row(f"[`{name}`]({heading_link(name)})", each.kind, _WAYS[each.way])


def _method(name: str, method: Method, schemas: Mapping[str, Schema], elsewhere: Mapping[str, str]) -> Iterable[str]:
    yield f"\n### `{name}`\n\n*{method.kind.capitalize()}, {_WAYS[method.way]}.* {method.text.strip()}\n"
    yield from _members("Params", method.takes, schemas, elsewhere)
    yield from _members("Result", method.gives, schemas, elsewhere)
    yield f"\nErrors: {error_links(method.errors)}.\n" if method.errors else ""
    id = '"id": 7, ' if method.kind == "request" else ""
    yield _example(f'{{"jsonrpc": "2.0", {id}"method": "{name}", "params":', method.example)
    if method.answer:
        yield _example('{"jsonrpc": "2.0", "id": 7, "result":', method.answer)


def _example(begin: str, value: str) -> str:
    lines = f"{begin} {value.strip()}}}"
    if "\n" in lines or len(lines) > LONGEST:
        lines = f"{begin}\n  {value.strip()}}}"
    return f"\n```json\n{lines}\n```\n"


def _members(
    title: str, type: type[Struct] | None, schemas: Mapping[str, Schema], elsewhere: Mapping[str, str]
) -> Iterable[str]:
    if type is None:
        return
    if type.__name__ in elsewhere:
        yield f"\n{title}: [{type.__name__}]({elsewhere[type.__name__]}{heading_link(type.__name__)}).\n"
    elif msgspec.structs.fields(type):
        yield f"\n{title}:\n\n"
        yield from table(schemas[type.__name__], elsewhere)
    else:
        yield f"\n{title}: `{{}}`.\n"


def _types(schemas: Mapping[str, Schema], elsewhere: Mapping[str, str]) -> Iterable[str]:
    """Yield a section for every type that a member refers to."""
    used = {name for schema in schemas.values() for each in schema.properties.values() for name in refs(each)}
    for name in sorted(used - set(elsewhere)):
        yield f"\n### {name}\n\n{schemas[name].description}\n\n"
        yield from table(schemas[name], elsewhere)
