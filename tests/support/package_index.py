"""npm and PyPI on a loopback address, in a thread of their own: packages that a test makes, and everything that can go
wrong with them. Nothing of it is on a network."""

import base64
import hashlib
import io
import json
import re
import socket
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.support.running import BOUND

AGENT = Path(__file__).with_name("tiny_agent.js").read_text()
SCRIPTED = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nfrom scripted_agent import main\n"
"""A module with the scripted agent's main()."""

Fault = Callable[[BaseHTTPRequestHandler, bytes], None]
"""Answers a request instead of us; gets what the answer would have been."""


@dataclass
class Held:
    """A request that is not answered before the test says so."""

    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        assert self.reached.wait(4 * BOUND), "no request came for what is held"


class PackageIndex:
    """Serves until the block ends. `environment` is what a server needs to find it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._files: dict[str, bytes] = {}
        self._packages: dict[str, dict[str, Any]] = {}
        self._wheels: dict[str, list[str]] = {}
        self._faults: list[tuple[str, Fault]] = []
        self._held: list[Held] = []
        self._cache = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def __enter__(self) -> "PackageIndex":
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._held:
            held.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._cache.cleanup()

    @property
    def environment(self) -> dict[str, str | None]:
        """Variables that lead npm and uv here, with caches of their own."""
        cache = self._cache.name
        return {
            "npm_config_registry": f"{self.url}/npm/",
            "npm_config_cache": f"{cache}/npm",
            "UV_DEFAULT_INDEX": f"{self.url}/simple/",
            "UV_CACHE_DIR": f"{cache}/uv",
            "PIP_FIND_LINKS": None,
        }

    # --- packages -----------------------------------------------------------------------------------------------------

    def npm(self, name: str, version: str = "1.0.0", program: str | None = AGENT, **facts: Any) -> str:
        """Publish a package of npm whose only program is this script; gives its integrity. None: it has no program."""
        files = {} if program is None else {"cli.js": program}
        own = {} if program is None else {"bin": {name.rpartition("/")[2]: "cli.js"}}
        return self.npm_files(name, version, files, **{**own, **facts})

    def npm_files(self, name: str, version: str, files: dict[str, str], **facts: Any) -> str:
        """Publish a package of npm with these files, and these facts in its package.json."""
        about = {"name": name, "version": version, **facts}
        all_files = {"package.json": json.dumps(about), **files}
        tarball = packed({f"package/{path}": content for path, content in all_files.items()})
        path = f"/npm/-/{name.replace('/', '-')}-{version}.tgz"
        self._files[path] = tarball
        digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        dist = {"tarball": self.url + path, "integrity": f"sha512-{digest}"}
        package = self._packages.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        package["versions"][version] = {**about, "dist": dist}
        package["dist-tags"]["latest"] = version
        return dist["integrity"]

    def pypi(
        self,
        name: str,
        version: str = "1.0.0",
        module: str = SCRIPTED,
        program: str | None = None,
        requires: Sequence[str] = (),
    ) -> None:
        """Publish a wheel whose program calls main() of this module."""
        package = name.replace("-", "_")
        about = f"{package}-{version}.dist-info"
        files = {
            f"{package}.py": module,
            f"{about}/METADATA": "\n".join(
                [
                    "Metadata-Version: 2.1",
                    f"Name: {name}",
                    f"Version: {version}",
                    *map("Requires-Dist: {}".format, requires),
                    "",
                ]
            ),
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/entry_points.txt": f"[console_scripts]\n{program or name} = {package}:main\n",
        }
        files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
        file = f"{package}-{version}-py3-none-any.whl"
        self._files[f"/wheels/{file}"] = _wheel(files)
        self._wheels.setdefault(name, []).append(file)

    def forget_hash(self, name: str, version: str) -> None:
        """Give no integrity for a package of npm any more."""
        del self._packages[name]["versions"][version]["dist"]["integrity"]

    def archive(self, name: str, content: bytes) -> str:
        """Serve a file; gives its address."""
        self._files[f"/archives/{name}"] = content
        return f"{self.url}/archives/{name}"

    # --- faults: `part` is a part of the path -------------------------------------------------------------------------

    def fail(self, part: str, status: int = 500) -> None:
        """Answer requests with a status."""
        self._faults.append((part, lambda handler, _: _send(handler, b"{}", status)))

    def cut(self, part: str) -> None:
        """Send half of the body, and hang up."""

        def cut(handler: BaseHTTPRequestHandler, body: bytes) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body[: len(body) // 2])
            handler.close_connection = True

        self._faults.append((part, cut))

    def change(self, part: str) -> None:
        """Send another body of the same length."""
        self._faults.append((part, lambda handler, body: _send(handler, body[:-8] + bytes(8))))

    def hold(self, part: str) -> Held:
        """Answer only when the test says so."""
        held = Held()
        self._held.append(held)

        def wait(handler: BaseHTTPRequestHandler, body: bytes) -> None:
            held.reached.set()
            held.release.wait(60)
            _send(handler, body)

        self._faults.append((part, wait))
        return held

    def repair(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    # --- answers ------------------------------------------------------------------------------------------------------

    def body(self, path: str) -> bytes | None:
        """What is at a path."""
        if path in self._files:
            return self._files[path]
        if path.startswith("/npm/") and (package := self._packages.get(unquote(path.removeprefix("/npm/")))):
            return json.dumps(package).encode()
        if match := re.fullmatch(r"/simple/([^/]+)/?", path):
            links = [f'<a href="{self.url}/wheels/{file}">{file}</a>' for file in self._wheels.get(match[1], [])]
            return "\n".join(["<!doctype html>", *links]).encode() if links else None
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                index.asked.append(path)
                body = index.body(path)
                fault = next((fault for part, fault in index._faults if part in path), None)
                if fault is not None:
                    fault(self, body or b"")
                else:
                    _send(self, body or b"{}", 200 if body is not None else 404)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Who was killed hangs up in the middle; that is what tests are about."""


def _send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    path = handler.path.partition("?")[0]
    kind = "text/html" if path.startswith("/simple/") else "application/json"
    handler.send_response(status)
    handler.send_header("Content-Type", "application/octet-stream" if path.endswith((".tgz", ".whl")) else kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def packed(files: dict[str, str]) -> bytes:
    """An archive of programs."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content.encode()), 0o755
            tar.addfile(info, io.BytesIO(content.encode()))
    return target.getvalue()


def _wheel(files: dict[str, str]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return target.getvalue()


def npx(id: str, package: str, **more: Any) -> dict[str, Any]:
    """An entry of the ACP registry for a package of npm."""
    return entry(id, npx={"package": package, **more})


def uvx(id: str, package: str, **more: Any) -> dict[str, Any]:
    """An entry of the ACP registry for a package of PyPI."""
    return entry(id, uvx={"package": package, **more})


def entry(id: str, version: str = "1.0.0", **distribution: Any) -> dict[str, Any]:
    return {
        "id": id,
        "name": id.title(),
        "version": version,
        "description": f"The agent {id}.",
        "distribution": distribution,
    }


def registry(file: Path, *entries: dict[str, Any]) -> Path:
    """A file that is an ACP registry with these entries."""
    file.write_text(json.dumps({"version": "1.0.0", "agents": entries}))
    return file


@contextmanager
def closed_port() -> Generator[str]:
    """An address of this machine where no program listens, or ever will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
