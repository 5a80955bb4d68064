"""An agent that leaves something behind, and hangs on to life itself.

usage: escaping_agent.py DAEMON...     with DAEMON one of

  naked      double-forked, a session of its own, no descriptors, no environment
  marked     the same, but with the environment it inherited
  child      a plain child in the same session, that holds stdout and stderr
  stripped   a child in a session of its own, without environment

All of them ignore SIGTERM. Prints the pids of the daemons in one line when they run, then obeys a line on stdin:
`exit N`. It ignores SIGTERM and the end of stdin.
"""

import os
import signal
import sys


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
    forked = os.fork()
    if forked == 0:
        if kind != "child":
            os.setsid()
        if kind in ("naked", "marked") and os.fork() != 0:
            os._exit(0)
        os.write(writer, str(os.getpid()).encode())
        if kind != "child":
            for descriptor in range(3):
                os.close(descriptor)
        environment = {} if kind in ("naked", "stripped") else dict(os.environ)
        os.execve("/bin/sleep", ["sleep", "1000"], environment)
    os.close(writer)
    with open(reader) as pid:
        daemon = int(pid.read())
    if daemon != forked:
        os.waitpid(forked, 0)
    return daemon


if __name__ == "__main__":
    main()
