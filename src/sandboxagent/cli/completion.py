"""Run `sandbox-agent completion`, and answer a shell when you press the tab key.

Commands and flags come from the parsers. Values are looked up: agents, and the sessions and files of a running server.
"""

import argparse
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

from sandboxagent.cli.output import harmless
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser
from sandboxagent.protocol.errors import SettingsError

Pairs = Sequence[tuple[str, str]]
Values = Callable[[Mapping[str, str], str], Pairs]
"""A function that returns values with descriptions, for the given flags (values by dest) and the typed start."""

_FILES = frozenset({"PATH", "FILE", "LOCATION", "LOCAL"})
_DIRECTORIES = frozenset({"DIR", "DIRECTORY", "FOLDER"})
_REMOTE = "REMOTE"
_HELP = "Show this help."


class Candidates(NamedTuple):
    """The words that could come next, each with a description; or that it is a path, which the shell completes itself.

    `remote` are paths of the server's machine. A word that ends with a slash continues without a space.
    """

    words: Pairs = ()
    kind: Literal["words", "files", "directories", "remote"] = "words"
    before: str = ""
    """Text before a path in the same word, such as `--token-file=`."""


NOTHING = Candidates()


def candidates(group: CommandGroup, words: Sequence[str], values: Mapping[str, Values]) -> Candidates:
    """Return the completions of the last word. `values` looks values up, by metavar."""
    *before, current = words or [""]
    while before:
        name = before.pop(0)
        if name not in group.words:
            return NOTHING
        found = group.words[name].load()
        if not isinstance(found, CommandGroup):
            return _Line(found.parser, before, values).end(current)
        group = found
    if current.startswith("-"):
        return Candidates(_flags(group.parser().actions()))
    return Candidates([(name, word.summary) for name, word in group.words.items()])


class _Line:
    """The arguments of one command before the last one: which flags and positionals they use up."""

    def __init__(self, parser: Parser, words: Sequence[str], values: Mapping[str, Values]) -> None:
        self._actions = [action for action in parser.actions() if action.help is not argparse.SUPPRESS]
        self._by_flag = {flag: action for action in self._actions for flag in action.option_strings}
        self._values = values
        self._words = words
        self._given: dict[str, str] = {}
        """The flags that were given, by dest, with their last values."""
        self._waiting: argparse.Action | None = None
        """The flag to which the next words belong as values."""
        self._left: float = 0
        self._placed = 0
        """Number of positionals so far."""
        self._only_words = False
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if word.startswith("-") and word != "-" and not self._only_words:
            self._only_words = word == "--"
            flag, equals, value = word.partition("=")
            self._waiting = self._by_flag.get(flag)
            if self._waiting is not None:
                self._given[self._waiting.dest] = value
                self._left = 0 if equals else _most(self._waiting)
        elif self._waiting is not None and self._left > 0:
            self._given[self._waiting.dest] = word
            self._left -= 1
        else:
            self._placed += 1

    def end(self, current: str) -> Candidates:
        """Return the completions of the last word, `current`."""
        flag, equals, written = current.partition("=")
        if self._waiting is not None and self._left > 0 and (_least(self._waiting) or not current.startswith("-")):
            return self._of(self._waiting, current)
        if current.startswith("-") and not self._only_words:
            if not equals:
                return Candidates(_flags(self._actions, self._given))
            action = self._by_flag.get(flag)
            return NOTHING if action is None or not _most(action) else self._of(action, written, f"{flag}=")
        action = self._place()
        if action is not None:
            return self._of(action, current)
        return NOTHING if self._only_words else Candidates(_flags(self._actions, self._given))

    def _place(self) -> argparse.Action | None:
        """Return the positional argument that comes next; None after the last one."""
        places = self._placed
        for action in (each for each in self._actions if not each.option_strings):
            if places < _most(action):
                return action
            places -= int(_most(action))
        return None

    def _of(self, action: argparse.Action, current: str, before: str = "") -> Candidates:
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if action.choices is not None or "|" in metavar:
            pairs = [(str(each), "") for each in (metavar.split("|") if action.choices is None else action.choices)]
        elif metavar in self._values:
            pairs = self._values[metavar](self._given, current)
        elif metavar in _DIRECTORIES or (metavar in _FILES and _is_directory(action)):
            return Candidates(kind="directories", before=before)
        elif metavar in _FILES:
            return Candidates(kind="files", before=before)
        else:
            return NOTHING
        # An argument that may be repeated does not offer a value twice.
        used = set(self._words) if _most(action) == inf else set[str]()
        kind = "remote" if metavar == _REMOTE else "words"
        return Candidates([(before + word, text) for word, text in pairs if word not in used], kind)


