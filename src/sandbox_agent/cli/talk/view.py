"""What a person looks at while an agent works: the streams, the screen on them, and who answers the agent."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeVar

from sandbox_agent.cli.output import complain, harmless
from sandbox_agent.cli.talk.asking import Answers, Asking
from sandbox_agent.cli.talk.pieces import note
from sandbox_agent.cli.talk.screen import Screen, is_unicode
from sandbox_agent.cli.talk.showing import ASCII, Marks, Showing
from sandbox_agent.cli.talk.terminal import Terminal
from sandbox_agent.client import Answer
from sandbox_agent.client.asking import Handlers

NO_TERMINAL = "there is no terminal to ask on"
Answering = Literal["ask", "yes", "no"]
R = TypeVar("R")
Given = Awaitable[Answer | None] | Answer | None


@dataclass(frozen=True, slots=True)
class View:
    """The parts of it; without a terminal you cannot be asked."""

    screen: Screen
    showing: Showing
    marks: Marks
    terminal: Terminal | None
    asking: Asking | None
    quiet: bool

    def say(self, text: str) -> None:
        """A word about what the program does, for people alone."""
        if not self.quiet and self.screen.stream.isatty():
            self.screen.show([note(harmless(text), "dim")])

    def warn(self, text: str) -> None:
        """A word that counts also in a pipe."""
        if self.screen.stream.isatty():
            self.screen.tell(note(f"sandbox-agent: {harmless(text)}", "yellow"))
        else:
            self.screen.finish()
            complain(harmless(text))

    def restore(self) -> None:
        """Leave the terminal as it was, when there is no time for more."""
        if self.terminal is not None:
            self.terminal.restore()

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Take all that is typed from here on, for a conversation."""
        return nullcontext() if self.terminal is None else self.terminal.held()

    def handlers(self, answering: Answering, *, only: Callable[[], bool] = lambda: True) -> Handlers:
        """The handlers for permissions, questions and forms; other clients answer what arrives while not `only`."""
        who = self._handlers(answering)
        return Handlers(_while(only, who.permission), _while(only, who.question), _while(only, who.elicitation))

    def _handlers(self, answering: Answering) -> Handlers:
        asking = self.asking
        if asking is None or answering == "no":
            no = Answers(self.screen, self.showing, self.marks, "--no" if answering == "no" else NO_TERMINAL)
            yes = Answers(self.screen, self.showing, self.marks, "--yes")
            return Handlers(yes.allow if answering == "yes" else no.reject, no.reject_question, no.decline)
        if answering == "yes":
            yes = Answers(self.screen, self.showing, self.marks, "--yes")
            return Handlers(yes.allow, asking.question, asking.elicitation)
        return Handlers(asking.permission, asking.question, asking.elicitation)


def _while(only: Callable[[], bool], handler: Callable[[R], Given] | None) -> Callable[[R], Given] | None:
    return None if handler is None else lambda request: handler(request) if only() else None


def view(*, as_json: bool, quiet: bool) -> View:
    """A view on the streams of this process: JSON lines leave stdout to themselves."""
    words = sys.stderr if as_json else sys.stdout
    notes = sys.stdout if words.isatty() and not as_json else sys.stderr
    screen = Screen(words, notes, quiet=quiet or as_json)
    marks = Marks() if is_unicode(notes) else ASCII
    showing = Showing(marks, static=not screen.moves)
    terminal = Terminal(sys.stdin, screen) if has_keyboard() and notes.isatty() else None
    asking = None if terminal is None else Asking(terminal, screen, showing, marks)
    return View(screen, showing, marks, terminal, asking, quiet)


def has_keyboard() -> bool:
    """Whether you can type. A process without stdin has None there."""
    keyboard: object = sys.stdin
    return keyboard is not None and sys.stdin.isatty()
