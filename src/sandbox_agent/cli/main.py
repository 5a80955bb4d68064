"""The command sandbox-agent: finds the subcommand and hands it the rest of the line.

A subcommand's module is imported only when it is called: start-up time is a feature.
"""

import sys
from collections.abc import Callable, Sequence

from sandbox_agent import __version__
from sandbox_agent.cli.arguments import Parser


def _server(argv: list[str]) -> int:
    from sandbox_agent.cli.serve import serve

    return serve(argv)


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "server": (_server, "run the server"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    # The first word decides: whatever follows a command is its own, --help included.
    name = arguments[0]
    if name.startswith("-"):
        parser.parse(arguments)
        parser.error("expected a command")
    if name not in COMMANDS:
        from sandbox_agent.settings.files import did_you_mean

        parser.error(f"unknown command {name}{did_you_mean(name, COMMANDS)}")
    try:
        return COMMANDS[name][0](arguments[1:])
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    commands = "\n".join(f"  {name:<10}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = Parser(
        prog="sandbox-agent",
        description="Run and control coding agents inside a sandbox, over HTTP.",
        epilog=f"commands:\n{commands}\n\nsandbox-agent <command> --help tells more.",
    )
    parser.usage = "sandbox-agent [-h] [--version] <command> ..."
    parser.add_argument("--version", action="version", version=f"sandbox-agent {__version__}", help="show the version")
    return parser
