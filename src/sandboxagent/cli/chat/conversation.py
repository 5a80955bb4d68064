"""Follow one prompt and its turn, or a whole session while the user types."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec import ValidationError

from sandboxagent import (
    Gap,
    LogEvent,
    SandboxAgent,
    Session,
    SessionEnded,
    SessionItem,
    Turn,
    TurnEnded,
    TurnStarted,
    Updates,
)
from sandboxagent.cli.chat import FAILURES
from sandboxagent.cli.chat.blocks import Line, Note, Span, cut, join_facts, note
from sandboxagent.cli.chat.history import SERVER, OwnPrompts, last_turns, prompt_of
from sandboxagent.cli.chat.json_lines import JsonLines
from sandboxagent.cli.chat.requests import View
from sandboxagent.cli.chat.signals import Interrupts
from sandboxagent.cli.failures import Failure, exit_code, is_mentioned_in, sentence, tell
from sandboxagent.cli.output import EXIT_FAILED, complain, one_line
from sandboxagent.client.updates import FINAL, ContentBlock, read_item
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.acp import AvailableCommandsUpdate, UserMessageChunk
from sandboxagent.protocol.decode import read
from sandboxagent.protocol.envelope import Object, list_at, object_at, text_at

CANCEL_TIMEOUT = 5.0
"""Seconds that an agent has to end a cancelled turn."""


class OneShot:
    """One prompt and its turn, for a run that ends with the turn."""

    def __init__(
        self, client: SandboxAgent, session: Session, own: OwnPrompts, view: View, interrupts: Interrupts
    ) -> None:
        self._client = client
        self._own = own
        self._session = session
        self._view = view
        self._interrupts = interrupts
        self._cancelling: asyncio.Task[None] | None = None

    async def run(self, prompt: str, files: Sequence[str], *, as_json: bool) -> int:
        """Send the prompt and show its turn. Return the exit code."""
        lines = JsonLines(self._client, self._session, self._own) if as_json else None
        if lines is not None:
            await lines.begin()
        turn = self._session.prompt(prompt, files)
        work = asyncio.create_task(self._shown(turn) if lines is None else lines.write(turn))
        self._interrupts.on = lambda number: self._cancel(number, turn, work)
        try:
            return await self._outcome(work, lines)
        finally:
            self._view.status.end()
            self._interrupts.on = lambda _: False
            work.cancel()
            if not self._is_over(work):
                # Nobody reads the output any more, so the turn is useless.
                with suppress(TimeoutError, *FAILURES):
                    async with asyncio.timeout(CANCEL_TIMEOUT):
                        await turn.cancel()

    async def _outcome(self, work: "asyncio.Task[TurnEnded]", lines: "JsonLines | None") -> int:
        try:
            end = await asyncio.shield(work)
        except FAILURES as failure:
            self._view.screen.finish()
            if lines is not None:
                lines.fail(failure)
            tell_agents(failure, self._view)
            return EXIT_FAILED
        except asyncio.CancelledError:
            if not work.cancelled():
                raise
            self._view.warn(f"the agent has not ended its turn within {CANCEL_TIMEOUT:g} s")
            return self._code(None)
        if lines is not None:
            lines.end(end)
        self._view.screen.finish()
        return self._code(end.stop_reason)

    def _code(self, stop_reason: str | None) -> int:
        signal_number = self._interrupts.received
        return exit_code(stop_reason) if signal_number is None else 128 + signal_number

    async def _shown(self, turn: Turn) -> TurnEnded:
        screen, showing = self._view.screen, self._view.showing
        self._view.status.begin(f"{self._session.agent} is at work …")
        showing.spending.begin_turn()
        end = None
        async for item in turn:
            screen.show(showing.blocks(item))
            end = item
        assert isinstance(end, TurnEnded)
        self._view.status.end()
        self._view.say(join_facts([showing.spending.describe(end.response), f"session {self._session.id}"], "\n"))
        return end

    def _cancel(self, number: signal.Signals, turn: Turn, work: "asyncio.Task[TurnEnded]") -> bool:
        """Ask the agent to end its turn, which it must do within `CANCEL_TIMEOUT`. This handles the first signal."""
        self._interrupts.received = number
        self._view.say("cancelling; press Ctrl-C again to exit at once")
        self._cancelling = asyncio.create_task(self._ask_to_end(turn, work))
        return True

    async def _ask_to_end(self, turn: Turn, work: "asyncio.Task[TurnEnded]") -> None:
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                with suppress(*FAILURES):
                    await turn.cancel()
                await asyncio.wait([work])
        except TimeoutError:
            work.cancel()

    @staticmethod
    def _is_over(work: "asyncio.Task[TurnEnded]") -> bool:
        if not work.done() or work.cancelled():
            return False
        return work.exception() is None or isinstance(work.exception(), (*FAILURES,))


def tell_agents(failure: Failure, view: View) -> None:
    """Print a turn's failure. On a terminal, do not repeat an error that the agent has already printed."""
    if view.screen.stream.isatty() and is_mentioned_in(failure, view.showing.said):
        complain("the turn failed with the error that the agent reports above")
    else:
        tell(failure)


