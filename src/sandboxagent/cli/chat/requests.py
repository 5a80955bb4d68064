"""Ask for permissions, answers and forms at the terminal, or answer requests by flags."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec
from rich.cells import cell_len

from sandboxagent import (
    Answer,
    ClientError,
    ElicitationRequest,
    PermissionRequest,
    Question,
    QuestionRequest,
    SandboxAgent,
    ServerProblem,
)
from sandboxagent.cli.chat.blocks import (
    Line,
    Note,
    ShownCall,
    Span,
    change_lines,
    command_lines,
    join_facts,
    note,
    spoken,
    visible,
    wrap_line,
)
from sandboxagent.cli.chat.forms import FormField, InvalidInput, fields
from sandboxagent.cli.chat.input import Keyboard
from sandboxagent.cli.chat.menu import MAX_ROWS, Menu
from sandboxagent.cli.chat.render import ASCII, Marks, Showing, call_key
from sandboxagent.cli.chat.screen import ROOM_BELOW, Screen, is_unicode
from sandboxagent.cli.chat.status import StatusLine
from sandboxagent.cli.output import complain, describe_duration, harmless, one_line
from sandboxagent.client.requests import Handlers
from sandboxagent.protocol.acp import (
    ContentToolCallContent,
    FileEditToolCallContent,
    PermissionOption,
    TextContentBlock,
)
from sandboxagent.protocol.envelope import Object, text_at

MAX_LINES = 16
"""Lines of a command or a change that are shown before the user asks for all."""
MAX_TITLE = 40
"""Maximum number of columns of a field's title on the line of its answer. A longer title has its own line above."""
MAX_TRIES = 2
"""Number of times that a permission is asked. Without a choice, it is rejected."""
_WORDS = {"allow_once": ("y", "yes"), "reject_once": ("n", "no")}
"""Words that people also type. They allow or reject this request only, never more."""
FIRST_OF_TWO = 10
"""The first number with two digits. With so many choices, a digit may be the beginning of a number."""
_YES_OR_NO = frozenset({"y", "n"})
MAX_REASON = 4096
"""Maximum number of characters of a reason, as the contract says."""
_KEYS = {"allow_once": "a", "allow_always": "A", "reject_once": "r", "reject_always": "R"}


