"""An agent that leaves something behind, and hangs on to life itself.

usage: escaping_agent.py DAEMON...     with DAEMON one of

  naked      double-forked, a session of its own, no descriptors, no environment
  nameless   the same, and it has also changed the limit that is our mark
  marked     the same as naked, but with the environment it inherited
  child      a plain child in the same session, that holds stdout and stderr
  stripped   a child in a session of its own, without environment
  stopper    naked, and it stops the agent's reaper again and again

All of them ignore SIGTERM. Prints the pids of the daemons in one line when they run, then obeys a line on stdin:
`exit N`. It ignores SIGTERM and the end of stdin.
"""

import os
import resource
import signal
import sys

DAEMONS = ("naked", "nameless", "marked", "stopper")

STOPPER = """
import os, sys, time
end = time.monotonic() + 60
while time.monotonic() < end:
    os.kill(int(sys.argv[1]), 19)
    time.sleep(0.001)
"""


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(*[start(kind) for kind in sys.argv[1:]], flush=True)
    for line in sys.stdin:
        word, code = line.split()
        if word == "exit":
            os._exit(int(code))
    while True:
        signal.pause()


def start(kind: str) -> int:
    """Its pid, once it has been through exec: that closes the pipe."""
    reader, writer = os.pipe()
    reaper = str(os.getppid())
    forked = os.fork()
    if forked == 0:
        if kind != "child":
            os.setsid()
        if kind in DAEMONS and os.fork() != 0:
            os._exit(0)
        if kind == "nameless":
            resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 40, 1 << 40))
        os.write(writer, str(os.getpid()).encode())
        if kind != "child":
            for descriptor in range(3):
                os.close(descriptor)
        if kind == "stopper":
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", STOPPER, reaper], {})
        environment = dict(os.environ) if kind in ("marked", "child") else {}
        os.execve("/bin/sleep", ["sleep", "60"], environment)
    os.close(writer)
    with open(reader) as pid:
        daemon = int(pid.read())
    if daemon != forked:
        os.waitpid(forked, 0)
    return daemon


if __name__ == "__main__":
    main()
