"""Which tests run on one worker, by their ids alone: who hands them out has not imported them."""

import re
from pathlib import Path
from zlib import crc32

_AGENTS = {path.stem.removeprefix("recipe_") for path in (Path(__file__).parents[1] / "agents").glob("recipe_*.py")}
_REAL = re.compile(r"tests/agents/test_\w+\.py::\w+\[(.+)\]$")
_ALONE = ("tests/sdk_typescript/test_suites.py",)
"""Files whose tests share nothing and are long."""
_TOGETHER = {"tests/browser/": "a browser", "tests/opencode/test_page.py": "a browser"}
"""Rooms and modules by something that is dear to start, which they share."""
_BY_TWO = ("tests/inspector/",)
"""The same with so many tests that two workers share them: each starts a browser."""


def group_of(id: str) -> str:
    """A real agent is started once for all of its tests, and what a module's tests share is made once."""
    file = id.partition("::")[0]
    real = _REAL.match(id)
    agents = _AGENTS.intersection(real[1].split("-")) if real is not None else set[str]()
    if agents:
        return agents.pop()
    room = next((shared for each, shared in _TOGETHER.items() if file.startswith(each)), None)
    if file.startswith(_BY_TWO):
        room = f"{file.rpartition('/')[0]}, part {crc32(file.encode()) % 2}"
    return id if file in _ALONE else room or file
