"""Which tests of real agents are run: what can have changed since all of them were tried last.

A run tries what the agents themselves do differently (tests with the mark `every_run`: the handshake, a turn and its
cancel, permissions, questions, attachments) with three agents. The rest is the server's own work, such as what becomes
of sessions when a process dies: the one agent that costs least will do.

Everything is tried with all agents when the code that they depend on has changed since that was done last (`tried.txt`
has its digest), and with `--all-agents`, which writes that file when all is well.
"""

import ast
import hashlib
import json
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

THREE = {"claude", "codex", "opencode"}
ONE = {"codex"}
REASON = "nothing has changed that it depends on since it was tried last; --all-agents tries it"
TRIED = Path(__file__).with_name("tried.txt")
_SOURCES = Path(__file__).parents[2] / "src" / "sandboxagent"
_ROOMS = ("server/agents", "server/permissions", "adapters/amp")


def left_out(agent: str, every_run: bool) -> bool:
    """Whether a test of an agent can be left out when nothing has changed."""
    return agent not in (THREE if every_run else ONE)


@cache
def is_unchanged() -> bool:
    """Whether all agents were tried with the code as it is."""
    return TRIED.exists() and TRIED.read_text().strip() == digest()


def remember() -> None:
    """All agents were tried with the code as it is, and all was well."""
    TRIED.write_text(digest() + "\n")


def is_whole(arguments: Sequence[str], root: Path) -> bool:
    """Whether a run with these paths has all tests of real agents."""
    here = Path(__file__).parent
    return any(here.is_relative_to((root / argument).resolve()) for argument in arguments)


def digest() -> str:
    """Of what real agents depend on."""
    return hashlib.sha256("".join(map(meaning, code())).encode()).hexdigest()


def code() -> list[Path]:
    """How agents are installed, started, spoken to, and what they may do; not what clients see of them."""
    files = [file for room in _ROOMS for file in sorted((_SOURCES / room).rglob("*.*"))]
    kinds = [file for file in files if file.suffix in (".py", ".toml") and "mock" not in file.parts]
    return [file for file in kinds if file.name != "views.py"]


def meaning(file: Path) -> str:
    """What a file does: other words in a docstring or a comment, or another layout, are no reason to try agents."""
    text = file.read_text()
    if file.suffix == ".toml":
        return json.dumps(tomllib.loads(text), sort_keys=True, default=str)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Strings that stand for themselves describe a module, a class, a function or a field.
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.unparse(tree)
