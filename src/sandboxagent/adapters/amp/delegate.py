"""Ask the adapter whether Amp may use a tool, and exit with 0 to allow or 2 to reject.

usage: python -I -S delegate.py SOCKET SECRET    with the tool's arguments on stdin, as JSON

Every failure rejects. Exit code 1 would mean "ask", which Amp cannot do here. Amp runs this program for each use of a
tool, so it imports little.
"""

import json
import os
import socket
import sys

ALLOW, REJECT = 0, 2
MAX_MESSAGE_BYTES = 64 << 20
"""Maximum bytes of a tool's arguments, and of an answer."""
ANSWER_TIMEOUT = 24 * 3600.0
"""Seconds to wait for an answer. The server's own limit is shorter."""


def ask(path: str, secret: str) -> tuple[bool, str]:
    """Ask the adapter; return whether it allows the use of the tool, and its reason if it does not."""
    arguments = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1)
    if len(arguments) > MAX_MESSAGE_BYTES:
        return False, "The arguments of this tool are too long to be checked."
    question = {
        "secret": secret,
        "tool": os.environ["AGENT_TOOL_NAME"],
        "id": os.environ.get("AGENT_TOOL_USE_ID"),
        "arguments": json.loads(arguments),
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        connection.connect(path)
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer = json.loads(answers.readline(MAX_MESSAGE_BYTES))
    return answer["allow"] is True, str(answer.get("reason") or "")


if __name__ == "__main__":
    code, text = REJECT, "Permission could not be asked for."
    try:
        allowed, reason = ask(sys.argv[1], sys.argv[2])
        code, text = (ALLOW, "") if allowed else (REJECT, reason or "The user did not allow this.")
    finally:
        # Amp gives the model the text on stderr. `_exit` runs no handlers, writes no traceback and keeps the code.
        os.write(2, text.encode())
        os._exit(code)
