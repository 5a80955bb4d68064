"""Define the command line of `sandbox-agent fs …`."""

import os
from collections.abc import Callable
from pathlib import Path

from sandboxagent.cli.commands import fs_copy, fs_show
from sandboxagent.cli.flags import ACCESS, add_endpoint_flags, add_node_flag
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand, natural

EXAMPLES = """\
  sandbox-agent fs ls -l src --session 0198c2
      the directory src of a session
  sandbox-agent fs put report.pdf /srv/app/
  sandbox-agent fs get -r /srv/app/results
"""
_PATH = (
    "Absolute, or relative to the session's directory (with --session), to the server's root directory (with "
    "--endpoint), else to your current directory."
)
_CASES = ("smart", "sensitive", "ignore")


def group() -> CommandGroup:
    """Make the group `fs`."""
    return CommandGroup(
        "sandbox-agent fs",
        "View the files of a running server, and copy files to and from it. Remote paths are those of its machine.",
        EXAMPLES,
        {
            "ls": Subcommand("list a directory", _ls),
            "cat": Subcommand("write files to stdout", _cat),
            "get": Subcommand("copy a file, or a directory, from the server", _get),
            "put": Subcommand("copy a file, or a directory, to the server", _put),
            "mkdir": Subcommand("make directories, including parents", _mkdir),
            "mv": Subcommand("rename or move a file or directory", _mv),
            "rm": Subcommand("delete files and directories", _rm),
            "stat": Subcommand("details of a file", _stat),
            "search": Subcommand("find lines by text, and files by name", _search),
            "watch": Subcommand("print changes as they happen", _watch),
        },
    )


def _ls() -> Command:
    parser = _parser(
        "ls",
        "[REMOTE]",
        "List a directory by name, or show a single file.",
        "  sandbox-agent fs ls\n"
        "  sandbox-agent fs ls -l /srv/app\n"
        "  sandbox-agent fs ls --json | jq -r '.entries[] | select(.size > 1000000) | .name'\n",
    )
    parser.add_argument("path", metavar="REMOTE", nargs="?", default=".", help=_PATH)
    parser.add_argument("-l", "--long", action="store_true", help="Show modes, sizes and times.")
    return _command(parser, fs_show.print_entries, json="Print JSON.")


def _cat() -> Command:
    parser = _parser(
        "cat",
        "REMOTE...",
        "Write files to stdout, byte for byte. A terminal gets control characters as escapes (\\x1b).",
        "  sandbox-agent fs cat notes.txt --session 0198c2\n  sandbox-agent fs cat a.gz b.gz | zcat\n",
    )
    parser.add_argument("paths", metavar="REMOTE", nargs="+", help=_PATH)
    return _command(parser, fs_show.print_content)


def _get() -> Command:
    parser = _parser(
        "get",
        "REMOTE [LOCAL]",
        "Copy a file from the server, atomically, replacing a local file of the same name. With -r, copy the\n"
        "content of a directory into LOCAL, which is created if needed. Links are copied as links; those that\n"
        "lead out of the directory are skipped, each with a line on stderr.",
        "  sandbox-agent fs get /srv/app/model.bin\n"
        "  sandbox-agent fs get -r results results-of-today --session 0198c2\n"
        "  sandbox-agent fs get data.csv - | head\n",
    )
    parser.add_argument("remote", metavar="REMOTE", help=_PATH)
    parser.add_argument(
        "local",
        metavar="LOCAL",
        nargs="?",
        help="The destination; a file copied into a directory keeps its name; - is stdout.",
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="Copy a directory.")
    return _command(parser, fs_copy.get)


def _put() -> Command:
    parser = _parser(
        "put",
        "LOCAL REMOTE",
        "Copy a file to the server, atomically, creating parent directories. With -r, copy the content of a\n"
        "directory into REMOTE: all of it, or nothing. Links are copied as links; those that lead out of the\n"
        "directory are skipped, each with a line on stderr.",
        "  sandbox-agent fs put model.bin /srv/app/\n"
        "  sandbox-agent fs put -r src src --session 0198c2\n"
        "  make report | sandbox-agent fs put - reports/today.txt\n",
    )
    parser.add_argument("local", metavar="LOCAL", help="The source; - is stdin.")
    parser.add_argument(
        "remote", metavar="REMOTE", help=f"The destination; a file copied into a directory keeps its name. {_PATH}"
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="Copy a directory.")
    return _command(parser, fs_copy.put, json="Print the server's answer.")


def _mkdir() -> Command:
    parser = _parser(
        "mkdir",
        "REMOTE...",
        "Make directories, including parents. An existing directory is not an error.",
        "  sandbox-agent fs mkdir reports/2026\n",
    )
    parser.add_argument("paths", metavar="REMOTE", nargs="+", help=_PATH)
    return _command(parser, fs_show.make_directories)


