"""Run `sandbox-agent ui`, which opens a server's Inspector in a browser, with the token."""

import html
import os
import sys
from contextlib import suppress
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING
from urllib.parse import quote

from sandboxagent.cli.flags import ACCESS, add_endpoint_flags, settings_of
from sandboxagent.cli.output import complain
from sandboxagent.cli.parser import Command, ParsedArguments, Parser

if TYPE_CHECKING:
    from sandboxagent.core.discovery import ServerAddress

DESCRIPTION = """\
Open the Inspector in your browser: every session of the server, live, and the requests that wait for
you. If no browser can be opened, such as over SSH, the command prints the link instead. The link has
the token in its fragment, which browsers do not send to servers: protect it like a password. The
browser gets it from a file that only you can read. The command removes that file after ten
seconds, and ends.
"""
EXAMPLES = """\
  sandbox-agent ui
  sandbox-agent ui 0198c2f4
      open it at this session
  sandbox-agent ui --print
      only print the link
"""
READ_TIMEOUT = 10.0
"""Seconds for a browser to start and read the page with the token. Then the page is removed."""
_PREFIX, _SUFFIX = "open", ".html"
"""Prefix and suffix of the page's name in the data directory."""


def command() -> Command:
    """Make the command `ui`."""
    parser = Parser("sandbox-agent ui", DESCRIPTION, f"{ACCESS}\nexamples:\n{EXAMPLES}", "[SESSION]")
    parser.add_argument("session", nargs="?", metavar="SESSION", help="The session to show. (default: all of them)")
    parser.add_argument("--print", action="store_true", help="Print the link, and open nothing.")
    add_endpoint_flags(parser)
    return Command(parser, _open)


def _open(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.daemon import ensure_server

    server = ensure_server(arguments, complain)
    directory = settings_of(arguments, os.environ, {"config_dir", "data_dir"}).data_dir
    return open_link(directory, write_link(server, arguments.word("session")), print_only=arguments.switch("print"))


def open_link(directory: Path, link: str, *, print_only: bool) -> int:
    """Open the link to the Inspector in the user's browser, or print it. Return the exit code."""
    _remove_old_pages(directory)
    if print_only or not _has_browser():
        print(link)
        return 0
    page = write_page(directory, link)
    try:
        if _show(page):
            print(f"opened {link.partition('#')[0]}", flush=True)
            sleep(READ_TIMEOUT)
        else:
            complain("no browser could be opened; here is the link:")
            print(link)
    finally:
        page.unlink(missing_ok=True)
    return 0


def write_link(server: "ServerAddress", session: str | None = None) -> str:
    """Return the address of the Inspector, with the token in its fragment."""
    place = f"sessions/{quote(session, safe='')}" if session else ""
    token = f"#token={quote(server.token, safe='')}" if server.token else ""
    return f"{server.url}/ui/{place}{token}"


def write_page(directory: Path, link: str) -> Path:
    """Write a page that redirects to the link and that only this user can read. Return its path.

    The link is not passed as an argument, because other users can read the arguments of a program.
    """
    from tempfile import mkstemp

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = mkstemp(_SUFFIX, f"{_PREFIX}-", directory)
    with os.fdopen(descriptor, "w") as file:
        address = html.escape(link)
        file.write(
            '<!doctype html><meta charset="utf-8"><title>Inspector</title><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Open the Inspector</a>\n'
        )
    return Path(name)


def _remove_old_pages(directory: Path) -> None:
    """Remove pages that killed commands have left, but none that a browser may be about to read."""
    for page in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):
            if time() - page.lstat().st_mtime > READ_TIMEOUT:
                page.unlink()


def _has_browser() -> bool:
    """Whether there is a screen to show a browser on, or the user names one in BROWSER."""
    return sys.platform == "darwin" or any(os.environ.get(n) for n in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def _show(page: Path) -> bool:
    import webbrowser

    try:
        return webbrowser.open(page.as_uri())
    except webbrowser.Error:
        return False
