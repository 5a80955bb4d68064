"""`opencode run --attach`: a program that says one thing, prints the answer and ends."""

import subprocess
from pathlib import Path

from tests.opencode.host import Host
from tests.opencode.program import environment, program

LONGEST = 300.0
"""Seconds that it may take on a machine that is busy."""


class Run:
    """Runs it."""

    def __init__(self, host: Host, home: Path) -> None:
        self._host, self._home = host, home

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        host = self._host
        attached = ["--attach", host.url, "--password", host.password, "--dir", host.directory]
        return subprocess.run(
            [program(), "run", *attached, *arguments],
            env=environment(self._home),
            cwd=host.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
