"""`sandbox-agent acp`: a server's sessions for a program that speaks ACP on stdio, mostly an editor. Its grammar."""

import os

from sandbox_agent.cli.flags import ACCESS, add_endpoint_flags
from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.cli.output import EXIT_FAILED, complain, describe
from sandbox_agent.settings.options import ENDPOINT_VARIABLE

DESCRIPTION = f"""\
Speak ACP on stdin and stdout, and pass it on to a server: any editor that can start an ACP agent as
a program can drive an agent on another machine. A cut connection is opened again, even if the server
was restarted, and nothing is lost or repeated.

The server is the one that --connect or {ENDPOINT_VARIABLE} names, or the one that runs on the data
directory. The address may be that of the server, or that of its /acp.
"""
EXAMPLES = """\
  sandbox-agent acp --agent claude
      an agent of the server on this machine
  sandbox-agent acp --connect https://box.example.org/acp/claude --token-file ~/.box-token
  sandbox-agent acp --agent claude --session 0198c2f4
      the editor's next new session is this one
"""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent acp", DESCRIPTION, f"{ACCESS}\nexamples:\n{EXAMPLES}")
    parser.add_argument(
        "--connect", metavar="URL", dest="endpoint", help="The server's address; --endpoint is the same."
    )
    parser.add_argument(
        "--agent", metavar="AGENT", help="The agent; else that of the address, else the server's default."
    )
    parser.add_argument("--session", metavar="SESSION", help="Open this session when the editor asks for a new one.")
    add_endpoint_flags(parser)
    return Command(parser, _run)


def _run(arguments: Arguments) -> int:
    import asyncio

    from sandbox_agent.cli.commands.stdio import StdioBridge
    from sandbox_agent.client.errors import ClientError
    from sandbox_agent.core.discovery import USUAL_SERVER, find_server

    server = find_server(arguments.values, os.environ, complain) or USUAL_SERVER
    bridge = StdioBridge(server, arguments.word("agent"), arguments.word("session"))
    try:
        return asyncio.run(bridge.run())
    except ClientError as failure:
        describe(str(failure))
        return EXIT_FAILED
