"""Run the command `sandbox-agent`: choose a subcommand and report how it fails.

To start fast, it imports the module of a command only when that command is called.
"""

import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from sandboxagent import __version__
from sandboxagent.cli.parser import Command, CommandGroup, Subcommand
from sandboxagent.protocol.errors import SandboxAgentError, SettingsError

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def _in(module: str, name: str) -> Callable[[], Command | CommandGroup]:
    """Return a function that imports the module and makes its command or group."""

    def load() -> Command | CommandGroup:
        make: Callable[[], Command | CommandGroup] = getattr(import_module(f"sandboxagent.cli.{module}"), name)
        return make()

    return load


EXAMPLES = """\
  sandbox-agent run mock hello
      give an agent a prompt; mock needs no account
  sandbox-agent server
      run the server, on this machine only
  sandbox-agent agents install claude
      install Claude Code before its first use
  sandbox-agent credentials check
      see which credentials agents find
  sandbox-agent doctor
      find out why something does not work
"""

COMMANDS = CommandGroup(
    "sandbox-agent",
    "Run and control coding agents inside a sandbox, over HTTP.",
    EXAMPLES,
    {
        "run": Subcommand("give an agent a prompt, or talk to it", _in("commands.run", "run_command")),
        "attach": Subcommand("watch a session, and talk to its agent", _in("commands.run", "attach_command")),
        "server": Subcommand("run the server", _in("commands.server", "server_command")),
        "gateway": Subcommand(
            "serve the sessions of a fleet of servers at one address", _in("commands.server", "gateway_command")
        ),
        "fleet": Subcommand("set up a fleet of servers, or try one out", _in("fleet.command", "group")),
        "daemon": Subcommand("run the server in the background", _in("commands.daemon", "group")),
        "agents": Subcommand(
            "list, install and remove agents; needs no server", _in("commands.agents", "agents_group")
        ),
        "credentials": Subcommand("see which credentials agents can find", _in("commands.agents", "credentials_group")),
        "permissions": Subcommand("check and test permission rules", _in("commands.permissions", "group")),
        "ui": Subcommand("open the Inspector in a browser", _in("commands.ui", "command")),
        "demo": Subcommand("try the Inspector with the mock agent", _in("commands.demo", "command")),
        "sessions": Subcommand("see, name and end the sessions of a running server", _in("commands.sessions", "group")),
        "fs": Subcommand("view files on a running server, and copy them", _in("commands.fs", "group")),
        "acp": Subcommand("let an editor that speaks ACP on stdio use a server", _in("commands.acp", "command")),
        "api": Subcommand("call a running server", _in("commands.api", "group")),
        "doctor": Subcommand("find problems, and how to fix them", _in("doctor.command", "command")),
        "completion": Subcommand("set up completion in a shell", _in("completion", "command")),
    },
    version=f"sandbox-agent {__version__}",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A character that the terminal cannot encode is no failure.
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words[:1] == ["__complete"]:
            # The completion script of a shell calls this when you press the tab key.
            from sandboxagent.cli.completion import answer

            code = answer(words[1:])
        else:
            code = COMMANDS.run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # At exit, Python would flush stdout again and report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except ModuleNotFoundError as error:
        from sandboxagent.cli.output import EXIT_FAILED, complain
        from sandboxagent.cli.parser import how_to_install

        remedy = how_to_install(error)
        if remedy is None:
            raise
        complain(remedy)
        return EXIT_FAILED
    except SandboxAgentError as error:
        from sandboxagent.cli.output import EXIT_FAILED, EXIT_MISTAKE, describe

        describe(str(error), error.fields.get("stderr"))
        if isinstance(error, SettingsError):
            return EXIT_MISTAKE
        from sandboxagent.cli.failures import ServerFailed

        return error.exit_code if isinstance(error, ServerFailed) else EXIT_FAILED
    return code
