"""Read the public names of the Python SDK from its source: signatures, fields, and docstrings.

It parses the source instead of importing it. So it also gets the strings below fields, and every version of Python
gives the same result.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

PACKAGE = "sandboxagent"
_CLIENT = "sandboxagent.client."

_Def: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_CONTEXTS = {"asynccontextmanager": "AbstractAsyncContextManager", "contextmanager": "AbstractContextManager"}
_ITERATORS = {"AsyncGenerator": "AsyncIterator", "Generator": "Iterator"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field or attribute of a class."""

    name: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method. `parameters` are as in the source, without self."""

    name: str
    awaited: bool
    parameters: list[str]
    returns: str
    text: str


@dataclass(frozen=True, slots=True)
class Class:
    """A class, without names that begin with an underscore."""

    name: str
    bases: list[str]
    text: str
    fields: list[Field]
    methods: list[Function]
    awaited: str | None
    """Type of the result of `await`; None if it cannot be awaited."""
    iterated: str | None
    """Type of the items of `async for`; None if it cannot be iterated over."""
    entered: bool
    """Whether it can be entered with `async with`."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for several types."""

    name: str
    types: list[str]
    text: str


Public: TypeAlias = Class | Function | Alias


def public_names() -> dict[str, list[Public]]:
    """Return the names that the package exports, by the module that defines them and in its order."""
    directory = _directory()
    package = ast.parse((directory / "__init__.py").read_text())
    found: dict[str, list[Public]] = {}
    for node in ast.walk(package):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sandboxagent."):
            path = directory.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            module = (node.module or "").removeprefix(_CLIENT)
            wanted = {alias.name for alias in node.names}
            found[module] = [each for each in defined_in(path) if each.name in wanted]
            missing = wanted - {each.name for each in found[module]}
            assert not missing, f"{module} defines no {', '.join(missing)}"
    return found


def defined_in(path: Path) -> Iterator[Public]:
    """Yield all classes, functions and aliases of a module that have a public name."""
    body = ast.parse(path.read_text()).body
    constants = dict(_constants(body))
    for index, node in enumerate(body):
        match node:
            case ast.ClassDef():
                found: Public = _class(node, constants)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found = _function(node, constants)
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias"), value=ast.expr() as value
            ):
                found = Alias(name, list(_alternatives(value)), _below(body, index))
            case _:
                continue
        if not found.name.startswith("_"):
            yield found


def _directory() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _constants(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                yield name, value
            case _:
                pass


def _class(node: ast.ClassDef, constants: Mapping[str, ast.expr]) -> Class:
    functions = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    public = {name: each for name, each in functions.items() if not name.startswith("_")}
    properties = {name: each for name, each in public.items() if "property" in _decorators(each)}
    initial = functions.get("__init__")
    awaited = functions.get("__await__")
    return Class(
        node.name,
        [_written(base) for base in node.bases],
        _text(node),
        [
            *_fields(node.body),
            *(_attributes(initial) if initial is not None else ()),
            *(Field(name, _type(each.returns), _text(each)) for name, each in properties.items()),
        ],
        [_function(each, constants) for name, each in public.items() if name not in properties],
        _last(awaited.returns) if awaited is not None else None,
        next((_last(base) for base in node.bases if _written(base).startswith("AsyncIterator[")), None),
        "__aenter__" in functions,
    )


def _fields(body: Sequence[ast.stmt]) -> Iterator[Field]:
    """Yield the fields of a dataclass or a struct."""
    for index, node in enumerate(body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if not name.startswith("_"):
                yield Field(name, _type(annotation), _below(body, index))
            case _:
                pass


def _attributes(initial: _Def) -> Iterator[Field]:
    """Yield the attributes that a constructor assigns to `self`."""
    types = {argument.arg: _type(argument.annotation) for argument in (*initial.args.args, *initial.args.kwonlyargs)}
    for index, node in enumerate(initial.body):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                type = _type(annotation)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                type = _guessed(value, types)
            case _:
                continue
        if not name.startswith("_"):
            yield Field(name, type, _below(initial.body, index))


def _guessed(value: ast.expr, types: Mapping[str, str]) -> str:
    """Guess the type of an assigned value; empty if it cannot be seen."""
    match value:
        case ast.Name(id=name):
            return types.get(name, "")
        case ast.Attribute(value=ast.Name(id="api"), attr="url"):
            return "str"
        case ast.Constant(value=bool()):
            return "bool"
        case ast.Call(func=ast.Name(id=name)) if name[0].isupper() or name == "dict":
            return name
        case ast.ListComp(elt=ast.Call(func=ast.Name(id="str"))):
            return "list[str]"
        case _:
            return ""


def _function(node: _Def, constants: Mapping[str, ast.expr]) -> Function:
    decorators = _decorators(node)
    awaited, returns = isinstance(node, ast.AsyncFunctionDef), _type(node.returns)
    context = next((_CONTEXTS[name] for name in decorators if name in _CONTEXTS), None)
    if context is not None:
        awaited, returns = False, f"{context}[{_last(node.returns)}]"
    elif awaited and any(isinstance(each, ast.Yield) for each in ast.walk(node)):
        awaited, returns = False, f"AsyncIterator[{_last(node.returns)}]"
    skipped = 1 if node.args.args and node.args.args[0].arg in ("self", "cls") else 0
    return Function(node.name, awaited, list(_parameters(node.args, skipped, constants)), returns, _text(node))


def _parameters(arguments: ast.arguments, skipped: int, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    for argument, default in [*zip(positional, defaults, strict=True)][skipped:]:
        yield _parameter(argument, default, constants)
    if arguments.vararg is not None:
        yield "*" + _parameter(arguments.vararg, None, constants)
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default, constants)
    if arguments.kwarg is not None:
        yield "**" + _parameter(arguments.kwarg, None, constants)


def _parameter(argument: ast.arg, default: ast.expr | None, constants: Mapping[str, ast.expr]) -> str:
    if isinstance(default, ast.Name):
        default = constants.get(default.id, default)
    written = f"{argument.arg}: {_type(argument.annotation)}" if argument.annotation is not None else argument.arg
    return written if default is None else f"{written} = {_written(default)}"


class _Unquoted(ast.NodeTransformer):
    """A transformer that removes the quotes of types that are defined further down."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return node
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node


def _type(annotation: ast.expr | None) -> str:
    if annotation is None:
        return ""
    # A copy, because the transformer changes the tree.
    return _written(_Unquoted().visit(ast.parse(ast.unparse(annotation), mode="eval").body))


def _last(annotation: ast.expr | None) -> str:
    """Return the last type in brackets, or for AsyncGenerator the first one, which is its item."""
    match annotation:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[first, *rest])):
            return _type(first if name in _ITERATORS and name.startswith("Async") else [first, *rest][-1])
        case ast.Subscript(slice=inner):
            return _type(inner)
        case _:
            return _type(annotation)


def _alternatives(value: ast.expr) -> Iterable[str]:
    match value:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _alternatives(left)
            yield from _alternatives(right)
        case _:
            yield _type(value)


def _decorators(node: _Def) -> set[str]:
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def _written(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _text(node: ast.ClassDef | _Def) -> str:
    return ast.get_docstring(node) or ""


def _below(body: Sequence[ast.stmt], index: int) -> str:
    """Return the string below a statement, which documents it."""
    match body[index + 1 : index + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return inspect.cleandoc(text)
        case _:
            return ""
