"""What the code has that must be documented: methods and errors."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from sandboxagent.protocol import methods
from tests.docs.pages import ROOT
from tools.reference.schema import all_errors

SOURCE = ROOT / "src" / "sandboxagent"


CAPABILITIES = [*SOURCE.rglob("capability.py")]


@cache
def answered_methods() -> frozenset[str]:
    """The keys of every table of methods: of the hub's, and of capabilities'."""
    tables = [*_functions((SOURCE / "server").rglob("*.py"), "table"), *_functions(CAPABILITIES, "methods")]
    return frozenset(key for table in tables for node in ast.walk(table) for key in _keys(node))


@cache
def announced_methods() -> frozenset[str]:
    """The notifications that capabilities announce: every method that a function `notifications` names."""
    named = [node for each in _functions(CAPABILITIES, "notifications") for node in ast.walk(each)]
    return frozenset(name for node in named for name in _name(node))


def _functions(files: Iterable[Path], name: str) -> Iterator[ast.FunctionDef]:
    for module in trees(files):
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                yield node


def _keys(node: ast.AST) -> Iterator[str]:
    """The methods that a table has, if the node is one: texts, and names of `sandboxagent.protocol.methods`."""
    for key in node.keys if isinstance(node, ast.Dict) else ():
        if key is not None:
            yield from _name(key)


def _name(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(method)) if re.fullmatch(r"[$\w]+(/\w+)*", method):
            yield method
        case ast.Attribute(value=ast.Name(id="methods"), attr=name):
            yield getattr(methods, name)
        case _:
            pass


def host_methods() -> list[str]:
    """The methods that an agent may ask of the host: the keys of the one table there."""
    (module,) = trees([SOURCE / "server" / "sessions" / "host_methods.py"])
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "self._methods":
            assert isinstance(node.value, ast.Dict)
            return list(_keys(node.value))
    raise AssertionError("found no table of methods")


def slugs() -> set[str]:
    return {error.slug for error in all_errors()}


def trees(files: Iterable[Path]) -> Iterator[ast.Module]:
    return (ast.parse(file.read_text()) for file in files)
