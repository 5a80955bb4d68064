"""Record a conversation at a terminal and draw it, at a permission, as an SVG.

The recorded program is the real one. It needs no network and no account: the server is private, and the agent is the
mock. The SVG loads no font.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from sandboxagent.client.sync import SandboxAgent

COLUMNS, ROWS = 84, 40
LONGEST = 60.0
"""Seconds until a text must have appeared."""
PAUSE = 0.3
"""Seconds without output until a screen counts as still."""
FONT = 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace'
THEME = TerminalTheme(
    (24, 26, 31),
    (214, 218, 226),
    [
        (70, 76, 88),
        (240, 113, 120),
        (127, 200, 140),
        (230, 192, 110),
        (110, 170, 250),
        (190, 150, 240),
        (100, 200, 210),
        (214, 218, 226),
    ],
    [
        (110, 118, 132),
        (250, 130, 135),
        (145, 220, 160),
        (240, 205, 130),
        (130, 185, 255),
        (205, 170, 250),
        (120, 215, 225),
        (255, 255, 255),
    ],
)


class Recording:
    """The program on a terminal of its own, with its screen."""

    def __init__(self, command: list[str], environ: dict[str, str], cwd: Path) -> None:
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd)
        os.close(theirs)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the screen shows a text that many times."""
        end = time.monotonic() + LONGEST
        while "\n".join(self.screen.display).count(text) < times:
            if time.monotonic() > end or self._process.poll() is not None:
                raise SystemExit(f"{text!r} was not shown:\n" + "\n".join(self.screen.display))
            self._read()

    def wait_until_still(self) -> None:
        """Wait until the program draws nothing more."""
        while self._read():
            pass

    def close(self) -> None:
        """End the program."""
        self._process.terminate()
        self._process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], PAUSE)[0]:
            return False
        self._stream.feed(os.read(self._ours, 65536))
        return True


def record() -> Text:
    """Play the conversation and return the final screen."""
    with tempfile.TemporaryDirectory() as directory, SandboxAgent.start() as client:
        home = Path(directory)
        app = home / "app"
        app.mkdir()
        with _program(client.url, client.token or "", app, home) as terminal:
            terminal.wait_for("❯")
            terminal.type("make a plan\r")
            terminal.wait_for("All went to plan.")
            terminal.wait_for("❯", 2)
            terminal.type("write notes.txt\r")
            terminal.wait_for("Reject")
            terminal.wait_until_still()
            return _as_text(terminal.screen, {str(app): "~/app"})


@contextmanager
def _program(url: str, token: str, app: Path, home: Path) -> Generator[Recording]:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "SANDBOX_AGENT_ENDPOINT": url,
        "SANDBOX_AGENT_TOKEN": token,
        "SANDBOX_AGENT_DATA_DIR": str(home / "data"),
        "SANDBOX_AGENT_CONFIG_DIR": str(home / "config"),
    }
    terminal = Recording([sys.executable, "-m", "sandboxagent", "run", "mock"], environ, app)
    try:
        yield terminal
    finally:
        terminal.close()


def _as_text(screen: pyte.HistoryScreen, replaced: dict[str, str]) -> Text:
    """Return the screen with its colours, without the empty lines and the prompt at its end."""
    lines = [Text.assemble(("$ ", "bright_green"), "sandbox-agent run mock")]
    rows = screen.buffer
    for number in range(ROWS):
        row = rows[number]
        line = Text()
        for column in range(COLUMNS):
            cell = row[column]
            line.append(cell.data, _style(cell))
        line.rstrip()
        for word, shown in replaced.items():
            if word in line.plain:
                before, _, after = line.plain.partition(word)
                line = Text(before + shown + after, line.spans[0].style if line.spans else "")
        lines.append(line)
    while not lines[-1].plain or lines[-1].plain.strip() == "❯":
        lines.pop()
    return Text("\n").join(lines)


def _style(cell: pyte.screens.Char) -> Style:
    colour = None if cell.fg == "default" else re.sub(r"^([0-9a-f]{6})$", r"#\1", cell.fg)
    names = {"brown": "yellow", "brightbrown": "bright_yellow"}
    if colour is not None and not colour.startswith("#"):
        colour = names.get(colour, re.sub(r"^bright", "bright_", colour))
    return Style(color=colour, bold=cell.bold, italic=cell.italics, underline=cell.underscore, reverse=cell.reverse)


def draw(text: Text) -> str:
    """Draw a text in a window, as an SVG of rich without fonts of other hosts."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    drawn = console.export_svg(title="sandbox-agent", theme=THEME, unique_id="terminal")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return re.sub(r"font-family: (Fira Code|arial)[^;]*;", f"font-family: {FONT};", drawn)
