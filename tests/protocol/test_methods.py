"""Names on the wire stand in one place."""

import ast
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import acp.meta

import sandboxagent
from sandboxagent.protocol import headers, methods

SOURCE = Path(sandboxagent.__file__).parent
NAMES = {value: name for name, value in vars(methods).items() if name.isupper() and isinstance(value, str)}
PROGRAMS = SOURCE / "adapters"
OTHERS = (SOURCE / "protocol", SOURCE / "cli", PROGRAMS / "mock", PROGRAMS / "amp", PROGRAMS / "stdio.py")
"""Where they are; the command line, which only uses the SDK; and agents of our own, programs that import little."""
ELSEWHERE = [path for path in sorted(SOURCE.rglob("*.py")) if not {*OTHERS} & {path, *path.parents}]


def test_neither_server_nor_sdk_spells_a_method_out() -> None:
    # A parameter of that name is one of the texts, too: what they mean only the source says.
    suspect = [path for path in ELSEWHERE if not NAMES.keys().isdisjoint(texts_of(compiled(path)))]
    nodes = [(path, node) for path in suspect for node in ast.walk(ast.parse(path.read_text()))]
    texts = [(path, node.value) for path, node in nodes if isinstance(node, ast.Constant)]
    spelled = [(path, text) for path, text in texts if isinstance(text, str) and text in NAMES]

    assert [f"{path.relative_to(SOURCE)}: methods.{NAMES[text]}" for path, text in spelled] == []


def compiled(path: Path) -> CodeType:
    """A module's code: Python keeps it, and reading the source again takes a hundred times as long."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    assert code is not None
    return code


def texts_of(value: object) -> Iterator[str]:
    """All texts that code has as constants."""
    match value:
        case str():
            yield value
        case CodeType():
            yield from texts_of(value.co_consts)
        case tuple() | frozenset():
            for each in value:
                yield from texts_of(each)
        case _:
            pass


def test_texts_are_found_wherever_code_has_them() -> None:
    source = "def f(a):\n  match a:\n    case 'x': return {'k': 1, 'l': [b'', 'y']}\n  return a in {'z', 'w'}\n"

    assert {"x", "k", "l", "y", "z", "w"} <= set(texts_of(compile(source, "", "exec")))


def test_no_two_names_are_one_method() -> None:
    values = [value for name, value in vars(methods).items() if name.isupper()]

    assert len(values) == len(set(values))


def test_methods_of_acp_are_called_as_upstream_calls_them() -> None:
    known = {*acp.meta.AGENT_METHODS.values(), *acp.meta.CLIENT_METHODS.values()}
    # The one is of agents that have no config options yet, the other of JSON-RPC.
    others = {methods.SET_MODEL, methods.CANCEL_REQUEST}

    assert {name for name in NAMES if not name.startswith("_")} - others - known == set()
    assert acp.meta.PROTOCOL_VERSION == methods.PROTOCOL_VERSION


def test_a_header_is_written_in_lower_case_for_asgi() -> None:
    assert headers.raw(headers.CONNECTION_ID) == b"x-acp-connection-id"
