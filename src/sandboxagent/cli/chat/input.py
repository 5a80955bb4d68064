"""Read lines from a terminal with prompt_toolkit, and stop reading at any time."""

import asyncio
import os
import signal
import termios
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from sandboxagent.cli.chat.blocks import plain
from sandboxagent.cli.chat.input_history import InputHistory
from sandboxagent.cli.chat.menu import Menu
from sandboxagent.cli.chat.screen import Screen, is_unicode, paint, width_of

if TYPE_CHECKING:
    from prompt_toolkit import Application
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.layout import Container

PAUSE_TIMEOUT = 0.7
"""Seconds without a key after which a question takes the keys, if it appeared while the user was typing a line."""
STRAY_ENTER_TIMEOUT = 1.0
"""Seconds after an answer by one key in which an Enter belongs to that answer, and sends no line."""
MAX_PASTE = 1 << 20
"""Maximum number of characters of a paste. The rest is dropped."""
MAX_AHEAD = 1000
"""Maximum number of lines that can be typed ahead."""
_AS_IT_WAS = "\x1b[?2004l\x1b[?25h\x1b[?7h\x1b[0m"
_CHUNK = 4096


Words = Callable[[], Iterable[tuple[str, str]]]
"""A function that returns the commands that can be typed, with their descriptions."""
MAX_OFFERED = 8
"""Maximum number of commands that are offered at a time."""


class Keyboard:
    """The keyboard of the terminal that shows a screen."""

    def __init__(self, keyboard: TextIO, screen: Screen) -> None:
        self._keyboard = keyboard
        self._screen = screen
        self._users = 0
        self._modes: list[object] | None = None
        """The terminal's settings before."""
        self._prompt: _Prompt | _PlainLines | None = None
        self._completions: Words = lambda: ()
        self._history: InputHistory | None = None

    def complete(self, words: "Words") -> None:
        """Offer these words while the input line begins with a slash."""
        self._completions = words

    def remember(self, history: InputHistory) -> None:
        """Let the arrow keys bring back lines of earlier runs, and store the lines of this run."""
        self._history = history

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Read all the time, so that text that is typed ahead becomes part of the next line."""
        self._users += 1
        try:
            if self._users == 1:
                await self._begin()
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self._end()

    @asynccontextmanager
    async def dialog(self) -> AsyncGenerator[None]:
        """Take the input for a question for the time of the block. Text that was typed before is not taken."""
        if self._prompt is None:
            with suppress(termios.error):
                termios.tcflush(self._keyboard.fileno(), termios.TCIFLUSH)
            yield
            return
        self._prompt.begin_dialog()
        try:
            yield
        finally:
            self._prompt.end_dialog()

    async def line(self, mark: str, *, standing: bool = False) -> str:
        """Return a typed line. Raises EOFError for Ctrl-D, and when the terminal is gone."""
        async with self.held():
            assert self._prompt is not None
            typed = await self._prompt.line(mark, standing=standing)
        if typed is None:
            raise EOFError
        return typed

    async def answer(self, mark: str, menu: Menu) -> str:
        """Return the typed or chosen answer to a question. Raises EOFError as `line` does."""
        async with self.held():
            assert self._prompt is not None
            typed = await self._prompt.line(mark, standing=False, menu=menu)
        if typed is None:
            raise EOFError
        return typed

    def set_busy(self, busy: bool) -> None:
        """Set whether a turn runs. During a turn, an empty input line is hidden."""
        if self._prompt is not None:
            self._prompt.set_busy(busy)

    def interrupted(self) -> bool:
        """Discard the typed text after Ctrl-C. Return whether there was any."""
        return self._prompt is not None and self._prompt.throw_away()

    def restore(self) -> None:
        """Restore the terminal's settings at once, when the program exits without cleaning up."""
        if self._modes is None:
            return
        with suppress(termios.error):
            termios.tcsetattr(self._keyboard.fileno(), termios.TCSADRAIN, self._modes)  # pyright: ignore[reportArgumentType]
        if self._screen.moves:
            with suppress(OSError):
                self._screen.stream.write(_AS_IT_WAS)
                self._screen.stream.flush()

    def _words(self) -> Iterable[tuple[str, str]]:
        return self._completions()

    async def _begin(self) -> None:
        with suppress(termios.error):
            self._modes = termios.tcgetattr(self._keyboard.fileno())
        if self._screen.moves:
            self._prompt = _Prompt(self._keyboard, self._screen, self._words, self._history)
        else:
            self._prompt = _PlainLines(self._keyboard, self._screen)
        await self._prompt.begin()

    async def _end(self) -> None:
        assert self._prompt is not None
        prompt, self._prompt = self._prompt, None
        await prompt.end()
        self._modes = None