def _flags(actions: Iterable[argparse.Action], given: Mapping[str, str] | None = None) -> Pairs:
    """Return all flags that may come next, with their help."""
    told = given or {}
    flags = [
        (flag, (action.help or "").replace("%%", "%"))
        for action in actions
        if action.dest not in told or _is_repeated(action)
        for flag in action.option_strings
    ]
    return [*flags, ("-h", _HELP), ("--help", _HELP)]


def _most(action: argparse.Action) -> float:
    """Return the largest number of values that it takes."""
    match action.nargs:
        case int():
            return action.nargs
        case None | "?":
            return 1
        case _:
            return inf


def _least(action: argparse.Action) -> bool:
    """Whether it needs a value."""
    return action.nargs not in ("?", "*")


def _is_repeated(action: argparse.Action) -> bool:
    return type(action).__name__ in ("_AppendAction", "_CountAction", "_ExtendAction")


def _is_directory(action: argparse.Action) -> bool:
    """Whether a path is a directory: settings have the metavar PATH for both, so the name decides."""
    return action.dest.endswith(("_dir", "_root", "cwd", "directory"))


WAIT_TIMEOUT, TIMEOUT = 0.5, "SANDBOX_AGENT_COMPLETION_TIMEOUT"
"""Seconds to wait for the server after the tab key, and the environment variable that replaces them."""

_WHERE = ("config_dir", "data_dir", "agents_dir", "agents_file")


def agents(given: Mapping[str, str], current: str) -> Pairs:
    """Return the known and installed agents, and once a letter is typed, also the local copy of the ACP registry."""
    from sandboxagent.core.settings import load
    from sandboxagent.server.agents.manifest import is_id, load_manifest

    try:
        settings = load({name: value for name, value in given.items() if name in _WHERE}, os.environ, _WHERE)
        known = load_manifest(settings.agents_file).agents
    except SettingsError:
        return [(agent.id, agent.title) for agent in load_manifest(None).agents]
    named = {slug for agent in known for slug in (agent.id, *agent.registry)}
    others = {path.parent.name: "installed" for path in settings.agents_dir.glob("*/installed.json")}
    if current:
        others |= _registry(settings.agents_dir / ".registry/registry.json")
    more = [(id, text) for id, text in sorted(others.items()) if is_id(id) and id not in named]
    return [*((agent.id, agent.title) for agent in known), *more]


def _registry(copy: Path) -> dict[str, str]:
    from sandboxagent.server.agents.install.registry_entries import NotARegistry, parse

    try:
        return {entry.id: entry.name for entry in parse(copy.read_bytes(), "file").entries.values()}
    except (OSError, NotARegistry):
        return {}


def sessions(given: Mapping[str, str], current: str) -> Pairs:
    """Return the sessions of the server, newest first, with agent and title."""
    return [
        (str(each["sessionId"]), f"{each.get('agent')}: {each.get('title') or each.get('cwd')}")
        for each in _fetch_list(given, "/v1/sessions", "sessions")
    ]


def remote_paths(given: Mapping[str, str], current: str) -> Pairs:
    """Return the server's files in the directory typed so far. Names of directories end with a slash."""
    from urllib.parse import urlencode

    directory, slash, name = current.rpartition("/")
    query = {"path": directory + slash or ".", "limit": "1000"}
    query |= {"sessionId": given["session"]} if given.get("session") else {}
    found = _fetch_list(given, f"/v1/fs/entries?{urlencode(query)}", "entries")
    names = {str(each["name"]): each.get("entryType") == "directory" for each in found}
    return [
        (directory + slash + each + ("/" if folder else ""), "")
        for each, folder in names.items()
        if not each.startswith(".") or name.startswith(".")
    ]


def _fetch_list(given: Mapping[str, str], path: str, key: str) -> list[dict[str, object]]:
    """Return a list from the server's answer to a GET; empty if the request fails."""
    import json
    from http.client import HTTPException

    from sandboxagent.core.discovery import USUAL_SERVER, find_server

    try:
        # Past any proxy, which would take longer than a user waits for a completion.
        server = find_server(given, os.environ) or USUAL_SERVER
        _, body = server.fetch(path, float(os.environ.get(TIMEOUT) or WAIT_TIMEOUT))
        return json.loads(body)[key]
    except (OSError, HTTPException, SettingsError, ValueError, KeyError, RecursionError):
        return []


VALUES: Mapping[str, Values] = {"AGENT": agents, "SESSION": sessions, "REMOTE": remote_paths}
"""Functions that look up values, by metavar."""


