"""Find, add and change turns and their items while a view is made.

Nothing that was given out changes. A turn that has changed since is given out as a new value, and its pieces of text
are joined only then. So a long text costs what its pieces cost.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from sandboxagent.client.items import Moment, is_text
from sandboxagent.client.view import (
    EventRange,
    Number,
    RequestItem,
    TextItem,
    ThoughtItem,
    TokenCounts,
    ToolCallItem,
    TurnError,
    TurnState,
    TurnView,
    UserItem,
    ViewItem,
)
from sandboxagent.protocol.envelope import Object

Kind = TypeVar("Kind", bound=ViewItem)
TOLD = "told-"
"""The beginning of the keys of turns that an agent told from its own memory."""


class Place(NamedTuple):
    """The place of an item: the index of its turn, and its own index in that."""

    turn: int
    item: int


class _Growth(Struct):
    """Pieces of text, or of a prompt, that are not in their item yet."""

    item: TextItem | ThoughtItem | UserItem
    events: EventRange
    pieces: list[str]
    blocks: list[Object]
    until: str = ""

    def finish(self) -> ViewItem:
        match self.item:
            case TextItem():
                return replace(self.item, text=self._text(self.item.text), events=self.events)
            case ThoughtItem():
                return replace(self.item, text=self._text(self.item.text), events=self.events, until=self.until)
            case UserItem():
                self._join_pieces()
                return replace(self.item, blocks=tuple(self.blocks), events=self.events)

    def _text(self, before: str) -> str:
        return "".join((before, *self.pieces))

    def add_block(self, block: Object) -> None:
        if self.blocks and is_text(block) and is_text(self.blocks[-1]):
            self.pieces.append(cast(str, block["text"]))
        else:
            self._join_pieces()
            self.blocks.append(block)

    def _join_pieces(self) -> None:
        if self.pieces:
            last = self.blocks[-1]
            self.blocks[-1] = {**last, "text": "".join((cast(str, last["text"]), *self.pieces))}
            self.pieces.clear()


class DraftTurn:
    """A turn that may still change."""

    __slots__ = (
        "_given",
        "_growth",
        "_items",
        "ended_at",
        "error",
        "events",
        "key",
        "never_began",
        "prompt_id",
        "started_at",
        "state",
        "stop_reason",
        "tokens",
        "turn_id",
    )

    def __init__(self, turn: TurnView) -> None:
        self.key = turn.key
        self.turn_id = turn.turn_id
        self.prompt_id = turn.prompt_id
        self.state: TurnState = turn.state
        self.started_at = turn.started_at
        self.never_began = turn.never_began
        self.ended_at = turn.ended_at
        self.stop_reason = turn.stop_reason
        self.error: TurnError | None = turn.error
        self.tokens: TokenCounts | None = turn.tokens
        self.events = turn.events
        self._items: list[ViewItem] | tuple[ViewItem, ...] = turn.items
        self._growth: _Growth | None = None
        self._given: TurnView | None = turn

    @property
    def items(self) -> list[ViewItem] | tuple[ViewItem, ...]:
        """Everything in the turn."""
        if self._growth is not None:
            self.change()[-1] = self._growth.finish()
            self._growth = None
        return self._items

    def change(self) -> list[ViewItem]:
        """Return the items, to change them or the turn."""
        if isinstance(self._items, tuple):
            self._items = list(self._items)
        self._given = None
        return self._items

    def push(self, item: ViewItem) -> None:
        """Add an item."""
        _ = self.items
        self.change().append(item)

    def add_event(self, position: int) -> None:
        """Add an event of the turn itself, once."""
        if self.events.last != position:
            _ = self.change()
            self.events = self.events.plus(position)

    def grow(self, kind: type[TextItem | ThoughtItem], message_id: str | None, text: str, moment: Moment) -> bool:
        """Add a piece to the text at the turn's end. Return False if there is no such text."""
        growth = self._growth
        if growth is None or not isinstance(growth.item, kind):
            last = self.items[-1] if self.items else None
            if not isinstance(last, kind):
                return False
            growth = _Growth(last, last.events, [], [])
        item = growth.item
        assert isinstance(item, TextItem | ThoughtItem)
        if message_id is not None and message_id != item.message_id:
            return False
        growth.pieces.append(text)
        growth.events, growth.until = growth.events.plus(moment.id), moment.at
        _ = self.change()
        self._growth = growth
        return True

    def hear(self, block: Object, moment: Moment) -> bool:
        """Add a block to the prompt at the turn's end. Return False if there is no such prompt."""
        growth = self._growth
        if growth is None or not isinstance(growth.item, UserItem):
            last = self.items[-1] if self.items else None
            if not isinstance(last, UserItem):
                return False
            growth = _Growth(last, last.events, [], list(last.blocks))
        # An agent that echoes its prompt says nothing new.
        if not (self.state == "running" and len(self._items) == 1):
            growth.add_block(block)
        growth.events = growth.events.plus(moment.id)
        _ = self.change()
        self._growth = growth
        return True

    def give(self) -> TurnView:
        """Return the turn as it is now."""
        items = self.items
        if self._given is None:
            self._items = tuple(items)
            self._given = TurnView(
                key=self.key,
                turn_id=self.turn_id,
                prompt_id=self.prompt_id,
                state=self.state,
                started_at=self.started_at,
                never_began=self.never_began,
                ended_at=self.ended_at,
                stop_reason=self.stop_reason,
                error=self.error,
                tokens=self.tokens,
                events=self.events,
                items=self._items,
            )
        return self._given


