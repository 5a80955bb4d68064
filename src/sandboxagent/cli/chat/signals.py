"""Handle the signals that ask the program to end."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A handler of signals that ask the program to end. `on` decides about them, and returns False to end the work."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.on: Callable[[signal.Signals], bool] = lambda _: False
        self.restore: Callable[[], None] = lambda: None
        """A function that restores the terminal, for an exit without other cleaning up."""
        self.received: signal.Signals | None = None
        """The signal that ended the work."""

    def tell(self, number: signal.Signals) -> None:
        """Handle a signal."""
        if self.received is not None:
            # The second signal ends the program at once. An embedded server ends with it, and its agents with that.
            self.restore()
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(128 + self.received)
        if not self.on(number):
            self.leave(number)

    def leave(self, number: signal.Signals = signal.SIGINT) -> None:
        """Cancel the work."""
        self.received = number
        self._end()


def run(work: Callable[[Interrupts], Coroutine[object, object, int]]) -> int:
    """Run a coroutine to its end. Return its exit code, or 128 plus the number of the signal that ended it."""

    async def watched() -> int:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[int] | None = None
        interrupts = Interrupts(lambda: task.cancel() if task is not None else None)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # An ignored signal stays ignored, as under nohup.
                loop.add_signal_handler(number, interrupts.tell, number)
        task = asyncio.create_task(work(interrupts))
        try:
            return await task
        except asyncio.CancelledError:
            if interrupts.received is None:
                raise
            return 128 + interrupts.received

    return asyncio.run(watched())
