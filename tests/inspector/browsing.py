"""A person at the Inspector, played by `agent-browser` in a real Chromium: sees what is visible, clicks and types.

`agent-browser` is a program of its own that keeps a browser between two calls; each `Tab` here has one to itself. What
is waited for ends the wait; the bound is long, so that no test fails because the machine is busy.
"""

import json
import os
import platform
import subprocess
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

from sandbox_agent.agents.install.tools import bundled_node
from tests.browser.driving import ROOT, Unavailable

BROWSER = ROOT / "tests" / "browser"
PATIENCE = 60.0
"""Seconds that a wait may take."""
LONGEST = 3 * PATIENCE
WIDTHS = {1440: 900, 1024: 768, 390: 844}
"""Of a desk, a small laptop and a phone, with their heights."""
_MACHINES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_numbers = count(1)


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
    return {
        **how["environment"],
        "AGENT_BROWSER_EXECUTABLE_PATH": how["program"],
        "AGENT_BROWSER_ARGS": ",".join(how["arguments"]),
    }


class Tab:
    """One browser with one page; ends with the block."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self.token = url, token
        self._place = TemporaryDirectory(prefix="ab-")
        self._session = f"t{next(_numbers)}"
        self._environment = {
            **os.environ,
            **chromium(),
            # What it keeps is no one else's: sockets, states, profiles.
            "HOME": self._place.name,
            "AGENT_BROWSER_SOCKET_DIR": self._place.name,
            "AGENT_BROWSER_DEFAULT_TIMEOUT": str(int(PATIENCE * 1000)),
            "AGENT_BROWSER_NO_WEBMCP": "1",
            "AGENT_BROWSER_IDLE_TIMEOUT_MS": "600000",
        }
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if self._open and kind is None:
                self.is_well()
        finally:
            if self._open:
                self("close")
            self._place.cleanup()

    def __call__(self, *words: str) -> Any:
        """Any command of `agent-browser`; gives its data."""
        command = [program(), "--session", self._session, "--json", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=LONGEST)
        try:
            told = json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            raise Failed(f"{' '.join(words)}: {done.stdout}{done.stderr}") from None
        if not told.get("success"):
            raise Failed(f"{' '.join(words)[:300]}: {told.get('error')}{self._seen(words)}")
        return told.get("data")

    def _seen(self, words: tuple[str, ...]) -> str:
        """What was visible instead; nothing when that cannot be had either."""
        if words[0] not in ("wait", "find", "click", "fill"):
            return ""
        try:
            return f"\n\nvisible at {self.run('location.href')}:\n{self.run('document.body.innerText')[:3000]}"
        except Failed:
            return ""

    # Going

    def open(self, path: str = "", *, token: str | None = "") -> Self:
        """Go to a place below /ui/, with the server's token in the fragment, another one, or (None) without."""
        given = self.token if token == "" else token
        fragment = f"#token={given}" if given is not None else ""
        # By way of nothing: a change of the fragment alone would be no navigation.
        if self._open:
            self("open", "about:blank")
        self._open = True
        self("open", f"{self.url}/ui/{path}{fragment}")
        return self

    def reload(self) -> None:
        self("reload")

    def size(self, width: int, height: int | None = None) -> None:
        self("set", "viewport", str(width), str(height or WIDTHS[width]))

    def theme(self, scheme: Literal["light", "dark"]) -> None:
        # Without motion, which would be judged half-way.
        self("set", "media", scheme, "reduced-motion")

    # Seeing

    def sees(self, text: str) -> None:
        """Wait until this text is visible."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def does_not_see(self, text: str) -> None:
        """Wait until this text is not visible, or no longer."""
        self.until(f"!document.body.innerText.includes({json.dumps(text)})")

    def until(self, condition: str) -> None:
        """Wait until an expression is true on the page."""
        self("wait", "--fn", condition)

    def run(self, expression: str) -> Any:
        """The value of an expression on the page; a promise is awaited."""
        return self("eval", expression)["result"]

    @property
    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    @property
    def path(self) -> str:
        """Where the page is, without the server's address."""
        return str(self.run("location.pathname + location.search + location.hash"))

    @property
    def title(self) -> str:
        return str(self.run("document.title"))

    # Doing

    def click(self, name: str, role: str = "button") -> None:
        """Click what has this role and this name, once it is there."""
        self._wait_for(role, name)
        self("find", "role", role, "click", "--name", name, "--exact")

    def follow(self, name: str) -> None:
        """Click a link whose name contains this."""
        self._wait_for("link", name, exact=False)
        self("find", "role", "link", "click", "--name", name)

    def fill(self, label: str, text: str) -> None:
        """Put a text into the field with this label."""
        self._wait_until(lambda: self("find", "label", label, "fill", text))

    def choose(self, label: str, option: str) -> None:
        """Choose an option of the list with this label."""
        script = """(([label, option]) => {
          const named = [...document.querySelectorAll("select")].find((each) =>
            (each.labels?.[0]?.innerText ?? each.ariaLabel) === label);
          const found = [...(named?.options ?? [])].find(({ text, value }) => text === option || value === option);
          if (!found) throw new Error(`no option ${option} of ${label}`);
          Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, "value").set.call(named, found.value);
          named.dispatchEvent(new Event("change", { bubbles: true }));
        })"""
        self._wait_until(lambda: self.run(f"{script}({json.dumps([label, option])})"))

    def press(self, *keys: str) -> None:
        for key in keys:
            self("press", key)

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self("keyboard", "type", text)

    def upload(self, selector: str, *files: Path) -> None:
        self("upload", selector, *map(str, files))

    def _wait_for(self, role: str, name: str, *, exact: bool = True) -> None:
        self._wait_until(lambda: self("find", "role", role, "hover", "--name", name, *(["--exact"] if exact else [])))

    def _wait_until(self, attempt: Any) -> None:
        """Try until it works: things appear when they are ready. The page's own frames are the clock."""
        for _ in range(120):
            try:
                attempt()
            except Failed as failed:
                last = failed
            else:
                return
            self.run("new Promise((done) => setTimeout(done, 100))")
        raise last

    # Judging

    def is_well(self) -> None:
        """Fail when something went wrong on the page and no code caught it."""
        errors = self("errors").get("errors", [])
        assert errors == [], errors

    def is_accessible(self, *, in_colour_only: bool = False) -> None:
        """Fail when axe finds something that keeps people out."""
        # The frame and its sidebar are there before the room's own code is loaded, and a room begins with its heading.
        self.until("document.querySelector('h1') !== null")
        violations = self("a11y", *(["--tags", "wcag2aa"] if in_colour_only else [])).get("violations", [])
        assert violations == [], "\n".join(describe(each) for each in violations)

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self("screenshot", str(path))


def describe(violation: dict[str, Any]) -> str:
    """What axe found, and where."""
    nodes = [f"  {node.get('target')}: {str(node.get('html'))[:200]}" for node in violation.get("nodes", [])[:5]]
    return "\n".join([f"{violation.get('id')}: {violation.get('help')}", *nodes])
