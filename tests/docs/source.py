"""What the code has that must be documented: methods and errors."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sandboxagent.protocol import errors, methods
from sandboxagent.protocol.errors import SandboxAgentError
from tests.docs.pages import ROOT

SOURCE = ROOT / "src" / "sandboxagent"


@cache
def answered_methods() -> frozenset[str]:
    """The keys of every table of methods, of the hub's and of capabilities'."""
    return frozenset(_answered())


def _answered() -> Iterator[str]:
    for module in trees((SOURCE / "server").rglob("*.py")):
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef) and function.name == "table":
                for node in ast.walk(function):
                    if isinstance(node, ast.Dict):
                        yield from _keys(node)


def _keys(table: ast.Dict) -> Iterator[str]:
    """The methods that a table has: texts, and names of `sandboxagent.protocol.methods`."""
    for key in table.keys:
        match key:
            case ast.Constant(value=str(method)):
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


def all_errors(above: type[SandboxAgentError] = SandboxAgentError) -> Iterator[type[SandboxAgentError]]:
    """Every error that `protocol/errors.py` names, from the top of the tree down."""
    for error in above.__subclasses__():
        if error.__module__ == errors.__name__:
            yield error
            yield from all_errors(error)


def slugs() -> set[str]:
    return {error.slug for error in all_errors()}


def trees(files: Iterator[Path] | list[Path]) -> Iterator[ast.Module]:
    return (ast.parse(file.read_text()) for file in files)
