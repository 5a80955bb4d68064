"""`sandbox-agent server`: its flags follow from the table of options; a wrong setting ends it with exit code 2."""

import os

from sandbox_agent.cli.arguments import Parser, complain
from sandbox_agent.errors import SettingsError
from sandbox_agent.settings import OPTIONS, Option, load

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


def serve(argv: list[str]) -> int:
    """Run the server until it is stopped; the result is the exit code."""
    options = _parser().parse(argv)
    try:
        settings = load(options, os.environ)
        for warning in settings.warnings:
            complain(f"warning: {warning}")
        from sandbox_agent.server import run

        return run(settings)
    except SettingsError as error:
        complain(str(error))
        return 2


def _parser() -> Parser:
    parser = Parser("sandbox-agent server", "Run the server.", EPILOG)
    parser.usage = "sandbox-agent server [flags]"
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(each.group for each in OPTIONS)}
    for option in OPTIONS:
        text = _help(option).replace("%", "%%")
        if option.kind.switch:
            groups[option.group].add_argument(
                option.flag, dest=option.name, action="store_true", default=None, help=text
            )
        else:
            action = "append" if option.kind.many else "store"
            metavar = option.kind.metavar
            groups[option.group].add_argument(option.flag, dest=option.name, action=action, metavar=metavar, help=text)
    return parser


def _help(option: Option) -> str:
    if option.kind.many:
        return f"{option.text} May be repeated."
    return option.text if option.kind.switch or option.default is None else f"{option.text} (default: {option.default})"
