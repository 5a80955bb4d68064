"""`sandbox-agent completion`: scripts for shells, and what they ask the program when you press the tab key.

A script passes on what is written so far; the answer is computed here, so that it never lags behind the commands. It
has to come at once, so next to nothing is imported for it.
"""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.cli.output import harmless

if TYPE_CHECKING:
    from sandbox_agent.cli.completion.words import Candidates

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that lets a shell complete the command line: commands, flags, agents, paths. It asks
this program for them, so it stays up to date after an upgrade.
"""

EPILOG = """\
You may have to create the folders named here first. bash must be version 4 or newer.

examples:
  sandbox-agent completion bash > ~/.local/share/bash-completion/completions/sandbox-agent
      for every new bash, where the package bash-completion is installed
  eval "$(sandbox-agent completion bash)"
      for this bash; in ~/.bashrc for every new one, without that package
  source <(sandbox-agent completion zsh)
      for this zsh; in ~/.zshrc, after compinit, for every new one
  sandbox-agent completion fish > ~/.config/fish/completions/sandbox-agent.fish
      for every new fish
"""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent completion", DESCRIPTION, EPILOG, "SHELL")
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="Which shell: bash, zsh or fish.")
    return Command(parser, _print)


def _print(arguments: Arguments) -> int:
    from sandbox_agent.cli.completion.scripts import SCRIPTS

    print(SCRIPTS[arguments.word("shell") or ""], end="")
    return 0


def answer(argv: Sequence[str]) -> int:
    """Print what could stand at the end of a line, in the form that the script of that shell reads."""
    from sandbox_agent.cli.completion.values import VALUES
    from sandbox_agent.cli.completion.words import candidates
    from sandbox_agent.cli.main import COMMANDS

    shell, *words = argv
    if shell == "bash":
        line, breaks = words
        words, quoted = split_line(line)
        found = candidates(COMMANDS, words[1:], VALUES)
        lines = _for_bash(found, words[-1], "" if quoted else breaks)
    else:
        found = candidates(COMMANDS, words, VALUES)
        form = "plain" if found.kind == "remote" else shell
        lines = [_pair(form, *pair) for pair in found.words]
    # A line each: names of files may have anything in them.
    print(found.kind, *(each for each in lines if each.replace("\t", "").isprintable()), sep="\n")
    return 0


def split_line(line: str) -> tuple[list[str], bool]:
    """The words of a line up to the cursor, as a shell would read them, and whether the last one is inside quotes."""
    # A letter that cannot be typed marks the end: after a space it is a word of its own.
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(f"{line}\0{closing}")
        except ValueError:
            continue
        words[-1] = words[-1].replace("\0", "")
        return words, bool(closing)
    return [""], False


def _for_bash(found: "Candidates", current: str, breaks: str) -> list[str]:
    """Bash does not look which of them fit, and replaces only what comes after the last of `breaks`."""
    # The others of them end a word for every shell, unless they are quoted.
    kept = max((current.rfind(letter) for letter in "=:@" if letter in breaks), default=-1) + 1
    return [word[kept:] for word, _ in found.words if word.startswith(current)]


def _pair(shell: str, word: str, text: str) -> str:
    text = harmless(" ".join(text.split()))
    if shell == "zsh":
        word = word.replace("\\", "\\\\").replace(":", "\\:")
        return f"{word}:{text}" if text else word
    return f"{word}\t{text}" if text else word
