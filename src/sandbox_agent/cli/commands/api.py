"""`sandbox-agent api …`: calls of a running server, by its routes. What it answers is printed as it came."""

from collections.abc import Callable
from typing import cast
from urllib.parse import quote

import msgspec
from msgspec import Raw

from sandbox_agent.cli.calling import CalledServer, call
from sandbox_agent.cli.commands import request
from sandbox_agent.cli.commands.agents import add_install_flags
from sandbox_agent.cli.commands.rpc import exchange
from sandbox_agent.cli.flags import ACCESS, add_endpoint_flags, add_node_flag
from sandbox_agent.cli.grammar import Arguments, Command, CommandGroup, Parser, Word, natural
from sandbox_agent.cli.output import complain, print_json, show_install
from sandbox_agent.envelope import Object

_OUTPUT = "The server's JSON goes to stdout, everything else to stderr.\n"

RPC = """\
Send JSON-RPC envelopes to a server, one per line of stdin, and print every envelope received, one
per line: responses and the stream, in the server's order. Requests run concurrently; envelopes
arrive in the order of the input.

--agent opens a connection, or your own initialize in the first line does. It is closed when the
input has ended and every request is answered. If the server refuses an envelope, you get a line on
stderr, and the exit code is 1; a response that is an error counts as a response. To answer an
agent's request, send a response with its id.
"""

EXAMPLES = """\
  sandbox-agent api GET /v1/health
  sandbox-agent api v1 agents list
  sandbox-agent api v1 agents install claude --endpoint http://box.example:2468 --token-file token.txt
"""


def group() -> CommandGroup:
    """All calls."""
    return CommandGroup(
        "sandbox-agent api",
        "Call a running server.",
        EXAMPLES,
        {
            "request": Word("any request; the word may be left out: api GET /v1/health", request.command),
            "v1": Word("the routes that begin with /v1", _v1),
        },
        implied=_implied_word,
    )


def _implied_word(argv: list[str]) -> str | None:
    return "request" if request.is_request(argv) else None


def _v1() -> CommandGroup:
    return CommandGroup(
        "sandbox-agent api v1",
        "Call the routes of a running server that begin with /v1.",
        EXAMPLES,
        {
            "agents": Word("agents of that server", _agents),
            "rpc": Word("POST and GET /v1/rpc: envelopes in, envelopes out", _rpc),
        },
    )


def _agents() -> CommandGroup:
    return CommandGroup(
        "sandbox-agent api v1 agents",
        "See and install the agents of a running server.",
        EXAMPLES,
        {
            "list": Word("GET /v1/agents", _list),
            "get": Word("GET /v1/agents/{agent}", _get),
            "install": Word("POST /v1/agents/{agent}/install", _install),
        },
    )


def _list() -> Command:
    parser = _parser(
        "list",
        "",
        "All agents, as GET /v1/agents tells them.",
        "  sandbox-agent api v1 agents list | jq '.agents[].id'\n",
    )
    parser.add_argument("--registry", "--all", action="store_true", help="Add all agents of the ACP registry.")
    return _agents_command(parser, _print_agents)


def _get() -> Command:
    parser = _parser(
        "get",
        "AGENT",
        "One agent, as GET /v1/agents/{agent} tells it.",
        "  sandbox-agent api v1 agents get claude | jq -r .instructions\n",
    )
    parser.add_argument("agent", metavar="AGENT", help="Its id, or its slug in the ACP registry.")
    return _agents_command(parser, _print_agent)


def _install() -> Command:
    parser = _parser(
        "install",
        "AGENT",
        "Have the server install an agent. Shows progress on stderr and prints the result. If you interrupt\n"
        "this command, the server continues.",
        "  sandbox-agent api v1 agents install claude\n"
        "  sandbox-agent api v1 agents install codex --reinstall --agent-process-version 2.6.0\n",
    )
    parser.add_argument("agent", metavar="AGENT", help="Its id, or its slug in the ACP registry.")
    add_install_flags(parser)
    return _agents_command(parser, _install_agent)


