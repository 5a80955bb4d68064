"""`sandbox-agent ui`: the Inspector of a server in a browser, with the token."""

import html
import os
import sys
from pathlib import Path
from urllib.parse import quote

from sandbox_agent.cli.flags import ACCESS, ServerAddress, add_endpoint_flags, settings_of
from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.cli.output import complain, describe

DESCRIPTION = """\
Open the Inspector in your browser: every session of the server, live, and what waits for you. Where
no browser can be opened, such as over SSH, the link is printed instead. The link has the token in
its fragment, which browsers keep to themselves: share it like a password.
"""
EXAMPLES = """\
  sandbox-agent ui
  sandbox-agent ui 0198c2f4
      at this session
  sandbox-agent ui --print
      only print the link
"""
PAGE = "open.html"
"""In the data directory: leads the browser to the link."""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent ui", DESCRIPTION, f"{ACCESS}\nexamples:\n{EXAMPLES}", "[SESSION]")
    parser.add_argument("session", nargs="?", metavar="SESSION", help="The session to show; else all of them.")
    parser.add_argument("--print", action="store_true", help="Print the link, and open nothing.")
    add_endpoint_flags(parser)
    return Command(parser, _open)


def _open(arguments: Arguments) -> int:
    from sandbox_agent.cli.background import Failed
    from sandbox_agent.cli.local_server import reach_server

    try:
        server = reach_server(arguments, complain)
    except Failed as failed:
        describe(str(failed), failed.stderr)
        return failed.code
    link = write_link(server, arguments.word("session"))
    if arguments.switch("print") or not _has_browser():
        print(link)
        return 0
    page = write_page(settings_of(arguments, os.environ, {"config_dir", "data_dir"}).data_dir, link)
    if _show(page):
        print(f"opened {server.url}/ui/")
    else:
        complain("no browser opens; here is the link:")
        print(link)
    return 0


def write_link(server: ServerAddress, session: str | None = None) -> str:
    """The Inspector's address, with the token in its fragment."""
    place = f"sessions/{quote(session, safe='')}" if session else ""
    token = f"#token={quote(server.token, safe='')}" if server.token else ""
    return f"{server.url}/ui/{place}{token}"


def write_page(directory: Path, link: str) -> Path:
    """A page that leads to the link, for this user alone: other users can read the arguments of a program."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / PAGE
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        address = html.escape(link)
        file.write(
            '<!doctype html><meta charset="utf-8"><title>Inspector</title><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Open the Inspector</a>\n'
        )
    return path


def _has_browser() -> bool:
    """Whether there is a screen to show one on, or you name one."""
    return sys.platform == "darwin" or any(os.environ.get(n) for n in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def _show(page: Path) -> bool:
    import webbrowser

    try:
        return webbrowser.open(page.as_uri())
    except webbrowser.Error:
        return False
