"""Talks with an agent, and prints what it says while it says it.

usage: python examples/python/chat.py [agent] [prompt ...]
"""

import asyncio
import sys

from sandboxagent import SandboxAgent, text_of


async def main(agent: str = "mock", *prompts: str) -> None:
    """Send one prompt after the other, in one session."""
    async with SandboxAgent.start() as client:  # A private server, stopped when the block ends.
        session = await client.sessions.create(agent)
        for prompt in prompts or ["Hello!", "What can you do? Please help."]:
            print(f"> {prompt}")
            async for update in session.prompt(prompt):
                print(text_of(update), end="", flush=True)
            print("\n")


asyncio.run(main(*sys.argv[1:]))
