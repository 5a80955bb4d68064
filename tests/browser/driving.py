"""A browser that tests drive: Playwright in a process of its own (`driver.mjs`); and sites that pages come from."""

import json
import subprocess
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import urlsplit

from sandboxagent.server.agents.install.tools import bundled_node

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT = 90.0
"""Seconds for all that a page does in one call, on a machine that is busy."""


class Unavailable(Exception):
    """There is no browser here; says why."""


class Failed(Exception):
    """A call failed, on the page or on the way there."""


class Browser:
    """Chromium; ends with the block. What is asked of it is asked by `call` and answered in any order."""

    def __init__(self) -> None:
        if not (HERE / "node_modules" / "playwright-core").exists():
            raise Unavailable("tests/browser/node_modules is not there; ./dev test makes it")
        self._ids = count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._process = subprocess.Popen(
            [bundled_node().program, HERE / "driver.mjs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        first = json.loads(self._process.stdout.readline() or '{"unavailable": "its driver does not start"}')
        if "unavailable" in first:
            self.close()
            raise Unavailable(first["unavailable"])
        self.version: str = first["ready"]
        self._reading = Thread(target=self._read)
        self._reading.start()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT)
        finally:
            self._process.kill()
            self._process.wait()
            if hasattr(self, "_reading"):
                self._reading.join()
            self._process.stdout.close()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            asked = self._asked.pop(told["id"])
            if "fails" in told:
                asked.set_exception(Failed(told["fails"]))
            else:
                asked.set_result(Remote(self, told["object"]) if "object" in told else told.get("gives"))
        for asked in self._asked.values():
            asked.set_exception(Failed("the browser has ended"))

    def begin(self, on: str, call: str, *arguments: Any) -> "Future[Any]":
        """Call a method of something that is there, without waiting for it."""
        assert self._process.stdin is not None
        id = next(self._ids)
        asked = self._asked[id] = Future[Any]()
        self._process.stdin.write(json.dumps({"id": id, "on": on, "call": call, "with": arguments}) + "\n")
        self._process.stdin.flush()
        return asked

    @contextmanager
    def context(self, **options: Any) -> Generator["Context"]:
        """Pages that share what a browser keeps, and share it with no others."""
        context = self.begin("o0", "newContext", options).result(TIMEOUT)
        try:
            # A busy machine may need longer than what Playwright waits by itself.
            context("setDefaultTimeout", 60_000)
            yield Context(self, context.name)
        finally:
            context("close")


class Remote:
    """Something of Playwright's, in the driver: call a method of it by name."""

    def __init__(self, browser: Browser, name: str) -> None:
        self.browser, self.name = browser, name

    def begin(self, call: str, *arguments: Any) -> "Future[Any]":
        return self.browser.begin(self.name, call, *arguments)

    def __call__(self, call: str, *arguments: Any) -> Any:
        return self._result(self.begin(call, *arguments), call)

    @staticmethod
    def _result(asked: "Future[Any]", what: str) -> Any:
        try:
            return asked.result(TIMEOUT)
        except TimeoutError:
            raise Failed(f"this did not end within {TIMEOUT} s: {what}") from None


class Context(Remote):
    @contextmanager
    def page(self, url: str, ready: str = "true") -> Generator["Page"]:
        """A page that has been opened; an error in it that no code catches fails the test."""
        page = Page(self.browser, self("newPage").name)
        page("goto", url)
        page.until(ready)
        try:
            yield page
            page.is_well()
        finally:
            page("close")


class Page(Remote):
    """A page; `run` plays JavaScript on it."""

    @property
    def reference(self) -> dict[str, str]:
        """The page as an argument of a call."""
        return {"object": self.name}

    def starts(self, body: str, **given: Any) -> "Future[Any]":
        """Begin to play the body of an async function, in which the given values have their names."""
        source = f"async ({{{', '.join(given)}}}) => {{\n{body}\n}}"
        return self.begin("evaluate", {"function": source}, given)

    def run(self, body: str, **given: Any) -> Any:
        """The value that it returns."""
        return self._result(self.starts(body, **given), body)

    def is_well(self) -> None:
        """Fail when the page had an error that no code caught."""
        # A browser reports a rejected promise when the page has nothing else to do.
        self.run("await new Promise((done) => setTimeout(done));")
        problems = self("problems")
        assert not problems, "\n".join(problems)

    def until(self, condition: str) -> None:
        """Wait until an expression is true on the page, for five seconds."""
        self("waitForFunction", condition, None, {"timeout": 60_000})


class _Handler(SimpleHTTPRequestHandler):
    """Files of several folders, by the beginnings of their paths."""

    protocol_version = "HTTP/1.1"
    extensions_map: ClassVar = {".html": "text/html", ".js": "text/javascript", "": "application/octet-stream"}

    def __init__(self, folders: Mapping[str, Path], *arguments: Any) -> None:
        self.folders = folders
        super().__init__(*arguments)

    def translate_path(self, path: str) -> str:
        plain = urlsplit(path).path
        beginning = max((each for each in self.folders if plain.startswith(each)), key=len)
        found = self.folders[beginning].joinpath(plain.removeprefix(beginning)).resolve()
        return str(found / "index.html" if found.is_dir() else found)

    def end_headers(self) -> None:
        # The SDK is some hundred files: the next page need not ask for them again.
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def log_message(self, format: str, *_: object) -> None:
        pass


@contextmanager
def site(folders: Mapping[str, Path]) -> Generator[str]:
    """A site on a loopback address, by its origin; other origins are other sites for a browser."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, folders))
    server.daemon_threads = True
    serving = Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
