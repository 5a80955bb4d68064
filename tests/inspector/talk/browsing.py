"""A browser that tests drive with agent-browser: one command at a time, and waits that end on what they wait for."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from sandbox_agent.agents.install.tools import bundled_node
from tests.support.running import BOUND

BROWSER = Path(__file__).resolve().parents[2] / "browser"
PACKAGES = BROWSER / "node_modules"
AXE = PACKAGES / "axe-core" / "axe.min.js"


class Unavailable(Exception):
    """No browser starts here; says why."""


class Failed(Exception):
    """A command failed, in the browser or on the way there."""


@cache
def _environment() -> dict[str, str]:
    program = next((PACKAGES / "agent-browser" / "bin").glob("agent-browser.js"), None)
    if program is None or not AXE.exists():
        raise Unavailable("tests/browser/node_modules is not complete; ./dev test makes it")
    asked = [bundled_node().program, BROWSER / "where.mjs"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=BOUND)
    if found.returncode != 0:
        raise Unavailable(found.stderr.strip().splitlines()[-1])
    where = json.loads(found.stdout)
    return {
        **os.environ,
        **where["environment"],
        "AGENT_BROWSER_EXECUTABLE_PATH": where["program"],
        "AGENT_BROWSER_ARGS": "\n".join(where["arguments"]),
        "AGENT_BROWSER_INIT_SCRIPTS": str(AXE),
        "AGENT_BROWSER_JSON": "1",
    }


@cache
def _program() -> list[str]:
    """How agent-browser is called: by its program for this machine, which its script finds and makes executable."""
    script = [bundled_node().program, str(PACKAGES / "agent-browser" / "bin" / "agent-browser.js")]
    subprocess.run([*script, "--version"], capture_output=True, timeout=BOUND, check=True)
    system, machine = os.uname().sysname.lower(), {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, "")
    program = PACKAGES / "agent-browser" / "bin" / f"agent-browser-{system}-{machine}"
    return [str(program)] if os.access(program, os.X_OK) else script


class Tab:
    """A page in a browser of its own; ends with the block."""

    def __init__(self, name: str) -> None:
        self._environment = {**_environment(), "AGENT_BROWSER_SESSION": name}
        self._program = _program()

    def __enter__(self) -> "Tab":
        return self

    def __exit__(self, *_: object) -> None:
        self("close")

    def __call__(self, *command: str) -> Any:
        """What a command of agent-browser gives."""
        done = subprocess.run(
            [*self._program, *command], env=self._environment, capture_output=True, text=True, timeout=2 * BOUND
        )
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise Failed(f"{command[0]}: {done.stdout}{done.stderr}") from None
        if not answer["success"]:
            raise Failed(f"{' '.join(command)[:300]}: {answer['error']}")
        return answer["data"]

    def run(self, script: str) -> Any:
        """The value of an expression on the page, once it is there."""
        return self("eval", script).get("result")

    def until(self, condition: str) -> None:
        """Wait until an expression is true on the page."""
        script = f"""new Promise((resolve) => {{
            const isTrue = () => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }};
            if (isTrue()) return resolve(true);
            const look = () => {{ if (isTrue()) done(true); }};
            const watching = new MutationObserver(look);
            const often = setInterval(look, 50);
            const bound = setTimeout(() => done(false), 10_000);
            const done = (value) => {{
                watching.disconnect(); clearInterval(often); clearTimeout(bound); resolve(value);
            }};
            watching.observe(document, {{ subtree: true, childList: true, attributes: true, characterData: true }});
        }})"""
        # The browser answers no question that takes longer than half a minute.
        holds = any(self.run(script) for _ in range(round(BOUND / 10)))
        assert holds, f"this did not become true: {condition}\n{self.run('document.body.innerText')}"

    def sees(self, text: str, within: str = "body") -> None:
        """Wait until a text is shown."""
        self.until(f"document.querySelector({json.dumps(within)}).innerText.includes({json.dumps(text)})")

    def shows(self, selector: str) -> None:
        """Wait until there is such an element."""
        self.until(f"document.querySelector({json.dumps(selector)})")

    def hides(self, selector: str) -> None:
        """Wait until there is no such element."""
        self.until(f"!document.querySelector({json.dumps(selector)})")

    def click(self, selector: str) -> None:
        self.shows(selector)
        self("click", selector)

    def fill(self, selector: str, text: str) -> None:
        self.shows(selector)
        self("fill", selector, text)

    def text(self, selector: str) -> str:
        self.shows(selector)
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def violations(self) -> list[str]:
        """What axe has against the page as it is."""
        found = self.run("axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations)")
        return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]
