"""What `sandboxagent` exports, and that it is imported when it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sandboxagent
from tests.support.running import BOUND


def test_everything_that_is_exported_is_there() -> None:
    assert [name for name in sandboxagent.__all__ if not hasattr(sandboxagent, name)] == []
    assert set(sandboxagent.__all__) <= set(dir(sandboxagent))


def test_type_checkers_see_each_name_where_the_program_finds_it() -> None:
    source = ast.parse(Path(sandboxagent.__file__).read_text())
    imports = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    seen = {alias.name: node.module for node in imports for alias in node.names if node.module != "importlib"}

    assert seen == sandboxagent._HOMES
    assert sorted([*seen, "__version__"]) == sorted(sandboxagent.__all__)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="SandboxAgnet"):
        _ = sandboxagent.SandboxAgnet  # type: ignore[attr-defined]


def test_package_root_exports_client_and_errors_lazily() -> None:
    program = """
import sys
import sandboxagent
before = [name for name in sys.modules if name.startswith("sandboxagent.")]
from sandboxagent import SandboxAgent, SandboxAgentError
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("sandboxagent.")}
print(before, rooms & {"agents", "cli", "host", "http", "hub", "log", "permissions", "processes", "server"})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=True)

    assert done.stdout.strip() == "[] set()"


def test_the_sdk_imports_neither_upstreams_models_nor_what_httpx_has_for_terminals() -> None:
    """They would take most of a second, and every program that uses the SDK would wait for that.

    The SDK may make three times as many calls as asyncio, which it stands on: about 100 ms of CPU. Upstream's models
    alone make more.
    """
    program = """
import sys
calls = 0
def count(frame, event, arg):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
import asyncio
sys.setprofile(None)
of_asyncio, calls = calls, 0
sys.setprofile(count)
import sandboxagent
for name in sandboxagent.__all__:
    getattr(sandboxagent, name)
sys.setprofile(None)
print({"acp", "pydantic", "rich", "click", "pygments"} & {*sys.modules}, calls < 3 * of_asyncio, calls, of_asyncio)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout.startswith("set() True"), done.stdout
