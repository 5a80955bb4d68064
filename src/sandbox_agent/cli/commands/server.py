"""`sandbox-agent server`: its flags are all the options there are."""

import gc
import os

from sandbox_agent.cli.flags import add_flags, settings_of
from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.settings import OPTIONS

EPILOG = """\
Each flag can also be an environment variable (--max-body: SANDBOX_AGENT_MAX_BODY)
or a key in config.toml of the configuration directory (max_body). A flag wins over
the environment, the environment over the file.

examples:
  sandbox-agent server --no-token
      for this machine only, to try things out
  sandbox-agent server --host 0.0.0.0 --token-file token.txt --allow-host box.example
      for clients on other machines that know it as box.example
"""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent server", "Run the server.", EPILOG)
    add_flags(parser, {option.name for option in OPTIONS})
    return Command(parser, serve)


def serve(arguments: Arguments) -> int:
    """Run the server until it is stopped; the result is the exit code."""
    settings = settings_of(arguments, os.environ)
    # What is imported now stays: there is nothing to collect until the server runs, and sets its own thresholds.
    gc.set_threshold(1_000_000)
    from sandbox_agent.server import run

    return run(settings)
