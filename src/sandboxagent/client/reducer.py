"""Make the view of a session from the events of its log.

A view is everything that a reducer knows, so it can continue from any view: `SessionReducer(view)` and the events after
it give the same as one reducer over all events. Agents may write anything: an unknown update becomes a notice, and
nothing raises.
"""

from collections.abc import Iterable
from typing import cast

from msgspec.structs import replace

from sandboxagent.client import items
from sandboxagent.client.incoming import LogEvent
from sandboxagent.client.items import BEGINNINGS, Moment, number_at, objects_in, ours, rpc_id
from sandboxagent.client.terminals import Terminals
from sandboxagent.client.transcript import TOLD, DraftTurn, Place, Transcript, new_turn
from sandboxagent.client.updates import Gap
from sandboxagent.client.view import (
    ContentItem,
    EventRange,
    FailureItem,
    FileWrite,
    GapItem,
    NoticeItem,
    NoticeSubject,
    Number,
    OpenCall,
    PlanItem,
    QueuedPrompt,
    RequestDecision,
    RequestItem,
    SessionStatus,
    SessionView,
    TextItem,
    ThoughtItem,
    ToolCallItem,
    TurnError,
    TurnState,
    UserItem,
)
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Object, object_at, text_at

_REPLAYED = frozenset(
    {"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"}
)
"""Updates by which agents tell the past."""
_CallId = tuple[bool, str | Number]


def reduce(events: Iterable[LogEvent | Gap], view: SessionView | None = None) -> SessionView:
    """Return the view after some events of the log, which continue a view if one is given."""
    reducer = SessionReducer(view)
    for event in events:
        reducer.add(event)
    return reducer.view


