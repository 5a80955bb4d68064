"""Starts the mock agent on stdin and stdout; it ends when stdin does."""

import asyncio
import sys

import acp

from sandbox_agent.agents.mock.agent import MockAgent
from sandbox_agent.agents.mock.sessions import Sessions, state_directory
from sandbox_agent.agents.mock.stdio import LINE_LIMIT, StdioTransport


async def serve() -> None:
    """Answer on stdio until stdin ends."""
    reader, writer = await acp.stdio_streams(limit=LINE_LIMIT)
    agent = MockAgent(Sessions(state_directory()))
    # Fork, resume and close still count as unstable in the SDK.
    await acp.run_agent(agent, StdioTransport(reader, writer), use_unstable_protocol=True)


def main() -> int:
    """Run until the end of stdin, or Ctrl-C."""
    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
