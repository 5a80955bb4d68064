"""`agent-browser` in a real Chromium: a program of its own that keeps a browser between two commands.

Its command starts a daemon and hands it each command as a line of JSON over a socket. Tests start the daemon by the
command, and then write those lines themselves: a process for each command would cost more than what most of them do.
"""

import json
import os
import platform
import socket
import subprocess
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from sandboxagent.server.agents.install.tools import bundled_node
from tests.browser.driving import ROOT, Unavailable

BROWSER = ROOT / "tests" / "browser"
TIMEOUT = 60.0
"""Seconds that a wait may take."""
LONGEST = 3 * TIMEOUT
_MACHINES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_SESSION = "tests"


class Failed(AssertionError):
    """The browser could not do it, or did not see it; says what it did see."""


@cache
def program() -> Path:
    """`agent-browser` itself. Raises Unavailable."""
    machine = _MACHINES.get(platform.machine())
    path = BROWSER / "node_modules" / "agent-browser" / "bin" / f"agent-browser-{platform.system().lower()}-{machine}"
    if not path.exists():
        raise Unavailable(f"{path.name} is not there; ./dev test installs it")
    # Its package does this in a script, and no script of a package is run here.
    if not os.access(path, os.X_OK):
        path.chmod(0o755)
    return path


@cache
def chromium() -> dict[str, str]:
    """What `agent-browser` has to know of the Chromium that starts here. Raises Unavailable."""
    node = bundled_node().program
    found = subprocess.run([node, BROWSER / "where.mjs"], capture_output=True, text=True, timeout=LONGEST)
    if found.returncode:
        raise Unavailable(found.stderr.strip().splitlines()[-1] if found.stderr.strip() else "Chromium does not start")
    how = json.loads(found.stdout)
    # With the names that things have for assistive technology, which `hand.js` finds them by.
    arguments = [*how["arguments"], "--enable-blink-features=ComputedAccessibilityInfo"]
    return {
        **how["environment"],
        "AGENT_BROWSER_EXECUTABLE_PATH": how["program"],
        "AGENT_BROWSER_ARGS": ",".join(arguments),
    }


class AgentBrowser:
    """A browser with one page; ends with the block."""

    def __init__(self) -> None:
        self._place = mkdtemp(prefix="ab-")
        self._ids = count(1)
        self._kept: dict[str, dict[str, Any]] = {}
        self.is_away = True
        """Whether it is at no page."""
        self._environment = {
            **os.environ,
            **chromium(),
            # What it keeps is no one else's: sockets, states, profiles.
            "HOME": self._place,
            "AGENT_BROWSER_SOCKET_DIR": self._place,
            "AGENT_BROWSER_DEFAULT_TIMEOUT": str(int(TIMEOUT * 1000)),
            "AGENT_BROWSER_NO_WEBMCP": "1",
            "AGENT_BROWSER_IDLE_TIMEOUT_MS": "600000",
        }

    def __enter__(self) -> Self:
        # Ends the browser when our end of the pipe is closed, however that comes: the browser has no parent to miss.
        command = [program(), "--session", _SESSION, "close"]
        self._closer = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; "$@"; rm -rf "$0"', self._place, *command],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A signal to all processes of the tests is not for it.
            start_new_session=True,
        )
        try:
            self._command("open", "about:blank")
        except BaseException:
            self._end()
            raise
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LONGEST)
        self._socket.connect(f"{self._place}/{_SESSION}.sock")
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()
        self._end()

    @property
    def pid(self) -> int:
        """Of the daemon, whose child is the browser."""
        return int(Path(self._place, f"{_SESSION}.pid").read_text())

    def _end(self) -> None:
        assert self._closer.stdin is not None
        self._closer.stdin.close()
        self._closer.wait(LONGEST)

    def _command(self, *words: str) -> None:
        command = [program(), "--session", _SESSION, "--json", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=LONGEST)
        if done.returncode:
            raise Failed(f"{' '.join(words)}: {done.stdout}{done.stderr}")

    def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        """Have it do something; gives what it says of it."""
        id = f"r{next(self._ids)}"
        self._lines.write(json.dumps({"id": id, "action": action, **given}) + "\n")
        self._lines.flush()
        told = json.loads(self._lines.readline() or '{"error": "agent-browser has ended"}')
        if not told.get("success"):
            raise Failed(f"{action} {json.dumps(given)[:300]}: {told.get('error')}")
        assert told["id"] == id, told
        return told.get("data") or {}

    def keep(self, setting: str, **given: Any) -> None:
        """Set something that stays as it is from page to page; at once when it is so already."""
        if self._kept.get(setting) != given:
            self(setting, **given)
            self._kept[setting] = given