class SessionReducer:
    """Takes the events of a log, one by one, and has the view after them.

    Events up to the view's position are skipped, so a page may be added twice. A log that does not begin with the
    session's beginning gives a view that begins with a gap.
    """

    def __init__(self, view: SessionView | None = None) -> None:
        """Continue from a view, or begin with one of which nothing is known."""
        view = SessionView() if view is None else view
        self._view: SessionView | None = view
        self._known = view
        """The members that are replaced as a whole. The others are below."""
        self._position = view.position
        self._time = view.time
        self._transcript = Transcript(view.turns)
        self._queue = {prompt.key: prompt for prompt in view.queue}
        self._pending = {each.key: self._transcript.find_item(each) for each in view.pending}
        self._terminals = Terminals(view.terminals)
        self._writes = {write.events.first: write for write in view.writes}
        self._texts = dict(view.texts)
        self._calls = _Calls(view.calls)

    @property
    def view(self) -> SessionView:
        """The view after everything that was added; the same object until something is added."""
        if self._view is None:
            current = self._transcript.current
            runs = bool(self._queue) or (current is not None and current.state == "running")
            ended = self._known.ended is not None
            status: SessionStatus = "waiting" if self._pending else "running" if runs else "ended" if ended else "idle"
            self._view = self._known = replace(
                self._known,
                position=self._position,
                time=self._time,
                status=status,
                turns=self._transcript.give(),
                queue=tuple(self._queue.values()),
                pending=tuple(self._pending.values()),
                terminals=self._terminals.give(),
                writes=tuple(self._writes.values()),
                texts=dict(self._texts),
                calls=self._calls.give(),
            )
        return self._view

    def add(self, event: LogEvent | Gap) -> None:
        """Add the next event, or a gap in the log."""
        if isinstance(event, Gap):
            if event.resumes_at > self._position + 1:
                self._add_gap(event.after, event.resumes_at)
            return
        if event.id <= self._position:
            return
        method = text_at(event.envelope, "method")
        is_first = self._position == 0 and self._transcript.current is None
        if is_first and not (event.direction == "fromClient" and method in BEGINNINGS):
            self._add_gap(0, event.id)
        self._view = None
        self._position, self._time = event.id, event.at
        if method is None:
            self._take_answer(event, event.envelope)
        elif "id" in event.envelope:
            self._take_request(event, method, event.envelope)
        else:
            self._take_notification(event, method, object_at(event.envelope, "params"))

    def _set(self, **members: object) -> None:
        self._known = replace(self._known, **members)

    # Requests and their answers

    def _take_request(self, event: LogEvent, method: str, envelope: Object) -> None:
        params, id = object_at(envelope, "params"), rpc_id(envelope.get("id"))
        if id is None:
            return
        moment = Moment(event.id, event.at)
        if event.direction == "fromAgent":
            if self._ask(event, method, id, params):
                return
            if method == methods.WRITE_TEXT_FILE:
                self._begin_write(moment, params)
        else:
            if method == methods.PROMPT:
                prompt = items.read_prompt(moment, params)
                self._queue[prompt.key] = prompt
            if method == methods.NEW:
                self._note_made(params)
            if method in BEGINNINGS:
                self._set(cwd=_or(text_at(params, "cwd"), self._known.cwd))
        from_agent = event.direction == "fromAgent"
        self._calls.add(OpenCall(event=event.id, id=id, from_agent=from_agent, method=method, params=params))

    def _note_made(self, params: Object) -> None:
        facts = ours(params)
        metadata = {name: value for name, value in facts.items() if name not in ("agent", "title", "env")}
        agent, title = text_at(facts, "agent"), text_at(facts, "title")
        self._set(metadata=metadata, agent=_or(agent, self._known.agent), title=_or(title, self._known.title))

    def _begin_write(self, moment: Moment, params: Object) -> None:
        turn_key = self._transcript.open(moment).key
        path, text = text_at(params, "path"), text_at(params, "content")
        if path is None or text is None:
            return
        self._writes[moment.id] = FileWrite(
            path=path,
            old_text=self._texts.get(path),
            new_text=text,
            turn_key=turn_key,
            at=moment.at,
            events=EventRange.of(moment.id),
        )

    def _take_answer(self, event: LogEvent, envelope: Object) -> None:
        id = rpc_id(envelope.get("id"))
        if id is None:
            return
        to_agent = event.direction != "fromAgent"
        moment = Moment(event.id, event.at)
        if to_agent and self._take_decision(moment, id, envelope):
            return
        call = self._calls.take((to_agent, id), envelope)
        if call is None:
            return
        result = object_at(envelope, "result")
        error = object_at(envelope, "error") if "error" in envelope else None
        if call.method == methods.PROMPT:
            self._end_prompt(moment, call, result, error)
        elif call.method == methods.WRITE_TEXT_FILE:
            self._end_write(moment, call, is_done=error is None)
        elif error is None:
            self._succeed(moment, call, result)

    def _end_write(self, moment: Moment, call: OpenCall, *, is_done: bool) -> None:
        write = self._writes.get(call.event)
        if write is not None:
            self._writes[call.event] = replace(write, done=is_done, events=write.events.plus(moment.id))
        if is_done:
            self._note_text(call.params, call.params)

    def _note_text(self, params: Object, written: Object) -> None:
        path, text = text_at(params, "path"), text_at(written, "content")
        if path is not None and text is not None:
            self._texts[path] = text

    def _succeed(self, moment: Moment, call: OpenCall, result: Object) -> None:
        if call.method in BEGINNINGS:
            self._note_offer(result)
            if self._known.ended is not None:
                self._notice(moment, "resumed", "The session was resumed")
            self._set(ended=None)
        elif call.method == methods.SET_CONFIG_OPTION:
            self._note_offer(result)
        elif call.method == methods.READ_TEXT_FILE:
            if call.params.get("line") is None and call.params.get("limit") is None:
                self._note_text(call.params, result)
        elif call.method.startswith("terminal/"):
            self._terminals.take_answer(call, result, moment.id)

    def _note_offer(self, result: Object) -> None:
        modes, options = result.get("modes"), objects_in(result, "configOptions")
        if isinstance(modes, dict):
            self._set(modes=items.read_modes(cast("Object", modes)))
        if options is not None:
            self._set(config_options=options)

    # Notifications

    def _take_notification(self, event: LogEvent, method: str, params: Object) -> None:
        moment = Moment(event.id, event.at)
        if event.direction == "fromServer":
            self._hear_server(moment, method, params)
        elif event.direction == "fromAgent":
            if method == methods.UPDATE:
                self._update(moment, object_at(params, "update"))
            if method == methods.CANCEL_REQUEST:
                self._touch(rpc_id(params.get("requestId")), event.id)

    def _hear_server(self, moment: Moment, method: str, params: Object) -> None:
        """Take a notification of the server. The same one means nothing if an agent sends it."""
        match method:
            case methods.UPDATE:
                self._update(moment, object_at(params, "update"))
            case methods.TURN:
                if params.get("state") == "started":
                    self._start_turn(moment, params)
                else:
                    self._end_turn(moment, params)
            case methods.DECISION:
                self._note_decision(moment, params)
            case methods.METADATA_UPDATE:
                self._set(metadata=object_at(params, "metadata"))
            case methods.ENDED:
                self._end_session(moment, params)
            case methods.UNPARSED:
                self._notice(moment, "unparsed", text_at(params, "line") or "")
            case _:
                pass

    def _update(self, moment: Moment, update: Object) -> None:
        kind = text_at(update, "sessionUpdate") or ""
        # A log may have an agent's replay of events that the log itself has already.
        if kind in _REPLAYED and self._is_replay():
            return
        match kind:
            case "user_message_chunk":
                self._hear_user(moment, update)
            case "agent_message_chunk":
                self._hear_agent(moment, TextItem, update)
            case "agent_thought_chunk":
                self._hear_agent(moment, ThoughtItem, update)
            case "tool_call" | "tool_call_update":
                self._update_tool(moment, update)
            case "plan":
                self._update_plan(moment, objects_in(update, "entries"))
            case "plan_update":
                self._update_plan(moment, objects_in(object_at(update, "plan"), "entries"))
            case _:
                self._update_settings(moment, kind, update)

    def _update_settings(self, moment: Moment, kind: str, update: Object) -> None:
        match kind:
            case "plan_removed":
                self._set(plan=None)
            case "available_commands_update":
                commands = objects_in(update, "availableCommands")
                self._set(commands=self._known.commands if commands is None else commands)
            case "current_mode_update":
                self._set_mode(moment, text_at(update, "currentModeId"))
            case "config_option_update":
                self._set_options(moment, objects_in(update, "configOptions"))
            case "session_info_update":
                if "title" in update:
                    self._set(title=text_at(update, "title"))
            case "usage_update":
                self._set(usage=items.update_usage(self._known.usage, update))
            case "notice":
                message = text_at(update, "message")
                self._notice(moment, "agent", message if message is not None else text_at(update, "text") or "")
            case "":
                pass
            case _:
                self._notice(moment, "unknown", kind)

    def _set_mode(self, moment: Moment, mode_id: str | None) -> None:
        modes = self._known.modes
        if mode_id is None:
            return
        self._set(modes=items.set_mode(modes, mode_id))
        if modes is not None and modes.get("currentModeId") != mode_id:
            self._notice(moment, "mode", f"Mode: {items.mode_name(modes, mode_id)}")

    def _set_options(self, moment: Moment, options: tuple[Object, ...] | None) -> None:
        if options is None:
            return
        changes = items.describe_changes(self._known.config_options, options)
        self._set(config_options=options)
        for change in changes:
            self._notice(moment, "option", change)

    # Messages and plans

    def _hear_user(self, moment: Moment, update: Object) -> None:
        if not isinstance(update.get("content"), dict):
            return
        block = object_at(update, "content")
        current = self._transcript.current
        if current is not None and current.hear(block, moment):
            _ = self._transcript.draft(self._transcript.current_index)
            return
        item = _user_item(moment, (block,))
        if current is not None and current.state == "running":
            self._transcript.push(item, moment)
        else:
            self._transcript.begin(new_turn(f"{TOLD}{moment.id}", moment, (item,), "ended"))

    def _hear_agent(self, moment: Moment, kind: type[TextItem | ThoughtItem], update: Object) -> None:
        if not isinstance(update.get("content"), dict):
            return
        block, message_id = object_at(update, "content"), text_at(update, "messageId")
        turn = self._transcript.open(moment)
        name = "text" if kind is TextItem else "thought"
        key, events = f"{name}-{moment.id}", EventRange.of(moment.id)
        if not items.is_text(block):
            turn.push(ContentItem(key=key, at=moment.at, events=events, block=block))
            return
        text = cast(str, block["text"])
        if turn.grow(kind, message_id, text, moment) or not text:
            return
        if kind is TextItem:
            turn.push(TextItem(key=key, at=moment.at, events=events, text=text, message_id=message_id))
        else:
            until = moment.at
            turn.push(ThoughtItem(key=key, at=until, events=events, text=text, message_id=message_id, until=until))

    def _update_plan(self, moment: Moment, entries: tuple[Object, ...] | None) -> None:
        if entries is None:
            return
        self._set(plan=entries)
        turn = self._transcript.open(moment)
        last = turn.items[-1] if turn.items else None
        if isinstance(last, PlanItem):
            turn.change()[-1] = replace(last, entries=entries, events=last.events.plus(moment.id))
        else:
            events = EventRange.of(moment.id)
            turn.push(PlanItem(key=f"plan-{moment.id}", at=moment.at, events=events, entries=entries))

    # Tool calls

    def _update_tool(self, moment: Moment, update: Object, request_key: str | None = None) -> None:
        tool_call_id = text_at(update, "toolCallId") or ""

        def change(call: ToolCallItem) -> ToolCallItem:
            return items.update_tool_call(call, update, moment.at, request_key)

        place = self._transcript.find_tool_call(tool_call_id)
        if place is None:
            self._transcript.push(change(items.new_tool_call(tool_call_id, moment)), moment)
        else:
            self._transcript.change(place, change, moment.id)
        self._terminals.take_update(update, moment.id)

    # Requests to people

    def _ask(self, event: LogEvent, method: str, id: str | Number, params: Object) -> bool:
        """Add a request of the agent. Return False if people are not asked."""
        moment, key = Moment(event.id, event.at), f"request-{event.id}"
        asked = RequestItem(
            key=key,
            at=event.at,
            events=EventRange.of(event.id),
            turn_key="",
            request_id=event.request_id,
            agent_request_id=id,
            kind="permission",
        )
        asked = items.read_request(method, params, asked)
        if asked is None:
            return False
        if asked.tool_call is not None:
            self._update_tool(moment, asked.tool_call, key)
        item = replace(asked, turn_key=self._transcript.open(moment).key)
        self._transcript.push(item, moment)
        self._pending[key] = item
        return True

    def _take_decision(self, moment: Moment, id: str | Number, envelope: Object) -> bool:
        """Take an answer on its way to the agent, which the server's decision follows."""
        found = self._transcript.find_request(id)
        if found is None:
            return False
        place, item = found
        if item.decision is None:
            self._settle(place, items.read_answer(item, envelope, moment.at), moment.id)
        elif self._calls.has((True, id)):
            # The same id was used again, for a request that no person answers.
            return False
        else:
            self._touch(id, moment.id)
        return True

    def _note_decision(self, moment: Moment, params: Object) -> None:
        id = rpc_id(params.get("agentRequestId"))
        found = None if id is None else self._transcript.find_request(id)
        decision = items.read_decision(params, moment.at)
        if found is not None and found[1].kind == params.get("kind"):
            self._settle(found[0], decision, moment.id)
        else:
            kind = text_at(params, "kind")
            self._notice(moment, "decision", f"{'request' if kind is None else kind}: {decision.outcome}")

    def _settle(self, place: Place, decision: RequestDecision, event: int | None = None) -> None:
        def settled(item: RequestItem) -> RequestItem:
            return replace(item, decision=decision, request_id=None)

        self._pending.pop(self._transcript.change(place, settled, event).key, None)

    def _touch(self, id: str | Number | None, event: int) -> None:
        """Add one more event to a request."""
        found = None if id is None else self._transcript.find_request(id)
        if found is None:
            return

        def same(item: RequestItem) -> RequestItem:
            return item

        item = self._transcript.change(found[0], same, event)
        if item.key in self._pending:
            self._pending[item.key] = item

    def _forget_pending(self, at: str) -> None:
        """Close all open requests whose outcome is not in the log, because of an event that ends them."""
        for key in list(self._pending):
            place = self._transcript.find(key)
            if place is not None:
                self._settle(place, RequestDecision(outcome="unknown", at=at))

    # Turns

    def _start_turn(self, moment: Moment, params: Object) -> None:
        turn_id = text_at(params, "turnId")
        if turn_id is None:
            turn_id = f"turn-{moment.id}"
        before = self._transcript.current
        if before is not None and before.turn_id == turn_id:
            return
        # Turns run one after another: one that still runs does so because its end is not in the log.
        if before is not None and before.state == "running":
            self._forget_pending(moment.at)
            self._close(self._transcript.current_index, moment, "ended")
        self._set(ended=None)
        self._begin_turn(moment, turn_id, text_at(params, "promptId"), "running")

    def _begin_turn(
        self, moment: Moment, turn_id: str, prompt_id: str | None, state: TurnState, *, never_began: bool = False
    ) -> None:
        prompt = self._queue.pop(turn_id, None)
        turn = new_turn(turn_id, moment, () if prompt is None else (_prompt_item(prompt),), state)
        events = EventRange.of(moment.id) if prompt is None else EventRange.of(prompt.event, moment.id)
        ids = {"turn_id": turn_id, "prompt_id": prompt_id}
        self._transcript.begin(replace(turn, **ids, events=events, never_began=never_began))

    def _end_turn(self, moment: Moment, params: Object) -> None:
        turn_id, stop_reason = text_at(params, "turnId"), text_at(params, "stopReason")
        if turn_id is None:
            return
        index = self._find_turn(turn_id, moment, text_at(params, "promptId"))
        error = object_at(params, "error") if "error" in params else None
        if error is not None:
            self._fail(moment, index, error)
        state: TurnState = "failed" if error is not None else "cancelled" if stop_reason == "cancelled" else "ended"
        turn = self._close(index, moment, state)
        turn.stop_reason = stop_reason
        if error is not None:
            turn.error = TurnError(code=number_at(error, "code") or 0, message=text_at(error, "message") or "")
        turn.add_event(moment.id)

    def _end_prompt(self, moment: Moment, call: OpenCall, result: Object, error: Object | None) -> None:
        turn_id = f"turn-{call.event}"
        is_queued = turn_id in self._queue
        if self._transcript.find_turn(turn_id) is None and not is_queued:
            return
        index = self._find_turn(turn_id, moment, None)
        if error is not None:
            self._fail(moment, index, error)
        # The turn never ran. Its end may follow.
        if is_queued:
            _ = self._close(index, moment, "cancelled" if error is None else "failed")
        turn = self._transcript.draft(index)
        turn.add_event(moment.id)
        tokens = items.read_tokens(object_at(result, "usage"))
        if tokens is not None:
            turn.tokens = tokens
            usage = self._known.usage
            self._set(usage=replace(usage, tokens=items.add_tokens(usage.tokens, tokens)))

    def _find_turn(self, turn_id: str, moment: Moment, prompt_id: str | None) -> int:
        """Return the index of a turn. One that was withdrawn, or whose start is not in the log, is made."""
        index = self._transcript.find_turn(turn_id)
        if index is not None:
            return index
        never_began = turn_id in self._queue
        current, current_index = self._transcript.current, self._transcript.current_index
        if not never_began and current is not None:
            # Turns run one after another: everything since a gap belongs to the turn whose start is in the gap.
            if current.state == "outside" and current.items and isinstance(current.items[0], GapItem):
                self._transcript.name(current_index, turn_id, prompt_id)
                current.events = EventRange.of(moment.id)
                return current_index
            if current.state == "running":
                self._forget_pending(moment.at)
                _ = self._close(current_index, moment, "ended")
        self._begin_turn(moment, turn_id, prompt_id, "outside", never_began=never_began)
        return self._transcript.last_index

    def _close(self, index: int, moment: Moment, state: TurnState) -> DraftTurn:
        turn = self._transcript.draft(index)
        turn.state, turn.ended_at = state, moment.at
        for place, item in enumerate(turn.items):
            if isinstance(item, ToolCallItem) and item.ended_at is None:
                turn.change()[place] = replace(item, ended_at=moment.at)
        return turn

    def _end_session(self, moment: Moment, params: Object) -> None:
        ended = items.read_session_end(params, moment.at)
        self._set(ended=ended)
        self._forget_pending(moment.at)
        self._queue.clear()
        self._calls.clear()
        current, index = self._transcript.current, self._transcript.current_index
        has_crashed = ended.reason == "error" and ended.terminated_by == "agent"
        if has_crashed:
            facts: Object = {name: value for name, value in params.items() if name != "sessionId"}
            self._fail(moment, index, {"message": items.describe_end(ended), "data": facts})
        if current is not None and current.state == "running":
            _ = self._close(index, moment, "failed")
        if not has_crashed:
            self._notice(moment, "ended", items.describe_end(ended))

    # Failures, notices and gaps

    def _fail(self, moment: Moment, index: int, error: Object) -> None:
        """Add a failure. An error reaches the log in up to three events: the answer, the turn's and the session's end.

        The turn may be missing, as that of a session that ends before its first one.
        """
        turn = self._transcript.turn(index)
        last = turn.items[-1] if turn is not None and turn.items else None
        message = text_at(error, "message") or ""
        if turn is not None and isinstance(last, FailureItem) and last.message == message:
            known = items.update_failure(last, error)
            self._transcript.draft(index).change()[-1] = replace(known, events=last.events.plus(moment.id))
            return
        key, events = f"failure-{moment.id}", EventRange.of(moment.id)
        item = items.update_failure(FailureItem(key=key, at=moment.at, events=events, message=message), error)
        if turn is not None and turn.state != "outside" and turn.ended_at is None:
            self._transcript.draft(index).push(item)
        else:
            self._transcript.push(item, moment)

    def _notice(self, moment: Moment, about: NoticeSubject, text: str) -> None:
        key, events = f"notice-{moment.id}-{about}", EventRange.of(moment.id)
        self._transcript.push(NoticeItem(key=key, at=moment.at, events=events, about=about, text=text), moment)

    def _add_gap(self, after: int, resumes_at: int) -> None:
        moment = Moment(after, self._time)
        self._view = None
        self._position = max(self._position, resumes_at - 1)
        current = self._transcript.current
        # The following events outside of turns may belong to a turn that started in the gap.
        if current is not None and current.state == "outside":
            self._transcript.begin(new_turn(f"outside-gap-{after}", moment))
        item = GapItem(key=f"gap-{after}", at=moment.at, events=EventRange(), after=after, resumes_at=resumes_at)
        self._transcript.push(item, moment)

    def _is_replay(self) -> bool:
        """Return whether an agent tells now what the log has already."""
        load = self._calls.first_load
        first = self._transcript.first_event
        return load is not None and first is not None and first < load


