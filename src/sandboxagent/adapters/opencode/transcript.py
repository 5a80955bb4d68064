"""Turn a session's log into OpenCode's messages, parts and events.

The result depends only on the log. The same events give the same messages, with the same ids in the same order, whether
they come one by one or all at once after a restart. This module neither reads the log nor handles pending requests.
Pure.
"""

from dataclasses import dataclass, field

from msgspec import UNSET

from sandboxagent.adapters.opencode.errors import describe_failure
from sandboxagent.adapters.opencode.ids import milliseconds
from sandboxagent.adapters.opencode.messages import About, Entries, Event, MessageEntry
from sandboxagent.adapters.opencode.objects import (
    AssistantMessage,
    Cache,
    CompactionPart,
    Message,
    MessageModel,
    MessageTime,
    PartTime,
    Place,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    TextPart,
    Todo,
    Tokens,
    ToolPart,
    UserMessage,
    read_count,
    read_tokens,
)
from sandboxagent.adapters.opencode.prompts import PromptNote, make_part, make_title, read_note
from sandboxagent.adapters.opencode.tools import ToolCall, read_shell
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Kind, Object, at, object_at, objects_at, parse, text_at
from sandboxagent.protocol.errors import NotAnEnvelope
from sandboxagent.server.agents import options
from sandboxagent.server.agents.options import MODE, MODEL
from sandboxagent.server.log.event import Direction
from sandboxagent.server.sessions.activity import read_amount

MAX_REMEMBERED = 256
"""Maximum number of turns whose replies can be found by the turn's id."""
DEFAULT = "default"
"""Name of the mode or model of an agent that announces none."""
_FINISHES = {"max_tokens": "length", "refusal": "content-filter", "max_turn_requests": "tool-calls"}


_ShownCall = tuple[ToolCall, ToolPart, MessageEntry]


@dataclass(slots=True)
class _Prompt:
    user_id: str
    request_id: bytes
    note: PromptNote


@dataclass(slots=True)
class _Turn:
    id: str
    entry: MessageEntry
    prompt: _Prompt | None
    cost: float
    """Cost of the session at the start of the turn."""
    tokens: Tokens | None = None
    calls: dict[str, _ShownCall] = field(default_factory=dict[str, _ShownCall])


