"""The command line's grammar: argparse, with complaints on one line and an offer when a flag is nearly right."""

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and keeps a help text's lines."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
        )

    def error(self, message: str) -> NoReturn:
        complain(message if message.endswith("?") else f"{message}; try: {self.prog} --help")
        raise SystemExit(2)

    def parse(self, argv: list[str]) -> dict[str, object]:
        """The arguments by name; what is not known ends the program."""
        namespace, unknown = self.parse_known_args(argv)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return vars(namespace)

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        from sandbox_agent.settings.files import did_you_mean

        flag = argument.partition("=")[0]  # What follows may be a token.
        flags = [flag for action in self._actions for flag in action.option_strings]
        return f"unknown flag {flag}{did_you_mean(flag, flags)}"


def complain(message: str) -> None:
    """One line about a user's mistake."""
    print(f"sandbox-agent: {message}", file=sys.stderr)
