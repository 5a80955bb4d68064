"""Add the flags of settings to a command, load the settings, and pass the flags on to a server."""

import os
from collections.abc import Collection, Mapping

from sandboxagent.cli.output import complain
from sandboxagent.cli.parser import ParsedArguments, Parser
from sandboxagent.core.settings import OPTIONS, Option, Settings, load
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE, PREFIX

AGENTS = frozenset(
    {
        *("config_dir", "data_dir", "agents_dir", "agents_file", "acp_registry_url"),
        # These apply to an agent process that a command starts as a test.
        *("install_timeout", "require_hashes", "request_timeout", "max_line", "stdin_limit", "stop_grace"),
    }
)
"""Names of the options of commands that list, check, install and remove agents."""


def add_flags(parser: Parser, names: Collection[str]) -> None:
    """Add the flags of the named options to a command."""
    options = [each for each in OPTIONS if each.name in names]
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(each.group for each in options)}
    for option in options:
        text = _help(option).replace("%", "%%")
        if option.kind.switch:
            groups[option.group].add_argument(
                option.flag, dest=option.name, action="store_true", default=None, help=text
            )
        else:
            action = "append" if option.kind.many else "store"
            metavar = option.kind.metavar
            groups[option.group].add_argument(option.flag, dest=option.name, action=action, metavar=metavar, help=text)


def settings_of(
    arguments: ParsedArguments, environ: Mapping[str, str], only: Collection[str] | None = None
) -> Settings:
    """Return the settings by flags, environment and config.toml: all, or those in `only`. Raises SettingsError."""
    names = {each.name for each in OPTIONS}
    flags = {name: value for name, value in arguments.values.items() if name in names}
    settings = load(flags, environ, only)
    for warning in settings.warnings:
        complain(f"warning: {warning}")
    return settings


def agent_settings(arguments: ParsedArguments) -> Settings:
    """Return the settings for a command about agents.

    Such a command reports its failures itself, so log reports are kept from stderr.
    """
    import logging

    logging.getLogger("sandboxagent").addHandler(logging.NullHandler())
    return settings_of(arguments, os.environ, AGENTS)


def _help(option: Option[object]) -> str:
    if option.kind.many:
        return f"{option.text} May be repeated."
    return option.text if option.kind.switch or option.default is None else f"{option.text} (default: {option.default})"


ACCESS = """\
Give the token with --token or SANDBOX_AGENT_TOKEN, --token-file or SANDBOX_AGENT_TOKEN_FILE. For a
server on this machine, it is also read from config.toml and from the file token in the data
directory. Without --endpoint and SANDBOX_AGENT_ENDPOINT, the command calls the server that runs on
the data directory. If none runs there, it starts one in the background, which stops after 30 minutes
without work.
"""
"""Part of the help text of commands that call a server."""


def add_endpoint_flags(parser: Parser) -> None:
    """Add the flags that select a server."""
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help=f"Address of the server. (default: {ENDPOINT_VARIABLE}, else the server on the data directory)",
    )
    parser.add_argument("--token", metavar="TOKEN", help="The server's token.")
    parser.add_argument("--token-file", metavar="PATH", help="File that holds the token.")
    add_flags(parser, {"config_dir", "data_dir"})


def add_node_flag(parser: Parser, what: str) -> None:
    """Add the flag that names a node of a fleet."""
    parser.add_argument("--node", metavar="NODE", help=f"At a gateway with several nodes: the node {what}.")


def forward(arguments: ParsedArguments, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the flags and the environment for a server process.

    The token goes into the environment, because other users can read a command line.
    """
    flags: list[str] = []
    for option in OPTIONS:
        value = arguments.values.get(option.name)
        if value is True:
            flags.append(option.flag)
        elif value is not None and option.name != "token":
            items = arguments.words(option.name) if option.kind.many else [value]
            flags += [f"{option.flag}={item}" for item in items]
    token = arguments.word("token")
    # A token flag replaces every other source of a token.
    given = {} if token is None else {f"{PREFIX}TOKEN": token, f"{PREFIX}TOKEN_FILE": ""}
    return flags, {**environ, **given}
