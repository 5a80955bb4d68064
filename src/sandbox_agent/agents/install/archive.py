"""stub"""

from collections.abc import Callable
from pathlib import Path


async def fetch(
    url: str, target: Path, *, sha256: str | None, max_bytes: int, progress: Callable[[int, int | None], None]
) -> str:
    raise NotImplementedError


def extract(archive: Path, into: Path, *, name: str, max_bytes: int, max_entries: int) -> None:
    raise NotImplementedError
