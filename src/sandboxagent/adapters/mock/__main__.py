"""Run the mock agent on stdin and stdout until stdin ends."""

import asyncio
import sys

from sandboxagent.adapters.mock.agent import MockAgent, Sessions, state_directory
from sandboxagent.adapters.stdio import Peer


async def serve() -> None:
    """Answer on stdio until stdin ends."""
    peer = await Peer.on_stdio()
    agent = MockAgent(peer, Sessions(state_directory()))
    await peer.serve(agent.methods(), agent.notifications())


def main() -> int:
    """Run until the end of stdin, or Ctrl-C."""
    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