def _rpc() -> Command:
    examples = (
        "examples:\n"
        "  sandbox-agent api v1 rpc --agent mock -d \\\n"
        '      \'{"jsonrpc": "2.0", "id": 1, "method": "_sandboxagent/agent/list"}\'\n'
        "  sandbox-agent api v1 rpc < envelopes.jsonl\n"
        "      the first line is an initialize\n"
        "  sandbox-agent api v1 rpc --agent claude --follow\n"
        "      type envelopes, see what comes\n"
    )
    parser = Parser("sandbox-agent api v1 rpc", RPC, f"{ACCESS}\n{examples}")
    parser.add_argument(
        "-d", "--data", metavar="ENVELOPE", action="append", help="Send this instead of stdin. May be repeated."
    )
    parser.add_argument("--agent", metavar="AGENT", help="Open the connection with this agent.")
    parser.add_argument("--connection", metavar="ID", help="Use this open connection, and keep it open.")
    parser.add_argument("--keep", action="store_true", help="Keep the connection open, and print its id to stderr.")
    parser.add_argument(
        "--after",
        metavar="ID",
        type=natural,
        help="Begin the stream after this event (default: where the connection was opened, with --connection now).",
    )
    parser.add_argument(
        "--no-stream", action="store_true", help="Print only responses, one request at a time; do not read the stream."
    )
    parser.add_argument("-f", "--follow", action="store_true", help="Continue until interrupted.")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=natural,
        help="Fail if nothing arrives for this long while a request waits (default: wait).",
    )
    return _command(parser, exchange)


def _parser(name: str, words: str, description: str, examples: str) -> Parser:
    return Parser(
        f"sandbox-agent api v1 agents {name}", description, f"{ACCESS}{_OUTPUT}\nexamples:\n{examples}", words
    )


def _agents_command(parser: Parser, act: Callable[[Arguments], int]) -> Command:
    add_node_flag(parser, "that has the agents")
    return _command(parser, act)


def _command(parser: Parser, act: Callable[[Arguments], int]) -> Command:
    """With the flags that say which server is meant."""
    add_endpoint_flags(parser)
    return Command(parser, act)


# --- what they do -----------------------------------------------------------------------------------------------------


def _print_agents(arguments: Arguments) -> int:
    return _print_answer(arguments, "/v1/agents", registry=arguments.switch("registry") or None)


def _print_agent(arguments: Arguments) -> int:
    return _print_answer(arguments, f"/v1/agents/{quote(arguments.word('agent') or '', safe='')}")


def _print_answer(arguments: Arguments, path: str, **query: bool | None) -> int:
    async def work(remote: CalledServer) -> int:
        params = {**query, "node": arguments.word("node")}
        print_json(bytes(await remote.api.json("GET", path, params=params, type=Raw)))
        return 0

    return call(arguments, work)


def _install_agent(arguments: Arguments) -> int:
    agent = arguments.word("agent") or ""

    async def work(remote: CalledServer) -> int:
        from sandbox_agent.client.agents import Agents

        install = Agents(remote.api, node=arguments.word("node")).install(
            agent,
            reinstall=arguments.switch("reinstall"),
            agent_version=arguments.word("agent_version"),
            agent_process_version=arguments.word("agent_process_version"),
        )
        await show_install(install)
        result = msgspec.to_builtins(await install)
        print_json(msgspec.json.encode(_said(result)))
        return 0

    try:
        return call(arguments, work)
    except KeyboardInterrupt:
        complain(f"interrupted; the server continues the install {agent}")
        raise


def _said(value: object) -> object:
    """A document without members that the server has left out."""
    if isinstance(value, dict):
        return {name: _said(each) for name, each in cast("Object", value).items() if each is not None}
    return [_said(each) for each in cast("list[object]", value)] if isinstance(value, list) else value
