"""Write docs/reference/python.md, the Python SDK, from its source."""

import re
from collections.abc import Iterable, Iterator

from tools.reference.markdown import heading_link, row
from tools.reference.python_source import Alias, Class, Function, Public, public_names

_TOP = """\
<!-- Written by `./dev docs`; change the docstrings in the code, not this page. -->

# Python SDK

All names that `sandboxagent` exports. Calls are async. A value from a server was true when the server answered.
Types of ACP such as `AgentMessageChunk` are in `sandboxagent.protocol.acp`, with the names and attributes of the
package `acp` ([agent-client-protocol]). A prompt takes content blocks of either.
`sandboxagent.protocol.decode.to_upstream` converts one of ours to the type of that package. The package comes with the
extra `sandboxagent[acp]`. Only this call imports it, because the import takes most of a second. `Object` is a JSON
object, `dict[str, object]`.

[agent-client-protocol]: https://github.com/agentclientprotocol/python-sdk
"""

_GROUPS = {
    "A server": ["client"],
    "Sessions and turns": ["sessions", "session", "turn", "following", "incoming"],
    "What happens in a session": ["updates", "events"],
    "A session as an app draws it": ["view", "reducer"],
    "What agents ask": ["requests"],
    "Agents and installs": ["agents"],
    "Files and directories": ["files", "api"],
    "Errors": ["sandboxagent.protocol.errors", "errors"],
}
"""Headings, with the modules whose names are below them. No heading may be a name, because both would be one link."""

_LONGEST = 100
"""Maximum number of characters of a signature on one line."""
_SECTION = re.compile(r"^(Args|Raises):\n((?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def render_python() -> str:
    """Return the whole page."""
    found = public_names()
    assert sorted(found) == sorted(name for names in _GROUPS.values() for name in names), "a module has no heading"
    groups = {title: _ordered(found[name] for name in names) for title, names in _GROUPS.items()}
    parts = [_TOP]
    for title, names in groups.items():
        parts += _overview(title, names)
    for title, names in groups.items():
        parts.append(f"\n## {title}\n")
        for each in names:
            parts += _public(each)
    return "".join(parts)


def _ordered(modules: Iterable[list[Public]]) -> list[Public]:
    """Sort classes with methods before all other names."""
    names = [each for names in modules for each in names]
    return sorted(names, key=lambda each: not (isinstance(each, Class) and (each.methods or each.awaited)))


def _overview(title: str, names: list[Public]) -> Iterator[str]:
    yield "\n" + row(title, "what it is") + "|---|---|\n"
    for each in names:
        first = " ".join(each.text.split("\n\n")[0].split())
        yield row(f"[`{each.name}`]({heading_link(each.name)})", first)


def _public(each: Public) -> Iterator[str]:
    yield f"\n### {each.name}\n"
    match each:
        case Class():
            yield from _class(each)
        case Function():
            yield from _function(each)
        case Alias():
            yield f"\n{each.text}\n" if each.text else ""
            yield _fence(f"{each.name} = " + _joined(each.types))


def _class(each: Class) -> Iterator[str]:
    yield from _prose(each.text)
    yield from _uses(each)
    if each.fields:
        yield "\n" + row("field", "type", "what it means") + "|---|---|---|\n"
        for field in each.fields:
            yield row(f"`{field.name}`", field.type and f"`{field.type}`", " ".join(field.text.split()))
    for method in each.methods:
        yield f"\n#### {each.name}.{method.name}\n"
        yield from _function(method)


def _uses(each: Class) -> Iterator[str]:
    """Describe how a value is used, beside its methods."""
    uses: list[str] = []
    if each.iterated is not None:
        uses.append(f"`async for` gives `{each.iterated}`")
    if each.awaited is not None:
        uses.append(f"`await` gives `{each.awaited}`")
    if each.entered:
        uses.append("`async with` opens and closes it")
    if uses:
        yield f"\n{'; '.join(uses)}.\n"
    kinds = [base for base in each.bases if base.isidentifier() and base != "Struct"]
    if kinds:
        yield f"\nDerived from {', '.join(f'`{kind}`' for kind in kinds)}.\n"


def _function(each: Function) -> Iterator[str]:
    yield _fence(_signature(each))
    yield from _prose(each.text)


def _signature(each: Function) -> str:
    begin, end = f"{'async ' if each.awaited else ''}def {each.name}(", f") -> {each.returns}"
    line = begin + ", ".join(each.parameters) + end
    if len(line) <= _LONGEST:
        return line
    return begin + "\n" + "".join(f"    {parameter},\n" for parameter in each.parameters) + end


def _joined(types: list[str]) -> str:
    line = " | ".join(types)
    return line if len(line) <= _LONGEST else "(\n    " + "\n    | ".join(types) + "\n)"


def _fence(code: str) -> str:
    return f"\n```pyi\n{code}\n```\n"


def _prose(text: str) -> Iterable[str]:
    """Format a docstring: its paragraphs, then its arguments and errors as tables."""
    plain = _SECTION.sub("", text).strip()
    if plain:
        yield f"\n{plain}\n"
    for title, entries in _SECTION.findall(text):
        yield "\n" + row("argument" if title == "Args" else "raises", "what" if title == "Args" else "when")
        yield "|---|---|\n"
        for name, meaning in _ENTRY.findall(entries):
            yield row(f"`{name}`", " ".join(meaning.split()))
