"""What a client sends, looked at on its way: whether its prompts have a head that a socket knows again."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import httptools

from sandboxagent.server.http.head import HeadMemo
from tests.support.cutting import Proxy


class Recording(Proxy):
    """Keeps the beginning of each POST."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.posts: list[bytes] = []

    def passes(self, data: bytes) -> bool:
        if data.startswith(b"POST /v1/rpc"):
            self.posts.append(data)
        return True


class _Headers:
    def __init__(self) -> None:
        self.found: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.found.append((name.lower(), value))


def learned(post: bytes) -> HeadMemo | None:
    """The head of a POST, as a socket remembers it."""
    head, parsed = post[: post.index(b"\r\n\r\n") + 4], _Headers()
    httptools.HttpRequestParser(parsed).feed_data(head)
    return HeadMemo.of(head, parsed.found)


def check_repeats(posts: Sequence[bytes]) -> None:
    """Raises AssertionError unless each of the last POSTs has the head of the one before it, and a key."""
    assert len(posts) > 1
    for before, after in pairwise(posts):
        known = learned(before)
        assert known is not None, before
        read = known.read(after)
        assert read is not None, (before, after)
        assert read[2] is not None, after
        assert len(after) <= read[1], "and nothing behind it"


async def run_program(*command: str, **environment: str) -> None:
    """Run a program to its end, while the event loop passes on what it sends."""
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