class _Calls:
    """The requests whose answers are not in the log yet."""

    def __init__(self, calls: Iterable[OpenCall]) -> None:
        self._calls: dict[int, OpenCall] = {}
        self._by_id: dict[_CallId, list[int]] = {}
        self._loads: dict[int, None] = {}
        for call in calls:
            self.add(call)

    def add(self, call: OpenCall) -> None:
        self._calls[call.event] = call
        self._by_id.setdefault((call.from_agent, call.id), []).append(call.event)
        if call.method == methods.LOAD and not call.from_agent:
            self._loads[call.event] = None

    def has(self, id: _CallId) -> bool:
        return id in self._by_id

    def take(self, id: _CallId, envelope: Object) -> OpenCall | None:
        """Remove and return the oldest request that an envelope can be the answer to."""
        events = self._by_id.get(id, [])
        for index, event in enumerate(events):
            call = self._calls[event]
            if _fits(call, envelope):
                del events[index], self._calls[event]
                self._loads.pop(event, None)
                if not events:
                    del self._by_id[id]
                return call
        return None

    @property
    def first_load(self) -> int | None:
        """Position of the oldest request to load the session."""
        return next(iter(self._loads), None)

    def clear(self) -> None:
        self._calls, self._by_id, self._loads = {}, {}, {}

    def give(self) -> tuple[OpenCall, ...]:
        return tuple(self._calls.values())


def _fits(call: OpenCall, envelope: Object) -> bool:
    """Return whether an answer can be one to a request. Two clients may use the same id."""
    if "error" in envelope:
        return True
    return ("stopReason" in object_at(envelope, "result")) == (call.method == methods.PROMPT)


def _user_item(moment: Moment, blocks: tuple[Object, ...]) -> UserItem:
    key, events = f"user-{moment.id}", EventRange.of(moment.id)
    return UserItem(key=key, at=moment.at, events=events, blocks=blocks, attachments=())


def _prompt_item(prompt: QueuedPrompt) -> UserItem:
    item = _user_item(Moment(prompt.event, prompt.at), prompt.blocks)
    return replace(item, attachments=prompt.attachments)


def _or(text: str | None, otherwise: str | None) -> str | None:
    return otherwise if text is None else text
