"""Pass requests to an agent and back, as the smallest possible server in Python.

It parses and stores nothing. It is a floor for `call` and `turn`, measured with the same agent and the same load
client: uvloop, a socket and a pipe. The difference to our server is the cost of HTTP, checks, sessions and the log.
floors.py starts it.
"""

import asyncio
import sys
from collections import deque
from typing import cast

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nX-ACP-Connection-Id: c\r\ncontent-length: %d\r\n\r\n%b"
_waiting: deque[asyncio.Transport] = deque()
"""Sockets in the order of their requests, in which the agent answers."""


class Agent(asyncio.SubprocessProtocol):
    """The agent's pipe. Its responses go to clients, all other output is dropped."""

    rest = b""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if b'"result"' in line:
                _waiting.popleft().write(_HEAD % (len(line), line))


class Client(asyncio.Protocol):
    """A client's socket. A request arrives whole, in one or two pieces."""

    rest = b""

    def __init__(self, agent: asyncio.WriteTransport) -> None:
        self._agent = agent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        head, end, body = (self.rest + data).partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            self._transport.write(_HEAD % (2, b"{}"))
        elif end and body:
            self.rest = b""
            _waiting.append(self._transport)
            self._agent.write(body + b"\n")
        else:
            self.rest += data


async def main(port: int, agent: str) -> None:
    loop = asyncio.get_running_loop()
    child, _ = await loop.subprocess_exec(Agent, agent, stderr=None)
    pipe = cast(asyncio.WriteTransport, child.get_pipe_transport(0))
    server = await loop.create_server(lambda: Client(pipe), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
