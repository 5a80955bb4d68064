"""Runs a snippet as a program: `python -W error python_snippet.py FILE PAGE`. `await` may stand at its top."""

import ast
import asyncio
import inspect
import sys
import types
from pathlib import Path


def main(file: str, page: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    code = compile(Path(file).read_text(), page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, module.__dict__)
    if inspect.iscoroutine(result):
        asyncio.run(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