class Transcript:
    """The messages of one session; only the newest ones if all would take too much memory."""

    def __init__(self, about: About, limit: int) -> None:
        """`limit` is in bytes."""
        self.about = about
        self.todos: list[Todo] = []
        self.commands: list[Object] = []
        self.cost = 0.0
        self.used = 0
        """Tokens in the agent's memory of the conversation."""
        self.title: str | None = None
        """The beginning of the first prompt."""
        self._kept = Entries(about, limit)
        self._offers: Object = {}
        self._prompts: dict[str, _Prompt] = {}
        self._replies: dict[str, str] = {}
        self._turn: _Turn | None = None
        self._busy = False
        self._shells: dict[str, _ShownCall] = {}
        """Running commands of people, by call id."""
        self._terminals: dict[bytes, str] = {}
        """Unanswered requests of the agent for the output of a terminal: request id → terminal id."""
        self._terminal_calls: dict[str, str] = {}
        """Terminal id → id of the newest call that shows the terminal."""
        self._stray: MessageEntry | None = None
        self._last_user: str | None = None
        self._calls: dict[str, _ShownCall] = {}
        """Tool calls of the running turn, or else of the last one."""

    # Reading

    @property
    def mode(self) -> str:
        return options.find_current(self._offers, MODE) or DEFAULT

    @property
    def model(self) -> str:
        return options.find_current(self._offers, MODEL) or DEFAULT

    @property
    def running(self) -> bool:
        return self._turn is not None

    @property
    def size(self) -> int:
        """Approximate bytes that the transcript takes in memory."""
        return self._kept.size

    def messages(self) -> list[Message]:
        """Return all messages, oldest first."""
        return self._kept.all()

    def find(self, message_id: str) -> Message | None:
        return self._kept.find(message_id)

    def find_reply(self, turn_id: str) -> Message | None:
        """Return the agent's message of a turn; None if it is not in memory."""
        return self.find(self._replies.get(turn_id, ""))

    def find_call(self, call_id: str) -> str | None:
        """Return the id of the message that has a tool call; None if there is none."""
        found = self._calls.get(call_id)
        return None if found is None else found[2].info.id

    # Applying events

    def apply(self, position: int, seconds: float, direction: Direction, line: bytes) -> list[Event]:
        """Apply an event of the log, and return the resulting events of OpenCode's."""
        try:
            envelope = parse(line)
        except NotAnEnvelope:
            return []
        self._kept.now = ms = max(milliseconds(seconds), self._kept.now)
        match envelope.kind:
            case Kind.REQUEST:
                self._take_request(position, ms, direction, envelope)
            case Kind.NOTIFICATION:
                self._take_notification(position, ms, envelope)
            case Kind.RESPONSE:
                self._take_response(envelope)
        if self._kept.trim(self._turn.entry if self._turn else self._stray):
            self._forget_calls()
        return self._kept.take_events()

    def _forget_calls(self) -> None:
        """Forget calls whose parts were forgotten; of those that still run, keep only a minimum."""
        for id, (call, part, entry) in list(self._calls.items()):
            if part.id in entry.parts:
                continue
            if call.is_over:
                del self._calls[id]
            else:
                call.forget()
                part.state = call.state()

    def _take_request(self, position: int, ms: int, direction: Direction, envelope: Envelope) -> None:
        match envelope.method:
            case methods.PROMPT if direction is Direction.FROM_CLIENT:
                self._take_prompt(position, ms, envelope)
            case methods.REQUEST_PERMISSION:
                call = object_at(envelope.params(), "toolCall")
                if text_at(call, "toolCallId") is not None:
                    self._take_call(position, ms, call, len(envelope.line), starts=True)
            case methods.TERMINAL_OUTPUT if (terminal := text_at(envelope.params(), "terminalId")) is not None:
                assert envelope.id is not None
                self._terminals[envelope.id] = terminal
            case methods.NEW | methods.FORK | methods.LOAD if direction is Direction.FROM_CLIENT:
                self._kept.tell("session.created")
            case _:
                pass

    def _take_notification(self, position: int, ms: int, envelope: Envelope) -> None:
        match envelope.method:
            case methods.UPDATE:
                self._take_update(position, ms, object_at(envelope.params(), "update"), len(envelope.line))
            case methods.TURN:
                self._take_turn(position, ms, envelope.params())
            case methods.METADATA_UPDATE:
                self._kept.tell("session.updated")
            case methods.SHELL:
                self._take_shell(position, ms, envelope.params(), len(envelope.line))
            case _:
                pass

    def _take_response(self, envelope: Envelope) -> None:
        result = envelope.result()
        terminal, output = self._terminals.pop(envelope.id or b"", None), text_at(result, "output")
        if terminal is not None and output is not None:
            shown = self._calls.get(self._terminal_calls.get(terminal, ""))
            if shown is not None and shown[0].write_terminal(terminal, output):
                self._show_call(*shown, len(output))
        if any(name in result for name in (MODE.shape, MODEL.shape, options.OPTIONS)):
            self._offers = options.merge_offers(self._offers, result)
        turn = self._turn
        if turn is not None and turn.prompt is not None and envelope.id == turn.prompt.request_id:
            usage = object_at(result, "usage")
            if usage:
                turn.tokens = read_tokens(usage)

    # Prompts and turns

    def _take_prompt(self, position: int, ms: int, envelope: Envelope) -> None:
        params = envelope.params()
        note = read_note(params)
        self._end_stray(ms)
        given = note.messageID if note.messageID and not self._kept.has(note.messageID) else None
        blocks = objects_at(params, "prompt")
        entry = self._add_user(position, ms, note, given)
        if note.compacts:
            part_id = self._kept.make_part_id(position, ms)
            part = CompactionPart(id=part_id, session_id=self.about.session_id, message_id=entry.info.id)
            self._kept.put(entry, part, 0)
        else:
            ids = [*note.partIDs, *[None] * len(blocks)]
            for number, (block, id) in enumerate(zip(blocks, ids, strict=False)):
                self._add_block(entry, block, id or self._kept.make_part_id(position, ms, number), len(envelope.line))
        self._kept.tell("session.updated")
        if note.command is not None:
            name, _, arguments = note.command.partition(" ")
            executed = {"name": name, "sessionID": self.about.session_id, "arguments": arguments}
            self._kept.tell("command.executed", executed | {"messageID": entry.info.id})
        assert envelope.id is not None
        self._prompts[f"turn-{position}"] = _Prompt(entry.info.id, envelope.id, note)
        self._become_busy()

    def _add_user(self, position: int, ms: int, note: PromptNote, given: str | None) -> MessageEntry:
        if given is not None:
            self._kept.note_id(given)
        id = given or self._kept.make_message_id(position, ms)
        model = MessageModel(provider_id=self.about.provider_id, model_id=note.model or self.model)
        time = MessageTime(created=ms)
        session_id, agent = self.about.session_id, note.agent or self.mode
        entry = self._kept.add(UserMessage(id=id, session_id=session_id, time=time, agent=agent, model=model))
        self._last_user = id
        return entry

    def _add_block(self, entry: MessageEntry, block: Object, id: str, size: int) -> None:
        self._kept.note_id(id)
        part = make_part(block, id, self.about.session_id, entry.info.id)
        self._kept.put(entry, part, size)
        if self.title is None and isinstance(part, TextPart) and part.text.strip():
            self.title = make_title(part.text)

    def _take_turn(self, position: int, ms: int, params: Object) -> None:
        turn_id, state = text_at(params, "turnId"), params.get("state")
        if turn_id is None:
            return
        if state == "started":
            self._start_turn(position, ms, turn_id)
        elif self._turn is not None and self._turn.id == turn_id:
            self._end_turn(position, ms, self._turn, params)
        elif turn_id in self._prompts:
            # The prompt waited, and never began.
            prompt = self._prompts.pop(turn_id)
            entry = self._add_assistant(position, ms, prompt.user_id, prompt.note, completed=ms)
            self._remember(turn_id, entry)
            if params.get("error") is not None or params.get("stopReason") == "cancelled":
                self._fail(entry, describe_failure(params, self.about.provider_id))
            if self._turn is None and not self._prompts:
                self._become_idle()

    def _become_busy(self) -> None:
        if not self._busy:
            self._busy = True
            self._kept.tell("session.status", {"sessionID": self.about.session_id, "status": {"type": "busy"}})

    def _become_idle(self) -> None:
        self._busy = False
        self._kept.tell("session.status", {"sessionID": self.about.session_id, "status": {"type": "idle"}})
        self._kept.tell("session.idle", {"sessionID": self.about.session_id})

    def _start_turn(self, position: int, ms: int, turn_id: str) -> None:
        self._end_stray(ms)
        prompt = self._prompts.pop(turn_id, None)
        self._become_busy()
        user_id = prompt.user_id if prompt else self._last_user
        entry = self._add_assistant(position, ms, user_id, prompt.note if prompt else PromptNote())
        self._turn = _Turn(turn_id, entry, prompt, self.cost)
        self._calls = self._turn.calls
        self._terminals.clear()
        self._terminal_calls.clear()
        self._remember(turn_id, entry)
        start = StepStartPart(
            id=self._kept.make_part_id(position, ms), session_id=self.about.session_id, message_id=entry.info.id
        )
        self._kept.put(entry, start, 0)

    def _end_turn(self, position: int, ms: int, turn: _Turn, params: Object) -> None:
        self._kept.end_text(ms)
        for call, part, entry in turn.calls.values():
            if not call.is_over:
                call.break_off(ms)
                self._show_call(call, part, entry, 0)
        self._turn = None
        session_id, stopped = self.about.session_id, text_at(params, "stopReason") or "end_turn"
        info = turn.entry.info
        assert isinstance(info, AssistantMessage)
        info.tokens = turn.tokens or Tokens(input=self.used, cache=Cache())
        info.cost = max(0.0, self.cost - turn.cost)
        info.time = MessageTime(created=info.time.created, completed=ms)
        if params.get("error") is not None or stopped == "cancelled":
            self._fail(turn.entry, describe_failure(params, self.about.provider_id))
        else:
            info.finish = _FINISHES.get(stopped, "stop")
            finish = StepFinishPart(
                id=self._kept.make_part_id(position, ms),
                session_id=session_id,
                message_id=info.id,
                reason=info.finish,
                cost=info.cost,
                tokens=info.tokens,
            )
            self._kept.put(turn.entry, finish, 0)
            self._kept.show(turn.entry)
        if turn.prompt is not None and turn.prompt.note.compacts:
            self._kept.tell("session.compacted", {"sessionID": session_id})
        self._become_idle()
        self._kept.tell("session.updated")

    def _fail(self, entry: MessageEntry, error: Object) -> None:
        assert isinstance(entry.info, AssistantMessage)
        entry.info.error = error
        self._kept.tell("session.error", {"sessionID": self.about.session_id, "error": error})
        self._kept.show(entry)

    def _remember(self, turn_id: str, entry: MessageEntry) -> None:
        self._replies[turn_id] = entry.info.id
        if len(self._replies) > MAX_REMEMBERED:
            del self._replies[next(iter(self._replies))]

    # Updates

    def _take_update(self, position: int, ms: int, update: Object, size: int) -> None:
        """Apply an update; `size` is that of its line."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                self._say(position, ms, update, TextPart)
            case "agent_thought_chunk":
                self._say(position, ms, update, ReasoningPart)
            case "user_message_chunk":
                self._take_echo(position, ms, update)
            case "tool_call" | "tool_call_update":
                self._take_call(position, ms, update, size)
            case "plan":
                self._take_plan(objects_at(update, "entries"))
            case "plan_update" if text_at(update, "plan", "type") == "items":
                self._take_plan(objects_at(update, "plan", "entries"))
            case "plan_removed":
                self._take_plan([])
            case "usage_update":
                self.used = read_count(update.get("used"))
                cost = read_amount(at(update, "cost", "amount"))
                self.cost = self.cost if cost is None else cost
            case "available_commands_update":
                self.commands = objects_at(update, "availableCommands")
            case "current_mode_update" if (mode := text_at(update, "currentModeId")) is not None:
                self._offers = options.choose(self._offers, MODE, mode)
                self._kept.tell("session.updated")
            case "config_option_update":
                self._offers = options.merge_offers(self._offers, update)
                self._kept.tell("session.updated")
            case "session_info_update":
                self._kept.tell("session.updated")
            case _:
                pass

    def _say(self, position: int, ms: int, update: Object, kind: type[TextPart] | type[ReasoningPart]) -> None:
        block, name = object_at(update, "content"), text_at(update, "messageId")
        if block.get("type") != "text":
            entry = self._speaker(position, ms)
            self._kept.end_text(ms)
            self._add_block(entry, block, self._kept.make_part_id(position, ms), len(str(block.get("data", ""))))
            return
        said = text_at(block, "text")
        if not said:
            return
        entry, text = self._speaker(position, ms), self._kept.text
        if text is None or not text.takes(entry, kind, name):
            self._kept.end_text(ms)
            id, time = self._kept.make_part_id(position, ms), PartTime(start=ms)
            part = kind(id=id, session_id=self.about.session_id, message_id=entry.info.id, text="", time=time)
            text = self._kept.begin_text(entry, part, name)
        self._kept.go_on(text, said)

    def _take_echo(self, position: int, ms: int, update: Object) -> None:
        """Apply a user's message that an agent sends: a replay of the history. Ignore the echo of a known prompt."""
        if self._turn is not None:
            return
        if self._stray is None or not isinstance(self._stray.info, UserMessage):
            self._end_stray(ms)
            self._stray = self._add_user(position, ms, PromptNote(), None)
        block = object_at(update, "content")
        self._add_block(self._stray, block, self._kept.make_part_id(position, ms), len(str(block.get("text", ""))))

    def _take_call(self, position: int, ms: int, change: Object, size: int, *, starts: bool = False) -> None:
        call_id = text_at(change, "toolCallId")
        if call_id is None:
            return
        self._kept.end_text(ms)
        known = self._calls.get(call_id) or self._add_call(position, ms, call_id, self._speaker(position, ms))
        call, part, entry = known
        before, was_over = call.status, call.is_over
        call.update(change, ms)
        if "content" in change:
            self._terminal_calls.update(dict.fromkeys(call.terminals, call_id))
        if starts:
            call.start()
        if before == "pending" and call.status == "completed" and part.tool == "":
            # Show the call as running first, because programs expect each call to begin.
            call.status = "in_progress"
            self._show_call(call, part, entry, 0)
            call.status = "completed"
        self._show_call(call, part, entry, size)
        if call.is_over and not was_over and call.status == "completed":
            for diff in call.diffs:
                self._kept.tell("file.edited", {"file": diff["path"]})

    def _add_call(self, position: int, ms: int, call_id: str, entry: MessageEntry) -> _ShownCall:
        call = ToolCall(call_id, ms)
        part = ToolPart(
            id=self._kept.make_part_id(position, ms),
            session_id=self.about.session_id,
            message_id=entry.info.id,
            call_id=call_id,
            tool="",
            state=call.state(),
        )
        self._calls[call_id] = call, part, entry
        return self._calls[call_id]

    def _show_call(self, call: ToolCall, part: ToolPart, entry: MessageEntry, size: int) -> None:
        part.tool, part.state = call.tool, call.state()
        self._kept.put(entry, part, size)

    def _take_plan(self, entries: list[Object]) -> None:
        self.todos = [
            Todo(
                content=text_at(entry, "content") or "",
                status=text_at(entry, "status") or "pending",
                priority=text_at(entry, "priority") or "medium",
            )
            for entry in entries
        ]
        self._kept.tell("todo.updated", {"sessionID": self.about.session_id, "todos": self.todos})

    def _take_shell(self, position: int, ms: int, params: Object, size: int) -> None:
        """Apply a notification about a person's command."""
        shell = read_shell(params)
        calls, self._calls = self._calls, self._shells
        if shell.output is None:
            self._become_busy()
            self._end_stray(ms)
            user = self._add_user(position, ms, PromptNote(agent=shell.agent), shell.message_id)
            text: Object = {"type": "text", "text": "The following tool was executed by the user"}
            self._add_block(user, text, self._kept.make_part_id(position, ms), 0)
            entry = self._add_assistant(position, ms, user.info.id, PromptNote(agent=shell.agent))
            self._remember(f"shell-{shell.id}", entry)
            self._add_call(position, ms, shell.call_id, entry)
        if shell.call_id in self._shells:
            self._take_call(position, ms, shell.as_call(), size)
        if shell.output is not None and (ran := self._shells.pop(shell.call_id, None)) is not None:
            info = ran[2].info
            assert isinstance(info, AssistantMessage)
            info.time, info.finish = MessageTime(created=info.time.created, completed=ms), "stop"
            self._kept.show(ran[2])
            if self._turn is None and not self._prompts and not self._shells:
                self._become_idle()
        self._calls = calls

    # Entries

    def _speaker(self, position: int, ms: int) -> MessageEntry:
        """Return the message to which an agent's output belongs; add one if there is none."""
        if self._turn is not None:
            return self._turn.entry
        if self._stray is None or not isinstance(self._stray.info, AssistantMessage):
            self._end_stray(ms)
            self._calls = {}
            self._terminal_calls.clear()
            # Mark it as complete from the start, because no turn will end it.
            self._stray = self._add_assistant(position, ms, self._last_user, PromptNote(), completed=ms)
        return self._stray

    def _end_stray(self, ms: int) -> None:
        if self._turn is None:
            self._kept.end_text(ms)
        self._stray = None

    def _add_assistant(
        self, position: int, ms: int, user_id: str | None, note: PromptNote, completed: int | None = None
    ) -> MessageEntry:
        id, agent = self._kept.make_message_id(position, ms), note.agent or self.mode
        info = AssistantMessage(
            id=id,
            session_id=self.about.session_id,
            time=MessageTime(created=ms, completed=UNSET if completed is None else completed),
            parent_id=user_id or id,
            model_id=note.model or self.model,
            provider_id=self.about.provider_id,
            mode=agent,
            agent=agent,
            path=Place(cwd=self.about.directory, root=self.about.directory),
            tokens=Tokens(cache=Cache()),
            summary=True if note.compacts else UNSET,
        )
        return self._kept.add(info)
