"""Handle the signals that ask the program to end."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles signals that ask the program to end; `on` decides, and returns False to end now."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.on: Callable[[signal.Signals], bool] = lambda _: False
        self.restore: Callable[[], None] = lambda: None
        """Leaves the terminal as it was found, for when there is no time for anything else."""
        self.received: signal.Signals | None = None
        """By what it was ended."""

    def tell(self, number: signal.Signals) -> None:
        """A signal has come."""
        if self.received is not None:
            # The second time means now. What an embedded server has started ends with it, and it with us.
            self.restore()
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(128 + self.received)
        if not self.on(number):
            self.leave(number)

    def leave(self, number: signal.Signals = signal.SIGINT) -> None:
        """End what runs."""
        self.received = number
        self._end()


def run(work: Callable[[Interrupts], Coroutine[object, object, int]]) -> int:
    """Run something to its end; gives its exit code, or 128 and the number of the signal that ended it."""

    async def watched() -> int:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[int] | None = None
        interrupts = Interrupts(lambda: task.cancel() if task is not None else None)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # An ignored signal stays ignored: nohup.
                loop.add_signal_handler(number, interrupts.tell, number)
        task = asyncio.create_task(work(interrupts))
        try:
            return await task
        except asyncio.CancelledError:
            if interrupts.received is None:
                raise
            return 128 + interrupts.received

    return asyncio.run(watched())
