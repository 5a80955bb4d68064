"""The command sandbox-agent: its subcommands, and how it reports failures.

A command's module is imported only when it is called: start-up time is a feature.
"""

import io
import os
import sys
from collections.abc import Sequence

from sandbox_agent import __version__
from sandbox_agent.cli.grammar import Command, Group, Word
from sandbox_agent.errors import SandboxAgentError, SettingsError

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def _run() -> Command:
    from sandbox_agent.cli.commands.run import run_command

    return run_command()


def _attach() -> Command:
    from sandbox_agent.cli.commands.run import attach_command

    return attach_command()


def _server() -> Command:
    from sandbox_agent.cli.commands.server import command

    return command()


def _daemon() -> Group:
    from sandbox_agent.cli.commands.daemon import group

    return group()


def _agents() -> Group:
    from sandbox_agent.cli.commands.agents import group

    return group()


def _credentials() -> Group:
    from sandbox_agent.cli.commands.credentials import group

    return group()


def _permissions() -> Group:
    from sandbox_agent.cli.commands.permissions import group

    return group()


def _sessions() -> Group:
    from sandbox_agent.cli.commands.sessions import group

    return group()


def _fs() -> Group:
    from sandbox_agent.cli.commands.fs import group

    return group()


def _api() -> Group:
    from sandbox_agent.cli.commands.api import group

    return group()


def _doctor() -> Command:
    from sandbox_agent.cli.doctor.command import command

    return command()


def _completion() -> Command:
    from sandbox_agent.cli.completion.command import command

    return command()


EXAMPLES = """\
  sandbox-agent run mock hello
      give an agent a prompt; mock needs no account
  sandbox-agent server
      run the server, on this machine only
  sandbox-agent agents install claude
      install Claude Code before its first use
  sandbox-agent credentials check
      see which agents can reach a model
  sandbox-agent doctor
      find out why something does not work
"""

COMMANDS = Group(
    "sandbox-agent",
    "Run and control coding agents inside a sandbox, over HTTP.",
    EXAMPLES,
    {
        "run": Word("give an agent a prompt, or talk to it", _run),
        "attach": Word("watch a session, and talk to its agent", _attach),
        "server": Word("run the server", _server),
        "daemon": Word("run the server in the background", _daemon),
        "agents": Word("list, install and remove agents; needs no server", _agents),
        "credentials": Word("see which credentials agents can find", _credentials),
        "permissions": Word("check and test permission rules", _permissions),
        "sessions": Word("see, name and end the sessions of a running server", _sessions),
        "fs": Word("view files on a running server, and copy them", _fs),
        "api": Word("call a running server", _api),
        "doctor": Word("find problems, and how to fix them", _doctor),
        "completion": Word("set up completion in a shell", _completion),
    },
    version=f"sandbox-agent {__version__}",
)


def _answer(words: list[str]) -> int:
    """Answer a shell that asks because you pressed the tab key."""
    from sandbox_agent.cli.completion.command import answer

    return answer(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A letter that the terminal does not have is no reason to fail.
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _answer(words[1:]) if words[:1] == ["__complete"] else COMMANDS.run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python would try once more to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except SandboxAgentError as error:
        from sandbox_agent.cli.output import EXIT_FAILED, EXIT_MISTAKE, describe

        describe(str(error), error.fields.get("stderr"))
        return EXIT_MISTAKE if isinstance(error, SettingsError) else EXIT_FAILED
    return code
