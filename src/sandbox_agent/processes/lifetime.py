"""How a child of ours begins and ends: in a session of its own, with its mark, and with its whole tree.

Knows nothing of what a child says. On the event loop's thread.
"""

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import TypeVar

from sandbox_agent.processes.children import Children

T = TypeVar("T")

KILL_PATIENCE = 0.2
"""Seconds to die after SIGKILL; a process that is still there then is in the kernel, and may never come back."""
KILL_INTERVAL = 0.02
NEWS_PATIENCE = 0.5
"""Seconds for the event loop to learn of a death."""


async def start_child(
    children: Children,
    key: str,
    protocol: asyncio.SubprocessProtocol,
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None,
    pipes: tuple[int, int, int],
    linger: float | None = 0,
) -> None:
    """Start a program; `environment` is all it gets, but for our markers. The protocol must register it.

    `pipes` are its stdin, stdout and stderr: `PIPE`, `STDOUT` or `DEVNULL` of asyncio.subprocess. `linger` are the
    seconds that what it leaves running has before that is killed; with None it needs no keeper, because it starts
    nothing.

    Raises:
        OSError: there is no such program or directory, or it may not be run.
    """
    stdin, stdout, stderr = pipes
    with children.spawning(key):
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: protocol,
                *command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**environment, **children.environment()},
                cwd=directory,
                start_new_session=True,
                preexec_fn=children.preexec(key, linger),
            )
        except subprocess.SubprocessError as error:  # There are too many processes.
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error


async def end_tree(children: Children, key: str, dead: asyncio.Future[None], grace: float) -> None:
    """End a child with its whole tree: SIGTERM, a grace, SIGKILL. `dead` is done when the child is.

    Comes back in any case: a process that hangs in the kernel cannot be waited for.
    """
    children.terminate(key)
    if await wait_until(grace, dead):
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + KILL_PATIENCE
    while not dead.done() and loop.time() < deadline:
        if children.kill(key) == 0:
            # The event loop is about to learn that it is dead.
            await wait_until(NEWS_PATIENCE, dead)
            return
        await wait_until(KILL_INTERVAL, dead)


async def wait_until(seconds: float, future: asyncio.Future[T]) -> bool:
    """Wait for a future, but not longer; whether it is done."""
    await asyncio.wait({future}, timeout=seconds)
    return future.done()


def read_exit_status(returncode: int | None) -> tuple[int | None, str | None]:
    """How a process ended: its exit code, or the name of its signal. One that was never seen to end was killed."""
    if returncode is None:
        return None, "SIGKILL"
    if returncode >= 0:
        return returncode, None
    try:
        return None, signal.Signals(-returncode).name
    except ValueError:  # A real-time signal.
        return None, f"SIG{-returncode}"
