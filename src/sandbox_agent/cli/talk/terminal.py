"""Reading lines from a terminal while other things happen: whoever waits for one can be cancelled at any time.

A dialog comes before the line that is always there, whose text stays meanwhile.
"""

import asyncio
import os
import signal
import termios
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO

from sandbox_agent.cli.talk.editor import Editor, layout
from sandbox_agent.cli.talk.keys import Key, Keys
from sandbox_agent.cli.talk.screen import Screen

GRACE = 0.7
"""Seconds for which a question does not listen that came up while somebody typed something else."""
MOST_AHEAD = 10_000
"""Keys that are kept while nobody wants them."""
_CHUNK = 4096
_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
_LOCAL = 3
"""Where termios keeps the local modes."""


@dataclass(eq=False, slots=True)
class _Wanted:
    """A line that somebody waits for."""

    mark: str
    editor: Editor
    standing: bool
    """It is there all the time, and only seen when there is something to see."""
    line: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Terminal:
    """The keyboard of a person who looks at a screen."""

    def __init__(self, keyboard: TextIO, screen: Screen) -> None:
        self._fd = keyboard.fileno()
        self._screen = screen
        self._keys = Keys()
        self._wanted: list[_Wanted] = []
        self._modes: list[object] | None = None
        """How the terminal was before."""
        self._users = 0
        self._ahead: deque[Key | bytes] = deque(maxlen=MOST_AHEAD)
        """Keys that nobody wanted yet, or whole lines where the kernel makes them."""
        self._in_dialog = False
        self._deaf_until = 0.0
        self._half = b""
        self._busy = False

    @contextmanager
    def held(self) -> Generator[None]:
        """Listen all the time, so that what is typed ahead becomes a part of the next line."""
        if not self._users:
            self._begin()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._end()

    @contextmanager
    def dialog(self) -> Generator[None]:
        """Ask something: what is typed from here on belongs to it, and nothing that was typed before."""
        if not self._users:
            with suppress(termios.error):
                termios.tcflush(self._fd, termios.TCIFLUSH)
        with self.held():
            self._ahead.clear()
            if any(each.editor.text for each in self._wanted):
                # Who is in the middle of a sentence has not read the question yet.
                self._deaf_until = asyncio.get_running_loop().time() + GRACE
            self._in_dialog = True
            try:
                yield
            finally:
                self._in_dialog, self._deaf_until = False, 0.0
                self._catch_up()
                self._refresh()

    async def line(self, mark: str, *, history: Sequence[str] = (), standing: bool = False) -> str:
        """What somebody types, up to the enter key. Raises EOFError for Ctrl-D, and when the terminal is gone."""
        wanted = _Wanted(mark, Editor(history), standing)
        with self.held():
            self._wanted.append(wanted)
            if self._top is wanted:
                self._catch_up()
            self._refresh()
            try:
                return await wanted.line
            finally:
                self._wanted.remove(wanted)
                self._refresh()

    def set_busy(self, busy: bool) -> None:
        """Whether something is going on, so that an empty line need not be seen."""
        self._busy = busy
        self._refresh()

    def interrupted(self) -> bool:
        """Ctrl-C was pressed: whether there was something typed to be thrown away."""
        wanted = self._top
        if wanted is None or not wanted.standing or not wanted.editor.text:
            return False
        wanted.editor.clear()
        self._refresh()
        return True

    # Keys

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except OSError:
            data = b""
        if not data:
            for wanted in self._wanted:
                _fail(wanted)
            asyncio.get_running_loop().remove_reader(self._fd)
        elif self._screen.moves:
            self._press(data)
        else:
            self._take(data)

    def _press(self, data: bytes) -> None:
        for key in self._keys.feed(data):
            self._pressed(key)
        self._refresh()

    def _take(self, data: bytes) -> None:
        """Whole lines: on this terminal the kernel lets people edit them."""
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._pressed(line)

    def _catch_up(self) -> None:
        ahead, self._ahead = self._ahead, deque(maxlen=MOST_AHEAD)
        for each in ahead:
            self._pressed(each)

    def _pressed(self, key: Key | bytes) -> None:
        """Give a key, or a whole line, to the last one who waits."""
        wanted = self._top
        if wanted is None:
            self._ahead.append(key)
        elif asyncio.get_running_loop().time() < self._deaf_until:
            pass
        elif isinstance(key, bytes):
            self._screen.typed()
            wanted.line.set_result(key.decode(errors="replace"))
        elif key == "clear":
            self._screen.clear()
        else:
            match wanted.editor.press(key):
                case "enter":
                    self._refresh()
                    self._screen.typed()
                    wanted.line.set_result(wanted.editor.text)
                case "end-of-input":
                    _fail(wanted)
                case _:
                    pass

    @property
    def _top(self) -> _Wanted | None:
        """Who gets what is typed: the question that is being asked, or the line that is always there."""
        waiting = [each for each in self._wanted if each.standing is not self._in_dialog and not each.line.done()]
        return waiting[-1] if waiting else None

    def _refresh(self) -> None:
        """Show what the last one to ask has of its line."""
        wanted = self._top
        if wanted is None or (wanted.standing and self._busy and not wanted.editor.text):
            self._screen.input(None)
        else:
            editor = wanted.editor
            self._screen.input(layout(wanted.mark, editor.text, editor.cursor, self._screen.width))

    # The terminal itself

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(termios.error):
            self._modes = termios.tcgetattr(self._fd)
        self._set_modes()
        loop.add_reader(self._fd, self._read)
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        loop.add_signal_handler(signal.SIGWINCH, self._refresh)

    def _end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        loop.remove_signal_handler(signal.SIGCONT)
        loop.remove_signal_handler(signal.SIGWINCH)
        self._half = b""
        self.restore()

    def restore(self) -> None:
        """Give the terminal back as it was."""
        if self._modes is None:
            return
        with suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)  # pyright: ignore[reportArgumentType]
        self._modes = None
        if self._screen.moves:
            self._put(_PASTE_OFF)

    def _set_modes(self) -> None:
        """Keys as they are pressed, unseen; but Ctrl-C and its like go on to be signals."""
        if not self._screen.moves or self._modes is None:
            return
        modes = list(self._modes)
        local = modes[_LOCAL]
        assert isinstance(local, int)
        modes[_LOCAL] = local & ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        with suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)  # pyright: ignore[reportArgumentType]
        self._put(_PASTE_ON)

    def _continued(self) -> None:
        """We were stopped, and the shell has used the terminal since."""
        self._set_modes()
        self._screen.redraw()

    def _put(self, text: str) -> None:
        with suppress(OSError):
            self._screen.stream.write(text)
            self._screen.stream.flush()


def _fail(wanted: _Wanted) -> None:
    if not wanted.line.done():
        wanted.line.set_exception(EOFError())
