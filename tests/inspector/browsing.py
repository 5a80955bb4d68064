"""A person at the Inspector: sees what is visible, clicks and types.

Every wait ends with what it waits for; its bound is long, so that no test fails because the machine is busy. A click or
a text goes to something that is there, enabled, uncovered and still (`hand.js`), and is given again when it did not
arrive: what loads above a button moves it between the look at it and the click.
"""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self

from tests.inspector.agent_browser import TIMEOUT, AgentBrowser, Failed

WIDTHS = {1440: 900, 1024: 768, 390: 844}
"""Of a desk, a small laptop and a phone, with their heights."""
_HAND = Path(__file__).with_name("hand.js").read_text().strip().removesuffix(";")
CONTRAST = "wcag143"
_ALL_BUT_COLORS = ",".join(
    f"cat.{each}"
    for each in (
        *("aria", "forms", "keyboard", "language", "name-role-value", "parsing", "semantics", "structure", "tables"),
        *("text-alternatives", "time-and-media"),
    )
)
"""Names that axe has for groups of its rules."""
_LOOK = 20.0
"""Seconds that one look for something may take: a page that is replaced meanwhile takes the look with it."""
_WATCH = """async (isTrue, patience) => {
  const end = performance.now() + patience;
  const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));
  let changed;
  const observer = new MutationObserver(() => changed());
  observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  try {
    for (let wrong = "it is not so"; ; await pause(20)) {
      const change = new Promise((resolve) => (changed = resolve));
      try {
        if (isTrue()) return null;
      } catch (error) {
        wrong = String(error);
      }
      if (performance.now() > end) return wrong;
      await Promise.race([change, pause(200)]);
    }
  } finally {
    observer.disconnect();
  }
}"""
"""Waits on the page itself, and looks again when something there has changed, or may have without a trace:
agent-browser would ask ten times a second, and tests would wait for that."""