class TerminalAsking:
    """Handlers that ask the person at a terminal."""

    def __init__(self, terminal: Keyboard, screen: Screen, showing: Showing, marks: Marks, status: StatusLine) -> None:
        self._status = status
        self._terminal = terminal
        self._screen = screen
        self._showing = showing
        self._mark = Span(marks.asks, "yellow")
        self._turn = asyncio.Lock()
        """Held by the request that is asked, so that requests are asked one after the other."""
        self._client: SandboxAgent | None = None
        self._leaving = False
        self._ready = asyncio.Event()
        self._ready.set()

    def pause(self) -> None:
        """Hold requests back until `resume`, so that the user can read the session first."""
        self._ready.clear()

    def resume(self) -> None:
        """Ask the requests that were held back."""
        self._ready.set()

    def leave(self) -> None:
        """Note that the program ends: cancelled requests are not reported from here on."""
        self._leaving = True

    def use(self, client: SandboxAgent) -> None:
        """Answer through this client."""
        self._client = client

    # Permissions

    async def permission(self, request: PermissionRequest) -> Answer:
        """Ask for a permission, at most `MAX_TRIES` times. Without a choice, reject it."""
        async with self._alone():
            lines = describe_request(request, self._showing)
            self._show(request, lines)
            choices = _choices(request.options)
            menu = self._offer(_option_rows(request.options), _permission_menu(choices))
            try:
                for left in reversed(range(MAX_TRIES)):
                    chosen = await self._choice(choices, menu, lines)
                    if chosen is not None:
                        option, reason = chosen
                        self._showing.answered_here += 1
                        return request.select(option.option_id).because(reason)
                    if left:
                        self._say(f"choose one of {', '.join(_list_keys(choices))}, or it is rejected")
            except EOFError:
                pass
            self._say("rejected")
            self._showing.answered_here += 1
            return request.reject()

    def _show(self, request: PermissionRequest, lines: Sequence[Line]) -> None:
        call = ShownCall()
        call.update(request.tool_call)
        self._showing.asked(request.tool_call.tool_call_id)
        # The mark says that this is a question, in place of the call's status.
        head = [self._mark, *list(self._showing.line(call))[1:]]
        rows = self._rows(lines)
        few = rows if len(rows) <= MAX_LINES + 1 else rows[:MAX_LINES]
        more = len(rows) - len(few)
        rest = [[Span(f"  … {more} more lines; v shows all", "dim")]] if more else []
        self._tell([head, *few, *rest], key=call_key(request.tool_call.tool_call_id))

    def _offer(self, rows: Sequence[Line], menu: Menu) -> Menu:
        """Return the menu with the options' rows. If the terminal has no room to draw them, print them as text."""
        room = min(MAX_ROWS, self._screen.height - ROOM_BELOW)
        if self._screen.moves and 0 < len(self._rows([*rows, *menu.below])) <= room:
            return replace(menu, rows=rows)
        self._tell([*rows, *menu.below])
        return menu

    async def _choice(
        self, choices: "dict[str, PermissionOption]", menu: Menu, lines: Sequence[Line]
    ) -> tuple[PermissionOption, str | None] | None:
        """Return the chosen option, and the reason that was typed with it; None for any other text."""
        offered = _list_keys(choices)
        mark = f"{'/'.join(key for key in offered if not key.isdecimal()) or '/'.join(offered)}? "
        while True:
            typed = (await self._terminal.answer(mark, menu)).strip()
            if typed != "v":
                return _chosen_option(typed, choices)
            self._tell(lines or [[Span("  the agent gives no details", "dim")]])

    # Questions

    async def question(self, request: QuestionRequest) -> Answer | None:
        """Ask each question. If the server refuses the answers, ask again."""
        async with self._alone():
            while True:
                try:
                    answers = [await self._answer(question) for question in request.questions]
                except EOFError:
                    answers = []
                if not any(answers):
                    self._say("rejected")
                    self._showing.answered_here += 1
                    return request.reject()
                assert self._client is not None
                if await self._taken(self._client.reply_question(request.id, answers)):
                    return None

    async def _answer(self, question: Question) -> list[str]:
        """Return the ids of the chosen options, or a typed text; empty if the user gives none."""
        header = f"{one_line(question.header)}: " if question.header else ""
        options = [
            [
                Span(f"  {number} "),
                Span(one_line(option.label or option.id)),
                Span(f"  {one_line(option.description)}" if option.description else "", "dim"),
            ]
            for number, option in enumerate(question.options, 1)
        ]
        if not question.options:
            how = "a text"
        else:
            how = "numbers, such as 1,2" if question.multi_select else "a number"
            how += ", or a text of your own"
        asked = note(header + spoken(question.question), "bold", self._mark)
        self._tell(asked.lines)
        names = [option.label or option.id for option in question.options]
        below = [[Span(f"  {how}; Ctrl-D rejects", "dim")]]
        several = question.multi_select
        menu = self._offer(options, Menu(below=below, several=several, echo=lambda typed: _echo(typed, names)))
        for _ in range(MAX_TRIES):
            typed = (await self._terminal.answer("answer: ", menu)).strip()
            ids = chosen(typed, [option.id for option in question.options], several=question.multi_select)
            if ids is None:
                self._say(f"there are {len(question.options)} answers to choose from" if question.options else how)
            elif ids:
                return ids
        return []

    # Forms

    async def elicitation(self, request: ElicitationRequest) -> Answer | None:
        """Ask for each field of a form, or show the address to open."""
        async with self._alone():
            try:
                if request.mode == "url":
                    return await self._address(request)
                return await self._form(request)
            except EOFError:
                return self._declined(request)

    def _declined(self, request: ElicitationRequest) -> Answer:
        self._say("declined")
        self._showing.answered_here += 1
        return request.decline()

    async def _address(self, request: ElicitationRequest) -> Answer:
        asked = note(spoken(request.message), "bold", self._mark)
        self._tell([*asked.lines, [Span("  "), Span(one_line(request.url or ""), "cyan")]])
        typed = (await self._terminal.answer("done? y/n: ", Menu(keys=_YES_OR_NO))).strip().lower()
        if typed not in ("y", "yes"):
            return self._declined(request)
        self._showing.answered_here += 1
        return request.accept()

    async def _form(self, request: ElicitationRequest) -> Answer | None:
        asked = note(spoken(request.message), "bold", self._mark)
        self._tell([*asked.lines, [Span("  Ctrl-D declines", "dim")]])
        values: Object = {}
        while True:
            given = {each.name: await self._field(each, values.get(each.name)) for each in fields(request.schema)}
            values = {name: value for name, value in given.items() if value is not None}
            assert self._client is not None
            if await self._taken(self._client.reply_elicitation(request.id, values)):
                return None

    async def _field(self, field: FormField, before: object) -> object:
        """Return the value for a field; None when the user leaves it out."""
        default = field.default if before is None else before
        self._tell(_about(field))
        mark = _mark(field, default)
        names = [label for _, label in field.choices]
        menu = self._offer(
            [[Span(f"  {number} {one_line(name)}")] for number, name in enumerate(names, 1)],
            Menu(
                several=field.kind == "array",
                keys=_field_keys(field),
                echo=lambda typed: _echo(typed, names),
            ),
        )
        while True:
            typed = (await self._terminal.answer(mark, menu)).strip()
            if not typed and default is not None:
                return default
            try:
                return field.value(typed)
            except InvalidInput as unfit:
                self._say(str(unfit))

    async def _taken(self, reply: Awaitable[None]) -> bool:
        """Return whether the server has accepted an answer; True also for one that came too late."""
        self._showing.answered_here += 1
        try:
            await reply
        except ClientError as error:
            self._showing.answered_here -= 1
            if isinstance(error, ServerProblem) and error.slug == "wrong-answer":
                self._say(one_line(error.detail))
                return False
        return True

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Ask one request at a time, and say so if it is cancelled in the meantime."""
        async with self._turn:
            await self._ready.wait()
            self._status.hold()
            try:
                async with self._terminal.dialog():
                    yield
            except asyncio.CancelledError:
                if not self._leaving:
                    self._say("an answer is no longer needed")
                raise
            finally:
                self._status.release()

    def _say(self, text: str) -> None:
        self._tell([[Span(f"  {text}", "dim")]])

    def _tell(self, lines: Sequence[Line], key: str | None = None) -> None:
        self._screen.tell(Note(self._rows(lines), key=key))

    def _rows(self, lines: Sequence[Line]) -> list[Line]:
        """Wrap all lines, because nothing in a question may be cut off at the edge."""
        width = self._screen.width - 1
        return [row for line in lines for row in wrap_line(line, width)]


class Answers:
    """Handlers that decide without asking, and show each decision."""

    def __init__(self, screen: Screen, showing: Showing, marks: Marks, why: str) -> None:
        self._screen = screen
        self._showing = showing
        self._marks = marks
        self._why = why

    def allow(self, request: PermissionRequest) -> Answer:
        """Allow it once, if the agent offers that, else reject it."""
        answer = request.allow()
        chosen = text_at(answer.result, "outcome", "optionId")
        kinds = {option.option_id: option.kind for option in request.options}
        allowed = kinds.get(chosen or "") == "allow_once"
        self._tell(
            request, "allowed" if allowed else "rejected: the agent does not offer to allow it once", good=allowed
        )
        return answer

    def reject(self, request: PermissionRequest) -> Answer:
        """Reject a permission request."""
        self._tell(request, "rejected")
        return request.reject()

    def reject_question(self, request: QuestionRequest) -> Answer:
        """Reject a question."""
        self._say(f"{one_line(request.prompt) or 'a question'}: rejected", good=False)
        return request.reject()

    def decline(self, request: ElicitationRequest) -> Answer:
        """Decline a form."""
        self._say(f"{one_line(request.message) or 'a form'}: declined", good=False)
        return request.decline()

    def _tell(self, request: PermissionRequest, word: str, *, good: bool = False) -> None:
        call = request.tool_call
        self._say(f"{one_line(call.title or call.kind or 'a tool call')}: {word}", good=good)

    def _say(self, text: str, *, good: bool) -> None:
        self._showing.answered_here += 1
        mark = Span(self._marks.completed, "green") if good else Span(self._marks.failed, "red")
        self._screen.show([note(f"{text} ({self._why})", "", mark)])


def chosen(typed: str, ids: Sequence[str], *, several: bool) -> list[str] | None:
    """Return the ids for typed numbers, or the text itself; None for a number that no option has."""
    if not typed:
        return []
    parts = [part.strip() for part in typed.split(",")] if several else [typed]
    if not ids or not all(part.isdecimal() for part in parts if part):
        return [typed]
    numbers = [int(part) for part in parts if part]
    if not all(1 <= number <= len(ids) for number in numbers):
        return None
    return [ids[number - 1] for number in dict.fromkeys(numbers)]


def describe_request(request: PermissionRequest, showing: Showing) -> list[Line]:
    """Return the lines about a permission request: the command and the changes, or else the raw input."""
    call = request.tool_call
    lines = command_lines(call.raw_input)
    where = text_at(call.raw_input, "cwd") or text_at(call.raw_input, "workdir")
    if lines and where and where != showing.cwd:
        lines.append([Span(f"  in {one_line(where)}", "dim")])
    for each in call.content or []:
        match each:
            case FileEditToolCallContent():
                lines += change_lines([each], showing.path)
            case ContentToolCallContent(content=TextContentBlock() as block):
                lines += [[Span(f"  {line}")] for line in spoken(block.text).splitlines()]
            case _:
                pass
    if not lines and call.raw_input not in (None, {}):
        text = msgspec.json.format(msgspec.json.encode(call.raw_input), indent=2).decode()
        lines += [[Span(f"  {visible(line)}")] for line in text.split("\n")]
    return lines


def _assign_keys(options: Sequence[PermissionOption]) -> list[tuple[str, PermissionOption]]:
    """Pair each option with its key, which is empty if several options have the same kind."""
    kinds = [option.kind for option in options]
    return [(_KEYS[option.kind] if kinds.count(option.kind) == 1 else "", option) for option in options]


def _choices(options: Sequence[PermissionOption]) -> dict[str, PermissionOption]:
    """Return the options by each text that can be typed: keys, numbers and words."""
    keyed = _assign_keys(options)
    by_key = {key: option for key, option in keyed if key}
    by_word = {word: option for option in by_key.values() for word in _WORDS.get(option.kind, ())}
    return by_key | {str(number): option for number, (_, option) in enumerate(keyed, 1)} | by_word


def _field_keys(field: FormField) -> frozenset[str]:
    """Return the keys that fill in a field without Enter: y and n, or the numbers of few choices."""
    if field.choices and field.kind != "array" and len(field.choices) < FIRST_OF_TWO:
        return frozenset(map(str, range(1, len(field.choices) + 1)))
    return _YES_OR_NO if field.kind == "boolean" else frozenset()


def _option_rows(options: Sequence[PermissionOption]) -> list[Line]:
    """Return one line for each option, with its number and its key."""
    return [
        [Span(f"  {number} "), Span(one_line(option.name)), Span(_key_hint(key, option), "dim")]
        for number, (key, option) in enumerate(_assign_keys(options), 1)
    ]


def _key_hint(key: str, option: PermissionOption) -> str:
    if not key:
        return ""
    return f" ({key}, or {key} and a reason)" if option.kind == "reject_once" else f" ({key})"


def _permission_menu(choices: "dict[str, PermissionOption]") -> Menu:
    """Return the keys that answer a permission request. A number answers if no other number begins with it."""
    keys = {typed for typed in choices if len(typed) == 1} | {"v"}
    keys -= {
        typed
        for typed in keys
        if any(other != typed and other.isdecimal() and other.startswith(typed) for other in choices)
    }
    reasons = {typed for typed, option in choices.items() if option.kind.startswith("reject")}

    def echo(typed: str) -> str:
        chosen = _chosen_option(typed, choices)
        if chosen is None:
            return typed
        option, reason = chosen
        return f"{typed.partition(' ')[0]}  {join_facts([one_line(option.name), reason or ''], ': ')}"

    return Menu(keys=frozenset(keys), reasons=frozenset(reasons), echo=echo)


def _chosen_option(typed: str, choices: "dict[str, PermissionOption]") -> tuple[PermissionOption, str | None] | None:
    """Return the option for a typed text, and the reason after it; None if no option fits. Only a no has a reason."""
    word, _, reason = typed.partition(" ")
    option = choices.get(word)
    if option is None or (reason and not option.kind.startswith("reject")):
        return None
    return option, reason.strip()[:MAX_REASON] or None


def _echo(typed: str, names: Sequence[str]) -> str:
    """Return typed numbers with the names of their options."""
    numbers = [part.strip() for part in typed.split(",")]
    if not all(number.isdecimal() and 1 <= int(number) <= len(names) for number in numbers):
        return typed
    return f"{typed}  {', '.join(one_line(names[int(number) - 1]) for number in numbers)}"


def _list_keys(choices: Iterable[str]) -> list[str]:
    """Return the keys and numbers among the texts that can be typed."""
    return [each for each in choices if not any(each in words for words in _WORDS.values())]


def _about(field: FormField) -> list[Line]:
    """Return the lines above a field: its title if that is long, and its description."""
    title = [] if _is_short(field) else [[Span(f"  {one_line(field.title)}", "bold")]]
    about = [[Span(f"  {line}", "dim")] for line in spoken(field.description).splitlines()]
    return [*title, *about]


def _mark(field: FormField, default: object) -> str:
    """Return the text before a field's answer."""
    facts = join_facts(["required" if field.required and default is None else "", field.hint], ", ")
    title = one_line(field.title if _is_short(field) else field.name[:MAX_TITLE])
    return f"{title}{f' ({facts})' if facts else ''}{'' if default is None else f' [{_written(default)}]'}: "