class Transcript:
    """The turns of a session, which grow and change."""

    def __init__(self, turns: tuple[TurnView, ...]) -> None:
        self._turns = [DraftTurn(turn) for turn in turns]
        self._given = turns
        self._changed: set[int] = set()
        self._last_begun = next((at for at in reversed(range(len(turns))) if not turns[at].never_began), -1)
        """The newest turn whose prompt was not withdrawn."""
        self._by_id = {turn.turn_id: at for at, turn in enumerate(turns) if turn.turn_id is not None}
        self._tools: dict[str, Place] = {}
        self._requests: dict[str | Number, Place] = {}
        """The newest request of each id: agents that are started again begin to count anew."""
        self._keys: dict[str, Place] = {}
        for index, turn in enumerate(turns):
            for number, item in enumerate(turn.items):
                self._note(item, Place(index, number))

    def give(self) -> tuple[TurnView, ...]:
        """Return all turns; the same tuple as long as nothing has changed."""
        if self._changed:
            given = list(self._given)
            given += [turn.give() for turn in self._turns[len(given) :]]
            for index in self._changed:
                given[index] = self._turns[index].give()
            self._given = tuple(given)
            self._changed.clear()
        return self._given

    @property
    def current(self) -> DraftTurn | None:
        """The turn that goes on: the newest one, except for prompts that were withdrawn while it ran."""
        return self._turns[self.current_index] if self._turns else None

    @property
    def current_index(self) -> int:
        begun = self._last_begun
        return begun if begun >= 0 and self._turns[begun].state == "running" else self.last_index

    @property
    def last_index(self) -> int:
        return len(self._turns) - 1

    @property
    def first_event(self) -> int | None:
        """Position of the first event; None if there is none."""
        if not self._turns:
            return None
        first = self._turns[0]
        return first.items[0].events.first if first.items else first.events.first

    def find_turn(self, turn_id: str) -> int | None:
        """Return the index of the newest turn with an id of the server; None if there is none."""
        return self._by_id.get(turn_id)

    def name(self, index: int, turn_id: str, prompt_id: str | None) -> None:
        """Give a turn the id that the server has for it."""
        turn = self.draft(index)
        turn.turn_id, turn.prompt_id = turn_id, prompt_id
        self._by_id[turn_id] = index

    def begin(self, turn: TurnView) -> None:
        """Add a turn."""
        if not turn.never_began:
            self._last_begun = len(self._turns)
        if turn.turn_id is not None:
            self._by_id[turn.turn_id] = len(self._turns)
        self._changed.add(len(self._turns))
        self._turns.append(DraftTurn(turn))

    def turn(self, index: int) -> DraftTurn | None:
        """Return a turn, to look at it."""
        return self._turns[index] if index >= 0 else None

    def draft(self, index: int) -> DraftTurn:
        """Return a turn, to change it."""
        self._changed.add(index)
        turn = self._turns[index]
        _ = turn.change()
        return turn

    def open(self, moment: Moment) -> DraftTurn:
        """Return the turn that a new event belongs to, to change it."""
        current = self.current
        # History that an agent tells, which the server never saw, continues in its own turn.
        continues = current is not None and (current.state in ("running", "outside") or current.key.startswith(TOLD))
        if not continues:
            self.begin(new_turn(f"outside-{moment.id}", moment))
        return self.draft(self.current_index)

    def push(self, item: ViewItem, moment: Moment) -> None:
        """Add an item to the turn that a new event belongs to."""
        turn = self.open(moment)
        self._note(item, Place(self.current_index, len(turn.items)))
        turn.push(item)

    def change(self, place: Place, change: Callable[[Kind], Kind], event: int | None = None) -> Kind:
        """Change an item because of an event, and return it as it is then."""
        turn = self.draft(place.turn)
        before = cast("Kind", turn.items[place.item])
        after = change(before)
        if event is not None:
            after = replace(after, events=before.events.plus(event))
        turn.change()[place.item] = after
        return after

    def find(self, key: str) -> Place | None:
        """Return the place of a request by its key."""
        return self._keys.get(key)

    def find_item(self, request: RequestItem) -> RequestItem:
        """Return a request as its turn has it."""
        place = self._keys.get(request.key)
        return request if place is None else cast("RequestItem", self._turns[place.turn].items[place.item])

    def find_tool_call(self, tool_call_id: str) -> Place | None:
        return self._tools.get(tool_call_id)

    def find_request(self, agent_request_id: str | Number) -> tuple[Place, RequestItem] | None:
        """Return the newest request of an id."""
        place = self._requests.get(agent_request_id)
        return None if place is None else (place, cast("RequestItem", self._turns[place.turn].items[place.item]))

    def _note(self, item: ViewItem, place: Place) -> None:
        if isinstance(item, ToolCallItem):
            self._tools[item.tool_call_id] = place
        elif isinstance(item, RequestItem):
            self._requests[item.agent_request_id] = self._keys[item.key] = place


def new_turn(key: str, moment: Moment, items: tuple[ViewItem, ...] = (), state: TurnState = "outside") -> TurnView:
    """Return a turn that begins. Without a state it is one for events outside of turns."""
    return TurnView(key=key, state=state, started_at=moment.at, never_began=False, events=EventRange(), items=items)
