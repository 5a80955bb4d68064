"""Run the Amp adapter on stdin and stdout until stdin ends."""

import asyncio
import os
import signal
import sys

from sandboxagent.adapters.amp.agent import AmpAgent
from sandboxagent.adapters.amp.permissions import PermissionSocket
from sandboxagent.adapters.amp.run import AmpCli
from sandboxagent.adapters.stdio import Peer
from sandboxagent.server.processes.children import OWNER, ProcessTrees


async def serve() -> None:
    """Answer on stdio until stdin ends or SIGTERM comes, then end all running turns."""
    serving = asyncio.current_task()
    assert serving is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    children = ProcessTrees(os.environ.get(OWNER) or f"amp-{os.getpid()}")
    peer = await Peer.on_stdio()
    async with PermissionSocket() as permission_socket:
        agent = AmpAgent(peer, AmpCli(os.environ, children), permission_socket)
        try:
            await peer.serve(agent.methods(), agent.notifications())
        finally:
            await agent.stop()


def main() -> int:
    """Run until the end of stdin, or a signal."""
    try:
        asyncio.run(serve())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