_BASH = r"""# Completion of sandbox-agent for bash; written by: sandbox-agent completion bash
_sandbox_agent() {
    local program word kind=
    program=$(type -P -- "${COMP_WORDS[0]/#\~\//$HOME/}") || program=sandbox-agent
    COMPREPLY=()
    while IFS= read -r word; do
        if [[ -z $kind ]]; then
            kind=$word
        else
            COMPREPLY+=("$word")
        fi
    done < <("$program" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    case $kind in
        files) compopt -o default 2>/dev/null ;;
        directories) compopt -o dirnames 2>/dev/null ;;
        remote)
            compopt -o filenames 2>/dev/null
            [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2>/dev/null
            ;;
    esac
}
complete -F _sandbox_agent sandbox-agent
"""

_ZSH = r"""#compdef sandbox-agent
# Completion of sandbox-agent for zsh; written by: sandbox-agent completion zsh
_sandbox-agent() {
    local program=${(Q)words[1]}
    local -a answer
    program=${program/#\~\//$HOME/}
    (( $+commands[$program] )) || [[ -x $program ]] || program=sandbox-agent
    answer=("${(@f)$(command "$program" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case $answer[1] in
        files|directories)
            [[ $PREFIX == --*=* ]] && compset -P '*='
            if [[ $answer[1] == files ]]; then _files; else _files -/; fi
            ;;
        words)
            shift answer
            (( $#answer )) && _describe sandbox-agent answer
            ;;
        remote)
            shift answer
            local -a folders=(${(M)answer:#*/}) files=(${answer:#*/})
            (( $#folders )) && compadd -S '' -a folders
            (( $#files )) && compadd -a files
            ;;
    esac
}
if [[ $funcstack[1] == _sandbox-agent ]]; then
    _sandbox-agent "$@"
else
    compdef _sandbox-agent sandbox-agent
fi
"""

_FISH = r"""# Completion of sandbox-agent for fish; written by: sandbox-agent completion fish
function __sandbox_agent_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    command -q $program; or set program sandbox-agent
    set -l answer (command $program __complete fish $words[2..-1] "$current" 2>/dev/null)
    switch "$answer[1]"
        case files directories
            set -l flag (string match -r '^--[^=]*=' -- $current)
            set -l path (string replace -r '^--[^=]*=' '' -- $current)
            # Not by __fish_complete_path: before fish 4 it knows neither quotes nor ~ nor variables.
            set -l paths (complete -C "'' $path")
            test $answer[1] = directories; and set paths (string match -- '*/' $paths)
            printf '%s\n' "$flag"$paths
        case words remote
            test (count $answer) -gt 1; and printf '%s\n' $answer[2..-1]
    end
end
complete -c sandbox-agent -e
complete -c sandbox-agent -f -a '(__sandbox_agent_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Completion scripts, by the shell's name."""


SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that lets a shell complete the command line: commands, flags, agents, paths. It asks
this program for them, so it stays up to date after an upgrade. For sessions and remote files, this
program asks the server and waits half a second, or the seconds in SANDBOX_AGENT_COMPLETION_TIMEOUT.
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
    """Make the command `completion`."""
    parser = Parser("sandbox-agent completion", DESCRIPTION, EPILOG, "SHELL")
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="Which shell: bash, zsh or fish.")
    return Command(parser, _print)


def _print(arguments: ParsedArguments) -> int:
    print(SCRIPTS[arguments.word("shell") or ""], end="")
    return 0


def answer(argv: Sequence[str]) -> int:
    """Print the completions at the end of a line, in the form that the shell's script reads."""
    from sandboxagent.cli.main import COMMANDS

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
    # One line each. Leave out names of files with unprintable characters, such as a newline.
    print(found.kind, *(each for each in lines if each.replace("\t", "").isprintable()), sep="\n")
    return 0


def split_line(line: str) -> tuple[list[str], bool]:
    """Split a line up to the cursor into words, as a shell would. Return also whether the last one is inside quotes."""
    # A NUL, which nobody can type, marks the end: after a space it becomes a word of its own.
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(f"{line}\0{closing}")
        except ValueError:
            continue
        words[-1] = words[-1].replace("\0", "")
        return words, bool(closing)
    return [""], False


def _for_bash(found: "Candidates", current: str, breaks: str) -> list[str]:
    """Return the words that start with `current`, without their part before the last of `breaks`.

    Bash does not filter the words, and inserts them after the last of `breaks`.
    """
    # The other break characters end a word in every shell, unless they are quoted.
    kept = max((current.rfind(letter) for letter in "=:@" if letter in breaks), default=-1) + 1
    return [word[kept:] for word, _ in found.words if word.startswith(current)]


def _pair(shell: str, word: str, text: str) -> str:
    text = harmless(" ".join(text.split()))
    if shell == "zsh":
        word = word.replace("\\", "\\\\").replace(":", "\\:")
        return f"{word}:{text}" if text else word
    return f"{word}\t{text}" if text else word
