"""Decides what an agent may do: reads and edits inside the project, and for everything else a person is asked.

usage: python examples/python/permissions.py [agent] [prompt ...]

The project is the current directory. Without an answer, or without a terminal, the answer is no.
"""

import asyncio
import sys
from pathlib import Path

from sandboxagent import Answer, PermissionRequest, SandboxAgent
from sandboxagent.protocol.acp import FileEditToolCallContent, ToolCallUpdate

PROJECT = Path.cwd().resolve()


async def on_permission(request: PermissionRequest) -> Answer:
    """Answer one request. If this fails, the SDK rejects it."""
    call = request.tool_call
    if call.kind in ("read", "edit") and inside_the_project(call):
        print(f"[{call.title}: allowed]")
        return request.allow()
    print(f"[{call.title}: {call.kind or 'something else'}, {', '.join(map(str, paths(call))) or 'no file'}]")
    # In a thread, so that everything else continues. If another client answers first, ours is not needed.
    return request.allow() if await asyncio.to_thread(yes, "Allow it? [y/N] ") else request.reject()


def inside_the_project(call: ToolCallUpdate) -> bool:
    """Whether it names files, and all of them are ours; links are followed to where they lead."""
    # This trusts the agent to name what it touches. What must hold against a hostile one is the sandbox's to enforce.
    named = paths(call)
    return bool(named) and all((PROJECT / path).resolve().is_relative_to(PROJECT) for path in named)


def paths(call: ToolCallUpdate) -> list[Path]:
    """The files that a tool call says it is about."""
    edits = [each.path for each in call.content or [] if isinstance(each, FileEditToolCallContent)]
    return [Path(path) for path in dict.fromkeys([*(place.path for place in call.locations or []), *edits])]


def yes(question: str) -> bool:
    """Whether a person says so, in as many words."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


async def main(agent: str = "mock", *prompts: str) -> None:
    """Run turns under these rules."""
    async with SandboxAgent.start(on_permission=on_permission) as client:
        session = await client.sessions.create(agent)
        for prompt in prompts or ["Ask me for permission, please."]:
            print(await session.prompt(prompt).text())


asyncio.run(main(*sys.argv[1:]))
