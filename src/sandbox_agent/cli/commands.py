"""Commands and groups of commands: which word of a line leads where.

What a word leads to is loaded when the word is there: start-up time is a feature.
"""

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sandbox_agent.cli.arguments import Arguments, Parser, wrapped


class Command(NamedTuple):
    """Something to do: its grammar, and what is done with the arguments; that gives the exit code."""

    parser: Parser
    act: Callable[[Arguments], int]

    def run(self, argv: list[str]) -> int:
        return self.act(self.parser.parse(argv))


class Word(NamedTuple):
    """A word that stands for a command or for a group, and what help says of it."""

    summary: str
    load: Callable[[], "Command | Group"]


class Group(NamedTuple):
    """Commands that begin with the same words."""

    name: str
    description: str
    examples: str
    words: Mapping[str, Word]
    version: str | None = None

    def run(self, argv: list[str]) -> int:
        """Go where the next word leads; the result is the exit code."""
        if not argv:
            self.parser().print_help(sys.stderr)
            return 2
        # The first word decides: whatever follows it is its own, --help included.
        name, *rest = argv
        if name in self.words:
            return self.words[name].load().run(rest)
        if name == "help":
            return self.run([*rest, "--help"])
        parser = self.parser()
        if not name.startswith("-"):
            from sandbox_agent.settings.files import did_you_mean

            parser.error(f"unknown command {name}{did_you_mean(name, self.words)}")
        parser.parse(argv)
        return parser.error("expected a command")

    def parser(self) -> Parser:
        """The grammar of the group itself: help, and its words."""
        import shutil

        width = max(map(len, self.words)) + 4
        room = shutil.get_terminal_size().columns - width - 4
        summaries = {name: f"\n  {'':<{width}}".join(wrapped(word.summary, room)) for name, word in self.words.items()}
        words = "\n".join(f"  {name:<{width}}{summary}" for name, summary in summaries.items())
        more = f"{self.name} <command> --help tells more."
        parser = Parser(self.name, self.description, f"commands:\n{words}\n\nexamples:\n{self.examples}\n{more}")
        parser.usage = f"{self.name} [-h]{' [--version]' if self.version else ''} <command> ..."
        if self.version is not None:
            parser.add_argument("--version", action="version", version=self.version, help="Show the version.")
        return parser