LATE_ANSWER_TIMEOUT = 5.0
"""Seconds after the end of a turn until the response to its prompt must arrive."""
TURN_END_TIMEOUT = 0.5
"""Seconds to wait for the end of a failed turn."""

TURNS_SHOWN = 10
"""Number of past turns to show when the user continues a session."""
MAX_SEARCHED = 500
"""Maximum number of events that are searched for the agent's commands, from the session's start on."""

COMMANDS = {
    "/help": "list the commands",
    "/model": "list the models; /model NAME switches",
    "/mode": "list the modes; /mode NAME switches",
    "/show": "show the last folded text in full; /show NUMBER an earlier one",
    "/cancel": "cancel the running turn",
    "/quit": "exit, like Ctrl-D",
}


class _Sent:
    """A prompt that was sent here. `ended` is set when the end of its turn has arrived."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.started = asyncio.Event()
        self.ended = asyncio.Event()


class Conversation:
    """One person's view of a session, and the prompts that this person sends."""

    def __init__(self, session: Session, own: OwnPrompts, view: View, updates: Updates) -> None:
        self._session = session
        self._view = view
        self._updates = updates
        self._own = own
        self._sent: list[_Sent] = []
        self._current: _Sent | None = None
        """The prompt of the running turn, if it was sent here."""
        self._turn_id: str | None = None
        self._failing = Tasks()
        self._files: Sequence[str] = ()
        self.busy = False
        """Whether a turn runs."""
        self.is_cancelling = False

    def attach(self, files: Sequence[str]) -> None:
        """Send these files with the first prompt."""
        self._files = files

    # Watching

    async def watch(self, *, resume: bool = False) -> SessionEnded | None:
        """Show the session until it ends, and return its end.

        With `revive`, or if the server was stopped, it goes on after an end from which a prompt resumes the session.
        """
        async for item in self._updates:
            await self._live(item)
            if isinstance(item, SessionEnded):
                comes_back = (resume or item.terminated_by == SERVER) and item.reason not in FINAL
                if not comes_back or not (await self._session.info()).resumable:
                    return item
                self._say("the next prompt resumes the session")
        return None

    async def replay(self, after: int, before: int) -> None:
        """Show the events between two positions of the log."""
        async for event in self._session.log(after, before):
            await self._show_past(event)

    async def resume(self, before: int) -> None:
        """Show the last turns of a session that the user continues, and say whether there are earlier ones."""
        past = await last_turns(self._session, TURNS_SHOWN, before)
        if past.is_cut:
            self._say(f"earlier turns are left out; sandbox-agent attach {self._session.id} --all shows them")
        for event in past.events:
            await self._show_past(event)

    async def learn(self, before: int) -> None:
        """Read the agent's commands from the start of the log: an agent sends them only once."""
        count = 0
        async for event in self._session.log(0, before):
            item = _item(event)
            if isinstance(item, AvailableCommandsUpdate):
                self._view.showing.blocks(item)
            count += 1
            if count == MAX_SEARCHED:
                break

    async def _show_past(self, event: LogEvent | Gap) -> None:
        item = _item(event)
        if isinstance(item, TurnStarted):
            prompt = await prompt_of(self._session, item.turn_id)
            self._view.screen.show(self._view.showing.prompt(_blocks(prompt)))
        # Skip the agent's repetition of the prompt, which was shown just before.
        if item is not None and not isinstance(item, UserMessageChunk):
            await self._live(item)

    async def _live(self, item: SessionItem) -> None:
        match item:
            case TurnStarted():
                number = self._own.number(item.prompt_id)
                self._turn_id = item.turn_id
                self._current = None if number is None else self._sent[number]
                if self._current is not None:
                    self._current.started.set()
                self._set_busy(True)
                self._show(item)
            case TurnEnded():
                await self._ended(item)
            case UserMessageChunk():
                # A prompt that was typed here is on the screen already.
                if self._current is None:
                    self._show(item)
            case SessionEnded():
                self._show(item)
                self.settle()
            case _:
                self._show(item)

    async def _ended(self, item: TurnEnded) -> None:
        if self._turn_id not in (None, item.turn_id):
            return  # A queued prompt was cancelled; it is not the running turn.
        if self._current is None:
            self._show(item)
        else:
            self._show(TurnEnded(item.stop_reason))
            await self._tell_end(self._current)
        self._view.screen.end_lines()
        self.settle()

    def settle(self) -> None:
        """Note that no turn runs."""
        self._current = self._turn_id = None
        self._set_busy(False)

    def _show(self, item: SessionItem) -> None:
        self._view.screen.show(self._view.showing.blocks(item))

    async def _tell_end(self, sent: _Sent) -> None:
        """Show the facts that only the sender of a prompt gets: the turn's usage, or the details of its failure."""
        sent.ended.set()
        try:
            async with asyncio.timeout(LATE_ANSWER_TIMEOUT):
                end = await sent.turn
        except TimeoutError:
            return
        except FAILURES as failure:
            self._fail(failure)
            return
        used = self._view.showing.spending.describe(end.response)
        if used:
            self._view.say(used)

    def _set_busy(self, busy: bool) -> None:
        if busy and not self.busy:
            self._view.status.begin(f"{self._session.agent} is at work …")
        elif not busy:
            self._view.status.end()
        self.busy = busy
        self.is_cancelling = self.is_cancelling and busy
        if self._view.terminal is not None:
            self._view.terminal.set_busy(busy)

    def _fail(self, failure: Failure) -> None:
        self._view.screen.finish()
        tell_agents(failure, self._view)

    # Talking

    async def talk(self) -> None:
        """Handle typed lines until the user leaves."""
        terminal = self._view.terminal
        assert terminal is not None
        mark = f"{self._view.marks.person} "
        terminal.complete(self._words)
        while True:
            try:
                text = (await terminal.line(mark, standing=True)).strip()
            except EOFError:
                return
            if not text:
                continue
            if text in ("/quit", "/exit"):
                return
            await self._obey(text)

    def _words(self) -> list[tuple[str, str]]:
        """Return the words that the tab key completes, with their descriptions."""
        return [*COMMANDS.items(), *self._agents_words()]

    def _agents_words(self) -> list[tuple[str, str]]:
        """Return the agent's own commands as typed: with two slashes if a command here has the same name."""
        own = ((f"/{name}", text) for name, text in self._view.showing.commands)
        return [(f"/{word}" if word in COMMANDS else word, text) for word, text in own]

    async def _obey(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/model": self._model,
            "/mode": self._mode,
            "/show": self._unfold,
            "/cancel": self._cancel,
        }
        try:
            if word in commands:
                await commands[word](rest.strip())
            else:
                # Two slashes are for a command of the agent with the same name as one here.
                self._send(text.removeprefix("/") if text.startswith("//") else text)
        except FAILURES as failure:
            self._say(sentence(failure))

    def _send(self, text: str) -> None:
        files, self._files = self._files, ()
        waits = self.busy
        sent = _Sent(self._session.prompt(text, files))
        self._sent.append(sent)
        self._failing.run(self._watch_start(sent), "start of a turn")
        if waits:
            self._say("queued until the running turn ends")
        else:
            self._set_busy(True)

    async def _watch_start(self, sent: _Sent) -> None:
        """Report a refused prompt, which has no turn to show the failure."""
        failure, stop_reason = None, None
        try:
            stop_reason = (await sent.turn).stop_reason
        except FAILURES as failed:
            failure = failed
        if failure is None and stop_reason != "cancelled":
            return
        # Events of its turn may still be on their way.
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN_END_TIMEOUT):
                await (sent.started if failure is None else sent.ended).wait()
        if failure is None and not sent.started.is_set():
            self._say("queued prompts were cancelled, too")
        elif failure is not None and not sent.ended.is_set():
            self._fail(failure)
            self._set_busy(self._turn_id is not None)

    async def cancel(self) -> None:
        """Cancel the running turn and the queued prompts."""
        self.is_cancelling = True
        with suppress(*FAILURES):
            await self._session.cancel()

    async def _cancel(self, _: str) -> None:
        if self.busy:
            await self.cancel()
        else:
            self._say("no turn is running")

    async def _help(self, _: str) -> None:
        agents = self._agents_words()
        width = max(len(word) for word, _ in [*COMMANDS.items(), *agents]) + 2
        lines = [_command_line(word, text, width) for word, text in COMMANDS.items()]
        if agents:
            lines.append([Span(f"commands of {self._session.agent}:", "bold")])
            lines += [_command_line(word, text, width) for word, text in agents]
        # One line each: an agent's descriptions can be long.
        self._view.screen.tell(Note([cut(line, self._view.screen.width - 1) for line in lines]))

    async def _unfold(self, number: str) -> None:
        lines = self._view.showing.folded(int(number) if number.isdecimal() else None)
        if not lines or (number and not number.isdecimal()):
            self._say(f"no folded text has the number {one_line(number)}" if number else "there is no folded text")
            return
        self._view.screen.tell(Note(lines))

    async def _model(self, name: str) -> None:
        if name:
            await self._session.set_model(name)
            self._say(f"model: {one_line(name)}")
            return
        models = await self._session.models()
        self._list([(each.model_id, each.name) for each in models.available_models], models.current_model_id, "models")

    async def _mode(self, name: str) -> None:
        if name:
            await self._session.set_mode(name)
            return
        modes = await self._session.modes()
        self._list([(each.id, each.name) for each in modes.available_modes], modes.current_mode_id, "modes")

    def _list(self, named: Sequence[tuple[str, str]], current: str | None, what: str) -> None:
        if not named:
            self._say(f"the agent offers no {what}")
            return
        width = max(len(id) for id, _ in named) + 2
        lines = [
            [
                Span("* " if id == current else "  ", "green"),
                Span(f"{one_line(id):<{width}}"),
                Span(one_line(name), "dim"),
            ]
            for id, name in named
        ]
        self._view.screen.tell(Note(lines))

    def _say(self, text: str) -> None:
        self._view.screen.tell(note(text, "dim"))


def _command_line(word: str, text: str, width: int) -> Line:
    return [Span(f"  {word:<{width}}"), Span(text, "dim")]


def _item(event: LogEvent | Gap) -> SessionItem | None:
    """Return the item of a log event; None for requests, responses and messages of clients."""
    if isinstance(event, Gap):
        return event
    if event.direction == "fromClient" or "id" in event.envelope:
        return None
    return read_item(text_at(event.envelope, "method") or "", object_at(event.envelope, "params"))


def _blocks(params: Object) -> Sequence[ContentBlock]:
    """Return the content of a prompt; empty if it cannot be decoded."""
    text = text_at(params, "content")
    blocks = list_at(params, "prompt") if text is None else [{"type": "text", "text": text}]
    try:
        return read(blocks, list[ContentBlock])
    except ValidationError:
        return ()
