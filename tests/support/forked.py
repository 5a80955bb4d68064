"""Stands in for `sandbox-agent`: has the fork_server fork it, with our streams, and ends as it ends.

`python -I -S forked.py <address> <arguments>…`. Signals are passed on; SIGUSR1 is passed on as SIGKILL, which could not
be otherwise: then the end of this process is the end of that one, too.
"""

import json
import os
import signal
import socket
import sys
from typing import NoReturn

_LONGEST = 1 << 20
_PASSED = {each: each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)} | {signal.SIGUSR1: signal.SIGKILL}


def main(address: str, arguments: list[str]) -> NoReturn:
    fork_server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server.connect(b"\0" + address.encode())
    wish = {"arguments": arguments, "environment": dict(os.environ), "terminal": False, "cwd": os.getcwd()}  # noqa: PTH109
    socket.send_fds(fork_server, [json.dumps(wish).encode()], [0, 1, 2])
    pid = json.loads(fork_server.recv(_LONGEST))["started"]
    for number, passed in _PASSED.items():
        signal.signal(number, lambda *_, passed=passed: os.kill(pid, passed))
    # Who reads what it writes waits for its end, and not for ours.
    for stream in range(3):
        os.close(stream)
    code = json.loads(fork_server.recv(_LONGEST))["code"]
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
