"""The command line's grammar: argparse, with complaints on one line and an offer when a flag is nearly right."""

import argparse
import sys
from collections.abc import Mapping
from typing import NoReturn, cast


class Arguments:
    """What one command line says, by name."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values

    def word(self, name: str) -> str | None:
        """A value; None when it was not given."""
        return cast("str | None", self.values.get(name))

    def words(self, name: str) -> list[str]:
        """All values of what may be given several times."""
        return cast("list[str]", self.values.get(name) or [])

    def number(self, name: str) -> int | None:
        """A value that `natural` has read; None when it was not given."""
        return cast("int | None", self.values.get(name))

    def switch(self, name: str) -> bool:
        """Whether a flag without a value was given."""
        return bool(self.values.get(name))


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and keeps a help text's lines; `words` are what it takes besides flags."""

    def __init__(self, prog: str, description: str, epilog: str, words: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags] {words}".strip(),
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
        )

    def error(self, message: str) -> NoReturn:
        complain(message if message.endswith("?") else f"{message}; try: {self.prog} --help")
        raise SystemExit(2)

    def parse(self, argv: list[str]) -> Arguments:
        """What the arguments say; what is not known ends the program."""
        # Intermixed: a flag may stand between two words.
        namespace, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return Arguments(vars(namespace))

    def actions(self) -> list[argparse.Action]:
        """All words and flags that it takes, but for --help."""
        return [action for action in self._actions if "--help" not in action.option_strings]

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        from sandbox_agent.settings.files import did_you_mean

        flag = argument.partition("=")[0]  # What follows may be a token.
        flags = [flag for action in self._actions for flag in action.option_strings]
        return f"unknown flag {flag}{did_you_mean(flag, flags)}"


def natural(text: str) -> int:
    """A number from 0 on, for `type=` of an argument."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r:.100}")
    return int(text)


def complain(message: str) -> None:
    """One line about what is wrong."""
    print(f"sandbox-agent: {message}", file=sys.stderr)
