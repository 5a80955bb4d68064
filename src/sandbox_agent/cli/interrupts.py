"""Running something to its end on an event loop; who is told to stop cleans up first, however often it is told."""

import asyncio
import signal
from collections.abc import Coroutine

import uvloop

from sandbox_agent.cli.arguments import complain

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[object, object, None]) -> None:
    """Run it. A signal cancels it, and the program ends with 128 and the signal's number as its exit code."""
    told: list[signal.Signals] = []

    async def watched() -> None:
        task = asyncio.create_task(work)

        def stop(number: signal.Signals) -> None:
            if not told:
                task.cancel()
            told.append(number)

        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, for one, means it.
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            await task
        except asyncio.CancelledError:
            if not told:
                raise

    # The same event loop as the server's: children end alike.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    if told:
        complain(f"stopped by {told[0].name}; what was under way is undone")
        raise SystemExit(128 + told[0])
