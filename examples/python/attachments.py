"""Gives an agent a file to look at.

usage: python examples/python/attachments.py [agent] [file] [prompt]
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from sandboxagent import Attachment, SandboxAgent

REPORT = "region,sold\nnorth,17\nsouth,42\n"


async def main(agent: str = "mock", file: str | None = None, prompt: str = "What do you make of these?") -> None:
    """Put two files into the session's directory and attach them to a prompt."""
    with tempfile.TemporaryDirectory() as directory:
        async with SandboxAgent.start() as client:
            session = await client.sessions.create(agent, cwd=directory)

            # The directory may be on another machine: files go there through the server. A `str` or `bytes` is what
            # is written; a `Path` is a file of this machine, which is read while it is sent.
            await session.files.write("inbox/report.csv", REPORT)
            here = Path(file or __file__)
            await session.files.write(f"inbox/{here.name}", here)

            # Paths are relative to the session's directory. Images go to agents that take images as images, all else
            # as links; an Attachment has more to say about a file.
            report = Attachment("inbox/report.csv", mime="text/csv", filename="Sales of this week")
            print(await session.prompt(prompt, attachments=[report, f"inbox/{here.name}"]).text())


asyncio.run(main(*sys.argv[1:]))
