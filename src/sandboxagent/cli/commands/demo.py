"""Run `sandbox-agent demo`: sessions of the mock agent in a small project, shown in the Inspector."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sandboxagent.cli.call import CLIENT
from sandboxagent.cli.commands.ui import open_link, write_link
from sandboxagent.cli.failures import tell
from sandboxagent.cli.flags import add_flags, settings_of
from sandboxagent.cli.output import EXIT_FAILED, complain
from sandboxagent.cli.parser import Command, ParsedArguments, Parser
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE
from sandboxagent.protocol.errors import SettingsError

if TYPE_CHECKING:
    from sandboxagent import SandboxAgent
    from sandboxagent.core.discovery import ServerAddress

DESCRIPTION = """\
Try the Inspector without an account: start the server in the background if none runs, let the mock
agent work in a small project, and open the Inspector. You see a finished task, a permission and a
question that wait for you, a long answer that still comes, and a crash. The project is the folder
`demo` in the data directory. Each run begins anew, and deletes the sessions of the one before.
"""
EXAMPLES = """\
  sandbox-agent demo
  sandbox-agent demo --print
      only print the link
"""
READY_TIMEOUT = 60.0
"""Seconds for the mock agent to do its work, or to ask for something."""

FILES = {
    "README.md": "# Greeter\n\nSays hello.\n",
    "greeter.py": 'def greet(name: str) -> str:\n    return f"Hello, {name}."\n',
    "test_greeter.py": (
        'from greeter import greet\n\n\ndef test_greet() -> None:\n    assert greet("Ada") == "Hello, Ada."\n'
    ),
}
"""The project, by the names of its files."""


class Scene(Struct, frozen=True):
    """A session of the demo."""

    prompts: tuple[str, ...]
    waits: bool = False
    """Whether the last prompt leaves a request open. Without it, the client allows all requests."""
    runs_on: bool = False
    """Whether the last turn still runs when the demo is ready."""
    apart: bool = False
    """Whether the session has an agent process of its own, so that its crash ends no other session."""


SCENES = (
    Scene(("crash, please",), apart=True),
    Scene(("slow 600: say a word now and then for ten minutes",), runs_on=True),
    Scene(("Ask me a question about colors",), waits=True),
    Scene(("write greeter.py: def greet(name: str) -> str:\n    return f\"Hello, {name or 'you'}!\"",), waits=True),
    Scene(
        (
            "Make a plan for the next release",
            "write CHANGES.md: # Changes\n\n- The greeting is friendlier.",
            "run ls -l && cat CHANGES.md",
        )
    ),
)
"""The sessions, in the order of their creation. Lists show the newest one first."""


def command() -> Command:
    """Make the command `demo`."""
    parser = Parser("sandbox-agent demo", DESCRIPTION, f"examples:\n{EXAMPLES}")
    parser.add_argument("--print", action="store_true", help="Print the link, and open nothing.")
    add_flags(parser, {"config_dir", "data_dir"})
    return Command(parser, _run)


def _run(arguments: ParsedArguments) -> int:
    import asyncio

    from sandboxagent import ClientError
    from sandboxagent.cli.daemon import ensure_server

    directory = settings_of(arguments, os.environ, {"config_dir", "data_dir"}).data_dir
    server = ensure_server(arguments, complain)
    if not server.local:
        raise SettingsError(
            f"the demo works on this machine, and {server.url} is another one: unset {ENDPOINT_VARIABLE}"
        )
    try:
        asyncio.run(_play(server, directory.absolute() / "demo"))
    except ClientError as failure:
        tell(failure)
        return EXIT_FAILED
    return open_link(directory, write_link(server), print_only=arguments.switch("print"))


async def _play(server: "ServerAddress", project: Path) -> None:
    """Make the project anew, and play all scenes in it."""
    from sandboxagent import SandboxAgent

    async with SandboxAgent.connect(server.url, server.token, agent="mock", name=CLIENT) as client:
        async for session in client.sessions.list(cwd=project):
            await client.sessions.terminate(session.session_id)
            await client.sessions.delete(session.session_id)
        shutil.rmtree(project, ignore_errors=True)
        project.mkdir(mode=0o700, parents=True)
        for name, text in FILES.items():
            (project / name).write_text(text, encoding="utf-8")
        for scene in SCENES:
            await _play_scene(client, project, scene)


async def _play_scene(client: "SandboxAgent", project: Path, scene: Scene) -> None:
    import asyncio

    from sandboxagent import Answer, PermissionRequest, QuestionRequest, RequestError

    is_asked = asyncio.Event()

    def permit(request: PermissionRequest) -> Answer | None:
        is_asked.set()
        return None if scene.waits else request.allow()

    def leave_open(_: QuestionRequest) -> None:
        is_asked.set()

    session = await client.sessions.create(cwd=project, env={"DEMO": "1"} if scene.apart else None)
    session.on_permission(permit)
    session.on_question(leave_open)
    async with asyncio.timeout(READY_TIMEOUT):
        for prompt in scene.prompts:
            turn = session.prompt(prompt)
            if scene.waits:
                await is_asked.wait()
            elif scene.runs_on:
                await anext(turn)
            else:
                # The agent that crashes fails its turn.
                with suppress(RequestError):
                    await turn
