"""A thread that changes names as fast as possible, while a test looks."""

import ctypes
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.running import BOUND

_EXCHANGE = 2
_HERE = -100
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def swapping(change: Callable[[], None]) -> Generator[None]:
    """Do it again and again for the time of the block; it has happened once when the block begins."""
    stop, begun = threading.Event(), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            change()
            begun.set()

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    try:
        begun.wait(BOUND)
        yield
    finally:
        stop.set()
        thread.join(BOUND)


def exchange(one: Path, other: Path) -> Callable[[], None]:
    """Two names change places, in one step; nothing happens when one is gone."""
    names = os.fsencode(one), os.fsencode(other)

    def change() -> None:
        _LIBC.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)

    return change
