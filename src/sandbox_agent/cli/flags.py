"""Flags that stand for settings: they follow from the table of options."""

import os
from collections.abc import Collection, Mapping

from sandbox_agent.cli.grammar import Arguments, Parser
from sandbox_agent.cli.output import complain
from sandbox_agent.settings import OPTIONS, Option, Settings, load

AGENTS = frozenset(
    {
        *("config_dir", "data_dir", "agents_dir", "agents_file", "acp_registry_url"),
        # What starting an agent to see that it works keeps to.
        *("install_timeout", "require_hashes", "request_timeout", "max_line", "stdin_limit", "stop_grace"),
    }
)
"""The options that count where agents are looked at, installed and removed."""


def add_flags(parser: Parser, names: Collection[str]) -> None:
    """Let a command take the flags of these options."""
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


def settings_of(arguments: Arguments, environ: Mapping[str, str], only: Collection[str] | None = None) -> Settings:
    """The settings by flags, environment and config.toml, all or `only` these; raises SettingsError."""
    names = {each.name for each in OPTIONS}
    flags = {name: value for name, value in arguments.values.items() if name in names}
    settings = load(flags, environ, only)
    for warning in settings.warnings:
        complain(f"warning: {warning}")
    return settings


def agent_settings(arguments: Arguments) -> Settings:
    """The settings for a command about agents, which tells its failures itself: no other reports go to stderr."""
    import logging

    logging.getLogger("sandbox_agent").addHandler(logging.NullHandler())
    return settings_of(arguments, os.environ, AGENTS)


def _help(option: Option) -> str:
    if option.kind.many:
        return f"{option.text} May be repeated."
    return option.text if option.kind.switch or option.default is None else f"{option.text} (default: {option.default})"
