"""The page about the Python SDK, and how its source is read."""

from pathlib import Path
from textwrap import dedent

import sandboxagent
from tools.reference.python_page import render_python
from tools.reference.python_source import Alias, Class, Field, Function, Public, defined_in, public_names


def read(directory: Path, source: str) -> list[Public]:
    path = directory / "module.py"
    path.write_text(dedent(source))
    return list(defined_in(path))


def test_every_name_that_is_exported_has_a_heading() -> None:
    page = render_python()

    assert [name for name in sandboxagent.__all__ if name != "__version__" and f"\n### {name}\n" not in page] == []


def test_everything_that_is_exported_says_what_it_is() -> None:
    silent: list[str] = []
    for each in (each for names in public_names().values() for each in names):
        silent += [] if each.text else [each.name]
        methods = each.methods if isinstance(each, Class) else []
        silent += [f"{each.name}.{method.name}" for method in methods if not method.text]

    assert silent == []


def test_signatures_are_as_a_caller_sees_them(tmp_path: Path) -> None:
    (found,) = read(
        tmp_path,
        """
        SIZE = 4 * 1024

        class Thing:
            '''A thing.'''

            @classmethod
            @asynccontextmanager
            async def open(cls, url: str, *, size: int = SIZE) -> AsyncGenerator["Thing"]:
                '''Open it.'''
                yield cls()

            async def items(self, kind: "Literal['a', 'b']" = "a") -> AsyncGenerator[int, None]:
                yield 1

            async def get(self, *names: str, **more: object) -> "list[Thing]": ...

            def _private(self) -> None: ...
        """,
    )

    assert isinstance(found, Class)
    assert found.methods == [
        Function(
            "open", False, ["url: str", "*", "size: int = 4 * 1024"], "AbstractAsyncContextManager[Thing]", "Open it."
        ),
        Function("items", False, ['kind: Literal["a", "b"] = "a"'], "AsyncIterator[int]", ""),
        Function("get", True, ["*names: str", "**more: object"], "list[Thing]", ""),
    ]


def test_fields_and_attributes_have_their_types_and_what_is_said_below_them(tmp_path: Path) -> None:
    fields, attributes = read(
        tmp_path,
        """
        class Fields(Struct):
            name: str
            size: int | None = None
            '''How large
            it is.'''
            _hidden: int = 0

        class Attributes(AsyncIterator[int]):
            def __init__(self, url: str, parts: Parts) -> None:
                self.url = url
                '''Where it is.'''
                self.files = Files(url)
                self.open = False
                self.late: int | None = None
                self._parts = parts

            @property
            def text(self) -> str:
                '''What it says.'''

            def __await__(self) -> Generator[object, None, "Result"]: ...

            async def __aenter__(self) -> "Attributes": ...
        """,
    )

    assert isinstance(fields, Class)
    assert fields.fields == [Field("name", "str", ""), Field("size", "int | None", "How large\nit is.")]
    assert isinstance(attributes, Class)
    assert attributes.fields == [
        Field("url", "str", "Where it is."),
        Field("files", "Files", ""),
        Field("open", "bool", ""),
        Field("late", "int | None", ""),
        Field("text", "str", "What it says."),
    ]
    assert (attributes.iterated, attributes.awaited, attributes.entered) == ("int", "Result", True)


def test_aliases_are_documented_with_what_they_stand_for(tmp_path: Path) -> None:
    assert read(tmp_path, "Name: TypeAlias = str | 'Path' | None\n'''A name.'''\n_Hidden: TypeAlias = int\n") == [
        Alias("Name", ["str", "Path", "None"], "A name.")
    ]