class Tab:
    """The page of a browser at one server's Inspector; what it has kept there is gone with the block."""

    def __init__(self, browser: AgentBrowser, url: str, token: str | None) -> None:
        self.browser, self.url, self.token = browser, url, token
        self._numbers = count(1)

    def __enter__(self) -> Self:
        self.look_afresh()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.is_well()
        finally:
            self.forget()
            self.leave()
            self.browser("errors", clear=True)

    # Going

    def open(self, path: str = "", *, token: str | None = "") -> Self:
        """Go to a place below /ui/, with the server's token in the fragment, another one, or (None) without."""
        given = self.token if token == "" else token
        fragment = f"#token={given}" if given is not None else ""
        # By way of nothing: a change of the fragment alone would be no navigation.
        self.leave()
        self.browser("navigate", url=f"{self.url}/ui/{path}{fragment}")
        self.browser.is_away = False
        self._is_there()
        return self

    def reload(self) -> None:
        self.browser("reload")
        self._is_there()

    def leave(self) -> None:
        """Go away from the Inspector."""
        if not self.browser.is_away:
            self.browser("navigate", url="about:blank")
            self.browser.is_away = True

    def forget(self) -> None:
        """Let go of what the page has kept: tokens, drafts, widths."""
        self.run("location.origin !== 'null' && (localStorage.clear(), sessionStorage.clear())")

    def look_afresh(self) -> None:
        """Wide and light, at no page yet."""
        self.leave()
        self.size(1440)
        self.theme("light")

    def size(self, width: int, height: int | None = None) -> None:
        self.browser.keep("viewport", width=width, height=height or WIDTHS[width])

    def theme(self, scheme: Literal["light", "dark"]) -> None:
        # Without motion, which would be judged half-way.
        self.browser.keep("emulatemedia", colorScheme=scheme, reducedMotion="reduce")

    def _is_there(self) -> None:
        """The frame and its sidebar are there before the room's own code is; and a room begins with its heading."""
        self.until("document.querySelector('h1') !== null")

    # Seeing

    def sees(self, text: str) -> None:
        """Wait until this text is visible."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def does_not_see(self, text: str) -> None:
        """Wait until this text is not visible, or no longer."""
        self.until(f"!document.body.innerText.includes({json.dumps(text)})")

    def until(self, condition: str) -> None:
        """Wait until an expression is true on the page."""
        self._look(f"({_WATCH})(() => ({condition}), {_LOOK * 1000})", f"wait until {condition}")

    def run(self, expression: str) -> Any:
        """The value of an expression on the page; a promise is awaited."""
        return self.browser("evaluate", script=expression)["result"]

    @property
    def path(self) -> str:
        """Where the page is, without the server's address."""
        return str(self.run("location.pathname + location.search + location.hash"))

    def _seen(self) -> str:
        """What was visible instead; nothing when that cannot be had either."""
        try:
            return f"\n\nvisible at {self.run('location.href')}:\n{self.run('document.body.innerText')[:3000]}"
        except Failed:
            return ""

    # Doing, by the names that things have, or (`…_at`) by a selector

    def click(self, name: str, role: str = "button", *, exact: bool = True) -> None:
        """Click what has this role and this name, or a name with this in it."""
        self._click(role=role, name=name, exact=exact)

    def follow(self, name: str) -> None:
        """Click a link whose name contains this."""
        self._click(role="link", name=name)

    def click_at(self, selector: str) -> None:
        self._click(css=selector)

    def fill(self, label: str, text: str) -> None:
        """Put a text into the field with this label."""
        self._fill(text, role="field", name=label, exact=True)

    def fill_at(self, selector: str, text: str) -> None:
        self._fill(text, css=selector)

    def choose(self, label: str, option: str) -> None:
        """Choose an option of the list with this label."""
        self._find("choose", option=option, role="field", name=label, exact=True)

    def choose_at(self, selector: str, option: str) -> None:
        self._find("choose", option=option, css=selector)

    def focus_at(self, selector: str) -> None:
        self._find("focus", css=selector)

    def upload(self, selector: str, *files: Path) -> None:
        self._find("see", css=selector)
        self.browser("upload", selector=selector, files=[str(each) for each in files])

    def press(self, *keys: str) -> None:
        for key in keys:
            self.browser("press", key=key)

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self.browser("keyboard", subaction="type", text=text)

    def _click(self, **what: Any) -> None:
        def attempt() -> bool:
            number = self._find("click", **what)
            self.browser("click", selector=f"[data-hand='{number}']")
            # A page that is another one by now was left by this click.
            return bool(self.run(f"(window.handled ?? {number}) === {number}"))

        self._insist(attempt, f"click {what}")

    def _fill(self, text: str, **what: Any) -> None:
        def attempt() -> bool:
            selector = f"[data-hand='{self._find('fill', **what)}']"
            self.browser("fill", selector=selector, value=text)
            return bool(self.run(f"document.querySelector({json.dumps(selector)})?.value === {json.dumps(text)}"))

        self._insist(attempt, f"fill {what}")

    def _find(self, purpose: str, **what: Any) -> int:
        """Wait until something can be used, and make it ready or use it; gives the number by which it is found."""
        number = next(self._numbers)
        order = json.dumps({**what, "purpose": purpose, "number": number, "patience": _LOOK * 1000})
        self._look(f"({_HAND})({order})", f"{purpose} {what}")
        return number

    def _look(self, expression: str, what: str) -> None:
        """Have the page look for something, until it gives null and not what is wrong."""

        def attempt() -> bool:
            wrong = self.run(expression)
            if wrong is not None:
                raise Failed(wrong)
            return True

        self._insist(attempt, what)

    def _insist(self, attempt: Callable[[], bool], what: str) -> None:
        """Try until it works: what was found may be gone, or replaced, a moment later."""
        last, until = "", monotonic() + TIMEOUT
        while monotonic() < until:
            try:
                if attempt():
                    return
            except Failed as failed:
                last = str(failed)
        raise Failed(f"{what}: {last or 'it did not arrive'}{self._seen()}")

    # Judging

    def is_well(self) -> None:
        """Fail when something went wrong on the page and no code caught it."""
        errors = self.browser("errors", clear=True).get("errors", [])
        assert errors == [], errors

    def is_accessible(self, *, colors: bool = True, **scope: str) -> None:
        """Fail when axe finds something that keeps people out, on the whole page or in a part of it.

        To judge colours is half of the work: `colors=False` where other pages have all of them.
        """
        self._is_there()
        found = self.browser("a11y", **({} if colors else {"tags": _ALL_BUT_COLORS}), **scope)
        violations = found.get("violations", [])
        assert violations == [], "\n".join(describe(each) for each in violations)

    def has_accessible_room(self, *, colors: bool = True) -> None:
        """The same for the room alone; the sidebar beside it is judged once, for all rooms."""
        self.is_accessible(colors=colors, selector="main")

    def has_accessible_room_in_both_themes(self) -> None:
        """What depends on the theme is colour alone."""
        self.has_accessible_room()
        self.theme("dark")
        self.is_accessible(selector="main", tags=CONTRAST)

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.browser("screenshot", path=str(path), fullPage=False, annotate=False)


def describe(violation: dict[str, Any]) -> str:
    """What axe found, and where."""
    nodes = [f"  {node.get('target')}: {str(node.get('html'))[:200]}" for node in violation.get("nodes", [])[:5]]
    return "\n".join([f"{violation.get('id')}: {violation.get('help')}", *nodes])
