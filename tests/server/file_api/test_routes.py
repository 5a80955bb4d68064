"""Files on their way in: contract, section 13."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import BadRequest, FileTooLarge
from sandboxagent.server.file_api.routes import BLOCK_BYTES, receive_file
from sandboxagent.server.files.entries import IncomingFile, WriteCondition
from sandboxagent.server.files.roots import Roots
from tests.support.client import run

POOL = Pool("test", 4)


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots([str(tmp_path)], "/")


async def body(*parts: bytes) -> AsyncGenerator[bytes]:
    for part in parts:
        yield part


def incoming(roots: Roots, limit: int | None = None) -> IncomingFile:
    return IncomingFile(roots, f"{roots.base}/file", WriteCondition(), limit)


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [BLOCK_BYTES], [BLOCK_BYTES - 1, 1, 1], [BLOCK_BYTES // 3] * 10, [3 * BLOCK_BYTES, 5]]
)
def test_a_file_is_what_came_however_it_came(roots: Roots, tmp_path: Path, sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    written = run(receive_file(incoming(roots), body(*parts), POOL))
    content = b"".join(parts)
    assert (tmp_path / "file").read_bytes() == content
    assert (written.bytes_written, written.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_body_that_falls_silent_is_given_up_and_leaves_nothing(roots: Roots, tmp_path: Path) -> None:
    async def silent() -> AsyncGenerator[bytes]:
        yield b"x" * 2 * BLOCK_BYTES
        await asyncio.Event().wait()

    with pytest.raises(BadRequest, match="nothing of the file came"):
        run(receive_file(incoming(roots), silent(), POOL, silence=0.05))
    assert os.listdir(tmp_path) == []


def test_a_body_that_fails_leaves_nothing_also_when_writing_fails_at_the_same_time(
    roots: Roots, tmp_path: Path
) -> None:
    async def failing() -> AsyncGenerator[bytes]:
        yield b"x" * 2 * BLOCK_BYTES
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run(receive_file(incoming(roots, limit=10), failing(), POOL))
    with pytest.raises(FileTooLarge):
        run(receive_file(incoming(roots, limit=10), body(b"x" * 11), POOL))
    assert os.listdir(tmp_path) == []