def _is_short(field: FormField) -> bool:
    return cell_len(field.title) <= MAX_TITLE


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    return one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode())


NO_TERMINAL = "there is no terminal to ask on"
Answering = Literal["ask", "yes", "no"]
R = TypeVar("R")
Given = Awaitable[Answer | None] | Answer | None


@dataclass(frozen=True, slots=True)
class View:
    """The parts of the terminal interface. Without a terminal, nobody can be asked."""

    screen: Screen
    showing: Showing
    marks: Marks
    terminal: Keyboard | None
    asking: TerminalAsking | None
    status: StatusLine
    quiet: bool

    def say(self, text: str) -> None:
        """Show a message about the program's work, on a terminal only."""
        if not self.quiet and self.screen.stream.isatty():
            self.screen.show([note(harmless(text), "dim")])

    def warn(self, text: str) -> None:
        """Show a warning, in a pipe too."""
        if self.screen.stream.isatty():
            self.screen.tell(note(f"sandbox-agent: {harmless(text)}", "yellow"))
        else:
            self.screen.finish()
            complain(harmless(text))

    def lose(self) -> None:
        """Show that the connection to the server broke, on a terminal only."""
        if self.status.lose() and not self.screen.moves:
            self.say("the connection to the server broke; reconnecting")

    def regain(self) -> None:
        """Show that the connection is there again, on a terminal only."""
        away = self.status.regain()
        if away is not None:
            self.say(f"reconnected to the server after {describe_duration(int(away))}")

    def restore(self) -> None:
        """Restore the terminal at once, when the program exits without cleaning up."""
        if self.terminal is not None:
            self.terminal.restore()

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Take all input for a conversation, for the time of the block."""
        return nullcontext() if self.terminal is None else self.terminal.held()

    def handlers(self, answering: Answering, *, only: Callable[[], bool] = lambda: True) -> Handlers:
        """Return handlers for permissions, questions and forms. Requests while not `only` are left to other clients."""
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


def view(*, as_json: bool, quiet: bool, verbose: bool) -> View:
    """Make the view on the streams of this process. With JSON lines, nothing else goes to stdout."""
    words = sys.stderr if as_json else sys.stdout
    notes = sys.stdout if words.isatty() and not as_json else sys.stderr
    screen = Screen(words, notes, quiet=quiet or as_json)
    marks = Marks() if is_unicode(notes) else ASCII
    # A pipe gets one line for each step.
    work = "whole" if verbose else "folded" if notes.isatty() else "hidden"
    showing = Showing(marks, static=not screen.moves, work=work)
    terminal = Keyboard(sys.stdin, screen) if has_keyboard() and notes.isatty() else None
    status = StatusLine(screen, showing)
    asking = None if terminal is None else TerminalAsking(terminal, screen, showing, marks, status)
    return View(screen, showing, marks, terminal, asking, status, quiet)


def has_keyboard() -> bool:
    """Whether the user can type. In a process without stdin, `sys.stdin` is None."""
    keyboard: object = sys.stdin
    return keyboard is not None and sys.stdin.isatty()
