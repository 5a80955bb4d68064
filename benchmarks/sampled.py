"""Run a Python program and write samples of its stacks: `sampled.py OUT PROGRAM ARGUMENTS…`.

A signal interrupts each millisecond of CPU time that the process uses. Each thread's stack is charged with the CPU
time of this thread since the last signal, so that a waiting thread costs nothing. A C function is charged to the Python
function that called it, or to the next one that begins.
"""

import atexit
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

INTERVAL = 0.001
Stack = tuple[str, ...]


class Sampler:
    def __init__(self) -> None:
        self.micros: Counter[Stack] = Counter()
        self._used: dict[int, float] = {}

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def _sample(self, signum: int, frame: FrameType | None) -> None:
        del signum
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        for thread in threading.enumerate():
            if thread.ident is None or thread.ident not in frames:
                continue
            used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            spent = used - self._used.get(thread.ident, used)
            self._used[thread.ident] = used
            is_main = thread is threading.main_thread()
            if spent > 0:
                self.micros[_stack(frame if is_main else frames[thread.ident], thread.name)] += round(spent * 1e6)

    def write(self, path: Path) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_text("".join(f"{';'.join(stack)} {micros}\n" for stack, micros in sorted(self.micros.items())))


def _stack(frame: FrameType | None, thread: str) -> Stack:
    """Return the stack from the thread's name to the running function."""
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?").removeprefix("sandboxagent.").removeprefix("server.")
        names.append(f"{module}.{code.co_qualname}".replace(";", ","))
        frame = frame.f_back
    return (thread, *reversed(names))


def main() -> None:
    out, program, sys.argv = Path(sys.argv[1]), sys.argv[2], sys.argv[2:]
    sampler = Sampler()
    atexit.register(sampler.write, out)
    sampler.start()
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
