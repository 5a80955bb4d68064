"""The file API as an app calls it, for black-box tests."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.support.running import BOUND, TOKEN, Server


class Filing:
    """A server whose only root is a folder of its own, and a client of its file API."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server = server
        self.root = root
        self.http = httpx.Client(
            base_url=f"{server.url}/v1/fs",
            # A socket for each request: none is left open.
            headers={"Authorization": f"Bearer {TOKEN}", "Connection": "close"},
            timeout=60,
            trust_env=False,
            verify=False,
        )

    def get(self, path: str, headers: dict[str, str] | None = None, **query: str) -> httpx.Response:
        return self.http.get("/file", params={"path": path, **query}, headers=headers)

    def put(
        self, path: str, content: bytes | Iterator[bytes], headers: dict[str, str] | None = None, **query: str
    ) -> httpx.Response:
        return self.http.put("/file", params={"path": path, **query}, content=content, headers=headers)

    def entries(self, path: str, **query: str) -> httpx.Response:
        return self.http.get("/entries", params={"path": path, **query})

    def stat(self, path: str, **query: str) -> httpx.Response:
        return self.http.get("/stat", params={"path": path, **query})

    def mkdir(self, path: str, **query: str) -> httpx.Response:
        return self.http.post("/mkdir", params={"path": path, **query})

    def move(self, source: str, target: str, **more: object) -> httpx.Response:
        return self.http.post("/move", json={"from": source, "to": target, **more})

    def delete(self, path: str, **query: str) -> httpx.Response:
        return self.http.delete("/entry", params={"path": path, **query})

    def raw(self, method: str, target: str, body: bytes = b"", **headers: str) -> socket.socket:
        """A request that has been sent as it is, on a socket of its own."""
        address = urlsplit(self.server.url)
        connection = socket.create_connection((address.hostname, address.port), timeout=BOUND)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {address.netloc}", f"Authorization: Bearer {TOKEN}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection


def problem(response: httpx.Response) -> tuple[int, str]:
    """The status and the slug of a refusal, which must be a whole problem with a path."""
    found = response.json()
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert found["status"] == response.status_code
    assert "path" in found, found
    return response.status_code, found["type"].rpartition(":")[2]