def _mv() -> Command:
    parser = _parser(
        "mv",
        "REMOTE REMOTE",
        "Rename a file, a directory or a link, or move it into a directory.",
        "  sandbox-agent fs mv draft.md final.md\n  sandbox-agent fs mv -f final.md archive/\n",
    )
    parser.add_argument("source", metavar="REMOTE", help=_PATH)
    parser.add_argument("target", metavar="REMOTE", help="Its new name, or an existing directory.")
    parser.add_argument("-f", "--overwrite", action="store_true", help="Replace a file that has that name.")
    return _command(parser, fs_show.move)


def _rm() -> Command:
    parser = _parser(
        "rm",
        "REMOTE...",
        "Delete files, links and empty directories. Links are not followed.",
        "  sandbox-agent fs rm old.txt\n  sandbox-agent fs rm -r build dist\n",
    )
    parser.add_argument("paths", metavar="REMOTE", nargs="+", help=_PATH)
    parser.add_argument("-r", "--recursive", action="store_true", help="Delete directories and everything in them.")
    return _command(parser, fs_show.remove)


def _stat() -> Command:
    parser = _parser(
        "stat",
        "REMOTE",
        "Show details of a file, a directory or a link.",
        "  sandbox-agent fs stat notes.txt\n  sandbox-agent fs stat latest --no-follow --json\n",
    )
    parser.add_argument("path", metavar="REMOTE", help=_PATH)
    parser.add_argument("--no-follow", action="store_true", help="Show a link itself, not its target.")
    return _command(parser, fs_show.print_stat, json="Print JSON.")


def _search() -> Command:
    parser = _parser(
        "search",
        "TEXT [REMOTE]",
        "Search files for a text, and print each match as path, line and text. With --name, search only files\n"
        "of that name; with --name and an empty text, list those files. Skips what .gitignore excludes.\n"
        "The exit code is 1 if nothing is found.",
        "  sandbox-agent fs search TODO src --session 0198c2\n"
        "  sandbox-agent fs search 'def \\w+_test' --regex --name '*.py'\n"
        "  sandbox-agent fs search '' /srv/app --name 'test_*'\n",
    )
    parser.add_argument("text", metavar="TEXT", help="The text.")
    parser.add_argument("path", metavar="REMOTE", nargs="?", default=".", help=f"Where. {_PATH}")
    parser.add_argument("--name", metavar="GLOB", help="A part of a file's name, or a glob such as '*.py' or 'src/**'.")
    parser.add_argument("--regex", action="store_true", help="The text is a regular expression.")
    parser.add_argument(
        "--case",
        metavar="HOW",
        choices=_CASES,
        help=f"{', '.join(_CASES[:-1])} or {_CASES[-1]} (default: smart, case-sensitive if the text has capitals).",
    )
    parser.add_argument("--hidden", action="store_true", help="Include hidden files.")
    parser.add_argument("--ignored", action="store_true", help="Include files that .gitignore excludes.")
    parser.add_argument("--limit", metavar="NUMBER", type=natural, help="Print at most this many results.")
    return _command(parser, fs_show.search, json="Print JSON lines.")


def _watch() -> Command:
    parser = _parser(
        "watch",
        "[REMOTE]",
        "Print a line for each change in a directory and everything below it, until interrupted: added,\n"
        "modified or deleted, and the path.",
        "  sandbox-agent fs watch src --session 0198c2\n  sandbox-agent fs watch /srv/app --json | jq -r .path\n",
    )
    parser.add_argument("path", metavar="REMOTE", nargs="?", default=".", help=_PATH)
    parser.add_argument("--no-recursive", action="store_true", help="Watch only the directory itself.")
    return _command(parser, fs_show.watch, json="Print JSON lines.")


def _parser(name: str, words: str, description: str, examples: str) -> Parser:
    return Parser(f"sandbox-agent fs {name}", description, f"{ACCESS}\nexamples:\n{examples}", words)


def _command(parser: Parser, act: Callable[[ParsedArguments], int], json: str | None = None) -> Command:
    parser.add_argument(
        "--session",
        metavar="SESSION",
        help="Make paths relative to this session's directory: its id or alias, or a unique beginning of one.",
    )
    add_node_flag(parser, "that has the files; --session selects it, too")
    if json:
        parser.add_argument("--json", action="store_true", help=json)
    add_endpoint_flags(parser)
    remote = [action.dest for action in parser.actions() if action.metavar == "REMOTE"]

    def act_from_here(arguments: ParsedArguments) -> int:
        return act(_from_here(arguments, remote))

    return Command(parser, act_from_here)


def _from_here(arguments: ParsedArguments, names: list[str]) -> ParsedArguments:
    """Make relative paths absolute: a server on this machine may have been started in another directory."""
    from sandboxagent.core.discovery import is_named

    if arguments.word("session") or is_named(arguments.values, os.environ):
        return arguments
    values = dict(arguments.values)
    for name in names:
        given = values.get(name)
        # Joined, not normalised, because a slash at the end has a meaning.
        values[name] = [_join(each) for each in arguments.words(name)] if isinstance(given, list) else _join(str(given))
    return ParsedArguments(values)


def _join(path: str) -> str:
    return str(Path.cwd()) if path == "." else os.path.join(Path.cwd(), path)  # noqa: PTH118 - it keeps the slash
