"""OpenCode's terminal interface (TUI), attached to a server: keys in, a screen to look at."""

from pathlib import Path

import pyte

from tests.opencode.host import Host
from tests.opencode.program import environment, program
from tests.support.on_terminal import OnTerminal

COLUMNS, ROWS = 100, 40
READY = "ctrl+p commands"
"""What it shows when it takes keys."""

ENTER, ESCAPE, LEFT, RIGHT, DOWN = "\r", "\x1b", "\x1b[D", "\x1b[C", "\x1b[B"


class _FullScreen:
    """A screen as programs use it that draw all of it."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)


class Tui(OnTerminal):
    """`opencode attach`; ends with the block."""

    def __init__(self, host: Host, home: Path, *flags: str, directory: str | None = None) -> None:
        directory = directory or host.directory
        command = [program(), "attach", host.url, "--password", host.password, "--dir", directory, *flags]
        variables = environment(home)
        settings = Path(variables["XDG_STATE_HOME"], "opencode", "kv.json")
        settings.parent.mkdir(parents=True, exist_ok=True)
        # What moves on a screen costs more than everything else here.
        settings.write_text('{"animations_enabled": false}')
        super().__init__(command, variables, COLUMNS, Path(directory), _FullScreen())

    def say(self, text: str) -> None:
        """Write a prompt, or a command of its own, and send it."""
        # The line is drawn before Enter: what completes it may be on the screen by then, and takes that key first.
        self.type(text)
        self.expect(text)
        self.type(ENTER)

    def gone(self, text: str) -> None:
        """Wait until a text is no longer shown."""
        self.becomes(lambda screen: text not in screen, f"a screen without {text!r}")