class _Prompt:
    """An editable input line below all other text."""

    def __init__(self, keyboard: TextIO, screen: Screen, words: Words, history: InputHistory | None) -> None:
        from prompt_toolkit.buffer import Buffer
        from prompt_toolkit.filters import Condition

        self._screen = screen
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(MAX_AHEAD)
        """Lines that were typed into the input line; None for Ctrl-D."""
        self._answer: asyncio.Future[str | None] | None = None
        """The answer that a dialog waits for."""
        self._menu = Menu()
        self._chosen: int | None = None
        """The option that the arrow keys have chosen."""
        self._one_key: asyncio.TimerHandle | None = None
        """Answers with the one key that was typed, unless another follows."""
        self._mark = self._question = ""
        self._in_dialog = self._busy = False
        self._pause: asyncio.TimerHandle | None = None
        """Gives the keys to the question when the user pauses in typing a line."""
        self._stray_enter_until = 0.0
        self._over = False
        self._standing = Buffer(
            multiline=True,
            completer=_completer(words),
            complete_while_typing=Condition(lambda: self._standing.text.startswith("/")),
            history=None if history is None else _open_history(history),
            on_text_changed=lambda _: self._wait_for_pause() if self._pause is not None else None,
        )
        self._reply = Buffer(multiline=True, on_text_changed=lambda _: self._expect_more())
        self._app = self._application(keyboard)
        self._running: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._screen.put_below(self)
        self._running = asyncio.create_task(self._run())
        # Let it draw once, so that all further text is written above it.
        await asyncio.sleep(0)

    async def end(self) -> None:
        assert self._running is not None
        if self._app.is_running and not self._app.is_done:
            self._app.exit()
        await asyncio.gather(self._running, return_exceptions=True)
        self._screen.take_away()

    async def _run(self) -> None:
        try:
            # `Interrupts` handles signals.
            await self._app.run_async(handle_sigint=False)
        except EOFError:
            pass  # The terminal is gone.
        finally:
            self._over = True
            self._deliver(None)
            with suppress(asyncio.QueueFull):
                self._lines.put_nowait(None)

    async def line(self, mark: str, *, standing: bool, menu: Menu | None = None) -> str | None:
        """Return a typed line; None for the end of input."""
        if standing:
            self._mark = mark
            self._app.invalidate()
            typed = await self._lines.get()
            if typed is not None:
                self._screen.type_line(mark, typed)
            return typed
        if self._over:
            return None
        self._question, self._answer = mark, asyncio.get_running_loop().create_future()
        self._menu, self._chosen = menu or Menu(), None
        if self._pause is None:
            self._app.layout.focus(self._reply)
        self._app.invalidate()
        try:
            return await self._answer
        finally:
            self._answer = None
            self._menu = Menu()
            self._stop_one_key()
            self._reply.reset()
            self._app.layout.focus(self._standing)
            self._app.invalidate()

    def begin_dialog(self) -> None:
        self._in_dialog = True
        if self._standing.text:
            # The user is typing something else, and has not read the question yet.
            self._wait_for_pause()

    def end_dialog(self) -> None:
        self._in_dialog = False
        self._stop_pause()
        self._app.invalidate()

    def _wait_for_pause(self) -> None:
        """Leave the keys to the line that the user is typing until no key comes for a while."""
        self._stop_pause()
        self._pause = asyncio.get_running_loop().call_later(PAUSE_TIMEOUT, self._paused)

    def _paused(self) -> None:
        self._pause = None
        if self._answer is not None:
            self._app.layout.focus(self._reply)
        self._app.invalidate()

    def _stop_pause(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.cancel()

    def set_busy(self, busy: bool) -> None:
        self._busy = busy
        self._app.invalidate()

    def throw_away(self) -> bool:
        if self._answer is not None or not self._standing.text:
            return False
        self._standing.reset()
        self._app.invalidate()
        return True

    # For the screen

    def print_above(self, text: str) -> None:
        """Write whole lines above the input line."""
        if self._app.is_running:
            self._app.renderer.erase()
        self._screen.stream.write(text)
        self._screen.stream.flush()
        self._app.invalidate()

    def refresh(self) -> None:
        """Redraw, because the text above the input line has changed."""
        self._app.invalidate()

    # Keys

    def _expect_more(self) -> None:
        """After a key that answers without Enter, wait whether more is typed."""
        self._stop_one_key()
        typed = self._reply.text
        timeout = self._menu.timeout(typed)
        if self._answer is not None and timeout is not None:
            self._one_key = asyncio.get_running_loop().call_later(timeout, self._answer_with_key, typed)

    def _stop_one_key(self) -> None:
        timer, self._one_key = self._one_key, None
        if timer is not None:
            timer.cancel()

    def _answer_with_key(self, typed: str) -> None:
        self._stray_enter_until = asyncio.get_running_loop().time() + STRAY_ENTER_TIMEOUT
        self._give(typed)

    def _give(self, text: str) -> None:
        """Answer the question, and show the answer."""
        if self._answer is not None and not self._answer.done():
            self._screen.type_line(self._question, self._menu.echo(text))
            self._deliver(text)

    def _choose(self, step: int) -> None:
        self._chosen = self._menu.move(self._chosen, step)
        self._app.invalidate()

    def _deliver(self, text: str | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(text)

    def _enter(self, event: "KeyPressEvent") -> None:
        buffer = event.current_buffer
        text = buffer.text
        if buffer is self._reply:
            chosen = "" if self._chosen is None else str(self._chosen + 1)
            self._give(text or chosen)
            buffer.reset()
            return
        stray, self._stray_enter_until = asyncio.get_running_loop().time() < self._stray_enter_until, 0.0
        if stray:
            return
        with suppress(asyncio.QueueFull):
            self._lines.put_nowait(text)
        buffer.reset(append_to_history=bool(text.strip()))

    def _end_of_input(self, event: "KeyPressEvent") -> None:
        if self._answer is not None:
            self._deliver(None)
        else:
            with suppress(asyncio.QueueFull):
                self._lines.put_nowait(None)

    def _keys(self) -> "KeyBindings":
        from prompt_toolkit.application import get_app
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys

        def insert_newline(event: "KeyPressEvent") -> None:
            event.current_buffer.insert_text("\n")

        def interrupt(event: "KeyPressEvent") -> None:
            signal.raise_signal(signal.SIGINT)

        def up(event: "KeyPressEvent") -> None:
            self._choose(-1)

        def down(event: "KeyPressEvent") -> None:
            self._choose(1)

        def toggle(event: "KeyPressEvent") -> None:
            if self._chosen is not None:
                self._reply.text = self._menu.toggle(self._reply.text, self._chosen)
                self._reply.cursor_position = len(self._reply.text)

        def suspend(event: "KeyPressEvent") -> None:
            event.app.suspend_to_background()

        keys = KeyBindings()
        keys.add("enter")(self._enter)
        keys.add("escape", "enter")(insert_newline)
        keys.add("c-c")(interrupt)
        keys.add("c-z")(suspend)
        is_empty = Condition(lambda: not get_app().current_buffer.text)
        keys.add("c-d", filter=is_empty)(self._end_of_input)
        keys.add(Keys.BracketedPaste)(_paste)
        can_choose = Condition(lambda: bool(self._menu.rows) and get_app().current_buffer is self._reply)
        keys.add("up", filter=can_choose)(up)
        keys.add("down", filter=can_choose)(down)
        can_toggle = Condition(lambda: self._menu.several and self._chosen is not None)
        keys.add(" ", filter=can_choose & can_toggle)(toggle)
        return keys

    # Layout

    def _application(self, keyboard: TextIO) -> "Application[None]":
        from prompt_toolkit import Application
        from prompt_toolkit.input import create_input
        from prompt_toolkit.layout import Layout
        from prompt_toolkit.output.vt100 import Vt100_Output

        output = Vt100_Output.from_pty(self._screen.stream, term=os.environ.get("TERM"))
        # No query of the cursor's position: the program after this one would read the terminal's response as keys.
        output.enable_cpr = False
        return Application(
            Layout(self._container(), focused_element=self._standing),
            key_bindings=self._keys(),
            erase_when_done=True,
            input=create_input(keyboard),
            output=output,
        )

    def _container(self) -> "Container":
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.formatted_text import ANSI
        from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Window

        live = Window(FormattedTextControl(lambda: ANSI(self._screen.live)), wrap_lines=True, dont_extend_height=True)
        # While the user types a line, the question waits: who sees its input line can answer it.
        asks = Condition(lambda: self._answer is not None and not self._answer.done() and self._pause is None)
        stands = Condition(
            lambda: (
                (self._answer is None or self._pause is not None)
                and bool(self._mark)
                and (not self._busy or bool(self._standing.text))
            )
        )
        menu = Window(FormattedTextControl(lambda: ANSI(self._drawn_menu())), wrap_lines=True, dont_extend_height=True)
        offers = Window(FormattedTextControl(self._offered), dont_extend_height=True)
        is_apart = Condition(lambda: self._screen.is_after_words) & (asks | stands)
        return HSplit(
            [
                ConditionalContainer(live, Condition(lambda: bool(self._screen.live))),
                ConditionalContainer(Window(height=1), is_apart),
                ConditionalContainer(menu, asks & Condition(lambda: bool(self._menu.rows))),
                ConditionalContainer(_window(self._reply, lambda: self._question), asks),
                ConditionalContainer(_window(self._standing, lambda: self._mark), stands),
                ConditionalContainer(offers, stands & Condition(lambda: self._standing.complete_state is not None)),
            ]
        )

    def _drawn_menu(self) -> str:
        """Return the rows of the question's options, with a mark at the chosen one."""
        stream = self._screen.stream
        mark = "❯" if is_unicode(stream) else ">"
        rows = (
            f"{mark}{plain(row)[1:]}"
            if index == self._chosen
            else "".join(paint(text, style, stream) for text, style in row)
            for index, row in enumerate([*self._menu.rows, *self._menu.below])
        )
        return "\n".join(rows)

    def _offered(self) -> "StyleAndTextTuples":
        """Return the commands to choose from, one per row, around the chosen one."""
        state = self._standing.complete_state
        if state is None:
            return []
        chosen = state.complete_index
        first = max(0, min((chosen or 0) - MAX_OFFERED // 2, len(state.completions) - MAX_OFFERED))
        some = state.completions[first : first + MAX_OFFERED]
        width = max((len(each.text) for each in some), default=0)
        columns = width_of(self._screen.stream) - 1
        rows = [
            (
                "reverse" if index == chosen else "fg:ansibrightblack",
                f"  {each.text:<{width}}  {each.display_meta_text}",
            )
            for index, each in enumerate(some, first)
        ]
        more = len(state.completions) - len(some)
        rows += [("fg:ansibrightblack", f"  and {more} more")] if more else []
        lines: StyleAndTextTuples = [(style, f"{row[:columns]}\n") for style, row in rows[:-1]]
        return [*lines, *((style, row[:columns]) for style, row in rows[-1:])]


def _window(buffer: "Buffer", mark: Callable[[], str]) -> "Container":
    """Make a window with an input line after a mark. Its further rows are indented."""
    from prompt_toolkit.layout import BufferControl, Window

    def prefix(line: int, wraps: int) -> str:
        return mark() if line == wraps == 0 else "  "

    return Window(BufferControl(buffer), wrap_lines=True, dont_extend_height=True, get_line_prefix=prefix)


def _completer(words: Words) -> "Completer":
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Commands(Completer):
        """The words that start with the typed text."""

        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            typed = document.text
            for word, about in words():
                if typed.startswith("/") and word.startswith(typed):
                    yield Completion(word, -len(typed), display_meta=about)

    return Commands()


def _open_history(history: InputHistory) -> "History":
    from prompt_toolkit.history import History

    class TypedHistory(History):
        """The lines of all runs."""

        def load_history_strings(self) -> Iterable[str]:
            return reversed(history.load())

        def store_string(self, string: str) -> None:
            history.add(string)

    return TypedHistory()


def _paste(event: "KeyPressEvent") -> None:
    text = event.data[:MAX_PASTE].replace("\r\n", "\n").replace("\r", "\n")
    kept = (letter for letter in text if letter.isprintable() or letter in "\n\t\u200c\u200d")
    event.current_buffer.insert_text("".join(kept))


class _PlainLines:
    """Whole lines from a terminal without cursor movements, on which the kernel lets the user edit them."""

    def __init__(self, keyboard: TextIO, screen: Screen) -> None:
        self._fd = keyboard.fileno()
        self._screen = screen
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(MAX_AHEAD)
        self._half = b""
        self._mark = ""
        self._in_dialog = False

    async def begin(self) -> None:
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    async def end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)

    async def line(self, mark: str, *, standing: bool, menu: Menu | None = None) -> str | None:
        """Return a typed line; None for the end of input. A menu is not drawn here, and every answer needs Enter."""
        if standing:
            self._mark = mark
        self._ask(mark)
        while True:
            typed = await self._lines.get()
            if not (standing and self._in_dialog):
                return typed
            # A question is open: this line answers it.
            with suppress(asyncio.QueueFull):
                self._lines.put_nowait(typed)
            await asyncio.sleep(0)

    def begin_dialog(self) -> None:
        self._in_dialog = True

    def end_dialog(self) -> None:
        self._in_dialog = False
        if self._mark:
            self._ask(self._mark)

    def set_busy(self, busy: bool) -> None:
        """Do nothing: no line is hidden here."""

    def throw_away(self) -> bool:
        """Return False: the kernel holds the typed text, and discards it on Ctrl-C."""
        return False

    def _ask(self, mark: str) -> None:
        self._screen.ask(mark)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except OSError:
            data = b""
        *lines, self._half = (self._half + data).split(b"\n")
        with suppress(asyncio.QueueFull):
            for line in lines:
                self._screen.typed()
                self._lines.put_nowait(line.decode(errors="replace"))
            if not data:
                self._lines.put_nowait(None)
                asyncio.get_running_loop().remove_reader(self._fd)
