"""Ask every check before an action, and refuse the action if one refuses, fails or takes too long."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec

from sandboxagent.protocol.errors import CheckFailed, SandboxAgentError

logger = logging.getLogger(__name__)

CHECK_TIMEOUT = 10.0
"""Seconds for all checks of one action."""

P = ParamSpec("P")


class Gate(Generic[P]):
    """The checks before one kind of action, such as sending a prompt."""

    def __init__(self, what: str, timeout: float = CHECK_TIMEOUT) -> None:
        """Take `what`, the name of the action in errors."""
        self._what = what
        self._timeout = timeout
        self.checks: list[tuple[str, Callable[P, Awaitable[None] | None]]] = []
        """The checks, each with the name of its owner."""

    def add(self, owner: str, check: Callable[P, Awaitable[None] | None]) -> None:
        """Add a check. It returns None to agree at once, or an awaitable to agree later.

        It raises SandboxAgentError to refuse.
        """
        self.checks.append((owner, check))

    def ask(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[None] | None:
        """Ask all checks. Returns None if all agree at once, else an awaitable that returns when they do.

        Both raise the SandboxAgentError of a check that refuses, and CheckFailed if a check fails or takes too long.
        """
        waits: list[tuple[str, Awaitable[None]]] = []
        for owner, check in self.checks:
            try:
                wait = check(*args, **kwargs)
            except Exception as error:
                _drop(waits)
                raise self._refusal(owner, error) from error
            if wait is not None:
                waits.append((owner, wait))
        return self._wait(waits) if waits else None

    async def _wait(self, waits: list[tuple[str, Awaitable[None]]]) -> None:
        owner = ""
        try:
            async with asyncio.timeout(self._timeout):
                while waits:
                    owner, wait = waits.pop(0)
                    await wait
        except Exception as error:
            raise self._refusal(owner, error) from error
        finally:
            _drop(waits)

    def _refusal(self, owner: str, error: Exception) -> SandboxAgentError:
        if isinstance(error, SandboxAgentError):
            return error
        if isinstance(error, TimeoutError):
            logger.warning("check took too long of=%s by=%s", self._what, owner)
        else:
            logger.error("check failed of=%s by=%s", self._what, owner, exc_info=error)
        return CheckFailed(self._what, owner)


def _drop(waits: list[tuple[str, Awaitable[None]]]) -> None:
    """Close coroutines that will not be awaited."""
    for _, wait in waits:
        if asyncio.iscoroutine(wait):
            wait.close()
