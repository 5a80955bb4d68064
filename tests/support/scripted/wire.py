"""Stdin and stdout of the scripted agent: lines, answers to its own requests, and what its updates look like."""

import os
import select
from _collections import deque
from _thread import allocate_lock

from scripted.light import Event, dumps

UPDATE = "session/update"
LONG, FEW, MANY, FIRST = 4096, 100, 1000, 10
"""A line of so many bytes is kept while it is one of the few newest, any other one while it is one of many, or if it is
one of the first."""


class Wire:
    """Stdin and stdout as lines."""

    def __init__(self):
        self.received = []
        self._long = deque()
        self._lock = allocate_lock()
        self._stop, self._wake = os.pipe()

    def write(self, data):
        with self._lock:
            self._write(data)

    def _write(self, data):
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError:  # no one reads any more
            os._exit(0)

    def send(self, **fields):
        self.write(encode({"jsonrpc": "2.0", **fields}) + b"\n")

    def stop_reading(self):
        os.write(self._wake, b"x")

    def lines(self):
        """Lines until the end of stdin; blocks for ever after `stop_reading`."""
        pieces = []
        while True:
            ready, _, _ = select.select([0, self._stop], [], [])
            if self._stop in ready:
                Event().wait()
            data = os.read(0, 1 << 16)
            if not data:
                return
            *complete, rest = data.split(b"\n")
            for line in complete:
                whole = b"".join([*pieces, line])
                pieces = []
                if whole.strip():
                    self._remember(whole)
                    yield whole
            pieces.append(rest)

    def _remember(self, line):
        """Tests that share an agent ask for its lines all the time; those of earlier ones would cost seconds."""
        self.received.append(line.decode("utf-8", "replace"))
        if len(line) > LONG:
            self._long.append(len(self.received) - 1)
        while self._long and self._long[0] < len(self.received) - FEW:
            self.received[self._long.popleft()] = "{}"
        if len(self.received) > FIRST + MANY:
            self.received[-MANY - 1] = "{}"


class Answers:
    """Answers to our own requests, by id; several requests may share one."""

    def __init__(self):
        self._lock = allocate_lock()
        self._waiting = {}
        self._count = 0

    def next_id(self):
        with self._lock:
            self._count += 1
            return self._count - 1

    def expect(self, id):
        ask = {"line": None, "arrived": Event()}
        with self._lock:
            self._waiting.setdefault(dumps(id), []).append(ask)
        return ask

    def arrived(self, id, line):
        with self._lock:
            asks = self._waiting.get(dumps(id))
            ask = asks.pop(0) if asks else None
        if ask:
            ask["line"] = line.decode("utf-8", "replace")
            ask["arrived"].set()

    def wait(self, ask):
        ask["arrived"].wait()
        return ask["line"]


def encode(message):
    return dumps(message).encode()


def chunk(text, kind="agent_message_chunk"):
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
