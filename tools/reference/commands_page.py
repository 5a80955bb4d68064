"""Write docs/reference/cli.md, every command with its flags, from the parsers."""

import argparse
from collections.abc import Iterable

from sandboxagent.cli.main import COMMANDS
from sandboxagent.cli.parser import Command, CommandGroup
from tools.reference.markdown import heading_link, row

_TOP = """\
<!-- Written by `./dev docs`; change the commands in the code, not this page. -->

# Command line

`sandbox-agent <command> --help` shows the same. Flags that are settings may also be environment variables or keys in
`config.toml` ([configuration.md](configuration.md)). Tables are drawn on a terminal; in a pipe, and with `NO_COLOR`,
they are plain text. Results go to stdout, everything else to stderr. [Migrating](../migrating.md) has the commands of
the npm package `@sandbox-agent/cli` beside these.

| exit code | when |
|---|---|
| 0 | success |
| 1 | failure; one line on stderr gives the reason |
| 2 | a mistake in an argument, a flag, a variable or a file; the line names it |
| 3 | `sandbox-agent server`: the port is taken; `run`: the agent had to stop |
| 4 | `sandbox-agent run`: the agent refused |
| 130, 143 | interrupted (Ctrl-C) or terminated; unfinished work is undone |
"""


def render_commands() -> str:
    """Return the whole page."""
    return _TOP + "".join(_group(COMMANDS))


def _group(group: CommandGroup) -> Iterable[str]:
    found = {f"{group.name} {name}": (word, word.load()) for name, word in group.words.items()}
    if group is not COMMANDS:
        yield f"\n## {group.name}\n\n{group.description}\n"
    yield "\n" + row("command", "what it does") + "|---|---|\n"
    for name, (word, _) in found.items():
        yield row(f"[{name}]({heading_link(name)})", word.summary)
    for below in (each for _, each in found.values()):
        yield from _group(below) if isinstance(below, CommandGroup) else _command(below)


def _command(command: Command) -> Iterable[str]:
    parser = command.parser
    yield f"\n## {parser.prog}\n\n{(parser.description or '').strip()}\n\n```\n{parser.usage}\n```\n"
    more, _, examples = (parser.epilog or "").partition("examples:\n")
    yield f"\n{more.strip()}\n" if more.strip() else ""
    yield "\n" + row("argument", "what it means") + "|---|---|\n"
    for action in parser.actions():
        yield row(f"`{_written(action)}`", (action.help or "").replace("%%", "%"))
    lines = "\n".join(line.removeprefix("  ") for line in examples.rstrip().splitlines())
    yield f"\n```\n{lines}\n```\n"


def _written(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if not action.option_strings:
        return metavar
    return ", ".join(f"{flag} {metavar}".strip() for flag in action.option_strings)
