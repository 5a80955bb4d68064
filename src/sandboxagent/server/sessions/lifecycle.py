"""Define a session's states, the events that change them, and what each change does.

Pure. `Session.move` looks a move up here, and `Hub.move` carries out its effects; nothing else changes a state. A pair
that is not in the table cannot happen: `move` raises, and the session stays as it was.
"""

from enum import StrEnum, auto

from msgspec import Struct

from sandboxagent.protocol.envelope import Object

SERVER_STOPPED = "the server stopped"


class State(StrEnum):
    """Where a session is in its life."""

    STARTING = auto()
    """An agent was asked to load it, and we have never seen it before."""
    HELD = auto()
    """A process holds the conversation: prompts run."""
    ENDING = auto()
    """A client terminates it, and its agent winds down. Prompts are refused."""
    INTERRUPTED = auto()
    """No process holds it. The next prompt brings it back."""
    REVIVING = auto()
    """A process was asked to take it up again. Prompts wait."""
    ENDED = auto()
    """No process holds it and a prompt cannot bring it back; an explicit load may."""
    TERMINATED = auto()
    """A client ended it for good."""
    DELETED = auto()
    """It is gone, and its log with it."""


STARTING, HELD, ENDING, INTERRUPTED, REVIVING, ENDED, TERMINATED, DELETED = State
"""By themselves, for what runs for every message: Python 3.11 takes long to look a member up in its enumeration."""


class Event(StrEnum):
    """What can happen to a session."""

    REVIVE = auto()
    """A process is asked to take it up again."""
    OPENED = auto()
    """The agent has it: it answered `session/new`, `load` or `resume`."""
    FAILED = auto()
    """The agent refused to open it, or took too long."""
    EXITED = auto()
    """The process is gone, or the server was."""
    CLOSED = auto()
    """A client closed it at its agent; it can be resumed."""
    TERMINATE = auto()
    """A client wants it ended for good."""
    WOUND_DOWN = auto()
    """Its agent has ended the turn and closed it, or has had enough time to."""
    DELETE = auto()
    """A client wants it gone."""


class Effect(StrEnum):
    """What a move does beyond changing the state, in this order."""

    HOLD = auto()
    """What the process says under the agent's id of the session belongs to it from now on."""
    RELEASE = auto()
    """It no longer does; terminals of the session end."""
    SAVE = auto()
    """Keep the facts."""
    TELL_ENDED = auto()
    """Send `_sandboxagent/session/ended` to all attached clients."""
    FORGET = auto()
    """Take the session out of every table, and delete its log."""


class Transition(Struct, frozen=True):
    """One entry of the table."""

    state: State
    """Where it leads; INTERRUPTED becomes ENDED for a session that its agent cannot bring back."""
    effects: tuple[Effect, ...] = ()


class IllegalMove(Exception):
    """The table has no such move: a bug, and the session is as it was."""


_END = (Effect.RELEASE, Effect.SAVE, Effect.TELL_ENDED)
_REST = Transition(State.INTERRUPTED, _END)
_REST_UNTOLD = Transition(State.INTERRUPTED, (Effect.RELEASE,))
"""It had ended before, and clients know."""
_TERMINATE = Transition(State.TERMINATED, _END)
_FORGET = Transition(State.DELETED, (Effect.RELEASE, Effect.FORGET))
_OPEN = Transition(State.HELD, (Effect.SAVE,))

_TABLE: dict[State, dict[Event, Transition]] = {
    State.STARTING: {
        Event.OPENED: _OPEN,
        Event.FAILED: _FORGET,
        Event.EXITED: _FORGET,
        Event.TERMINATE: _FORGET,
        Event.DELETE: _FORGET,
    },
    State.HELD: {
        Event.EXITED: _REST,
        Event.CLOSED: _REST,
        Event.TERMINATE: Transition(State.ENDING),
        Event.DELETE: _FORGET,
    },
    State.ENDING: {
        Event.EXITED: _TERMINATE,
        Event.CLOSED: _TERMINATE,
        Event.WOUND_DOWN: _TERMINATE,
        Event.DELETE: _FORGET,
    },
    State.INTERRUPTED: {
        Event.REVIVE: Transition(State.REVIVING, (Effect.HOLD,)),
        Event.TERMINATE: _TERMINATE,
        Event.DELETE: _FORGET,
    },
    State.REVIVING: {
        Event.OPENED: _OPEN,
        Event.FAILED: _REST_UNTOLD,
        Event.EXITED: _REST_UNTOLD,
        Event.TERMINATE: _TERMINATE,
        Event.DELETE: _FORGET,
    },
    State.ENDED: {
        Event.REVIVE: Transition(State.REVIVING, (Effect.HOLD,)),
        Event.TERMINATE: _TERMINATE,
        Event.DELETE: _FORGET,
    },
    State.TERMINATED: {
        Event.DELETE: _FORGET,
    },
    State.DELETED: {},
}

_ENDS = frozenset({Event.FAILED, Event.EXITED, Event.CLOSED, Event.TERMINATE, Event.WOUND_DOWN, Event.DELETE})

LIVE = frozenset({State.HELD, State.ENDING})
"""A process has the conversation in memory."""
TRANSIENT = frozenset({State.STARTING, State.REVIVING, State.ENDING})
"""Something is under way that leads elsewhere."""
OVER = frozenset({State.ENDING, State.TERMINATED, State.DELETED})
"""A client has ended it for good, or is about to have."""
AT_REST = frozenset({State.INTERRUPTED, State.ENDED, State.TERMINATED, State.DELETED})
"""No process is involved."""


def allows(state: State, event: Event) -> bool:
    """Whether an event moves a session on from a state."""
    return event in _TABLE[state]


def move(state: State, event: Event, *, resumable: bool) -> Transition:
    """What an event does to a session in a state; raises IllegalMove.

    `resumable`: its agent can bring it back when no process holds it any more.
    """
    found = _TABLE[state].get(event)
    if found is None:
        if _is_overtaken(state, event):
            return Transition(state)
        raise IllegalMove(f"a session that is {state} cannot be {event}")
    if found.state is State.INTERRUPTED and not resumable:
        return Transition(State.ENDED, found.effects)
    return found


def _is_overtaken(state: State, event: Event) -> bool:
    """Whether an event comes too late to change anything."""
    if state is State.HELD:
        # One load of two that were under way has failed; the late answer to the other had come before.
        return event is Event.FAILED
    return event in _ENDS and (state in AT_REST or state is State.ENDING)


def recalled(*, ended: bool, resumable: bool, terminated: bool) -> State:
    """The state of a session that was kept by an earlier server."""
    if not ended:
        return HELD
    if terminated:
        return TERMINATED
    return INTERRUPTED if resumable else ENDED


def server_stopped() -> Object:
    """Why a session ended when the server stopped."""
    return {"reason": "error", "terminatedBy": "daemon", "message": SERVER_STOPPED}
