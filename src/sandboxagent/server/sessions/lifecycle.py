"""Define a session's states, the events that change them, and what each change does.

`Session.move` looks a move up here, and `Hub.move` carries out its effects; nothing else changes a state. For a pair
that is not in the table, `move` raises, and the session stays as it was. Pure.
"""

from enum import StrEnum, auto

from msgspec import Struct

from sandboxagent.protocol.envelope import Object

SERVER_STOPPED = "the server stopped"


class State(StrEnum):
    """A session's state."""

    STARTING = auto()
    """The agent was asked to load a session that the server has never seen before."""
    HELD = auto()
    """A process holds the conversation, and prompts run."""
    ENDING = auto()
    """A client terminates the session, and its agent is closing it. Prompts are refused."""
    INTERRUPTED = auto()
    """No process holds the session. The next prompt resumes it."""
    RESUMING = auto()
    """A process was asked to resume the session. Prompts wait."""
    ENDED = auto()
    """No process holds the session. A prompt cannot resume it, but an explicit load may."""
    TERMINATED = auto()
    """A client has ended the session for good."""
    DELETED = auto()
    """The session and its log were deleted."""


STARTING, HELD, ENDING, INTERRUPTED, RESUMING, ENDED, TERMINATED, DELETED = State
"""The states as globals, for code that runs for every message: in Python 3.11, reading an enum's member is slow."""


class Event(StrEnum):
    """An event that may change a session's state."""

    RESUME = auto()
    """A process is asked to resume the session."""
    OPENED = auto()
    """The agent has opened the session: it answered `session/new`, `load` or `resume`."""
    FAILED = auto()
    """The agent refused to open the session, or took too long."""
    EXITED = auto()
    """The process has exited, or an earlier server process had stopped."""
    CLOSED = auto()
    """A client closed the session at its agent; it can be resumed."""
    TERMINATE = auto()
    """A client asks to end the session for good."""
    WOUND_DOWN = auto()
    """The agent has ended the turn and closed the session, or its time for that is over."""
    DELETE = auto()
    """A client asks to delete the session."""


class Effect(StrEnum):
    """An effect of a move besides the new state. Effects are carried out in this order."""

    HOLD = auto()
    """Register the process as holder: its later messages with the agent's session id belong to the session."""
    RELEASE = auto()
    """Undo HOLD, and end the session's terminals."""
    SAVE = auto()
    """Save the facts."""
    TELL_ENDED = auto()
    """Send `_sandboxagent/session/ended` to all attached clients."""
    FORGET = auto()
    """Remove the session from every table, and delete its log."""


class Transition(Struct, frozen=True):
    """One entry of the table."""

    state: State
    """The next state. INTERRUPTED becomes ENDED if the agent cannot resume the session."""
    effects: tuple[Effect, ...] = ()


class IllegalMove(Exception):
    """The table has no such move, which is a bug. The session has not changed."""


_END = (Effect.RELEASE, Effect.SAVE, Effect.TELL_ENDED)
_REST = Transition(State.INTERRUPTED, _END)
_REST_UNTOLD = Transition(State.INTERRUPTED, (Effect.RELEASE,))
"""Like `_REST`, for a session that had ended before, as clients know already."""
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
        Event.RESUME: Transition(State.RESUMING, (Effect.HOLD,)),
        Event.TERMINATE: _TERMINATE,
        Event.DELETE: _FORGET,
    },
    State.RESUMING: {
        Event.OPENED: _OPEN,
        Event.FAILED: _REST_UNTOLD,
        Event.EXITED: _REST_UNTOLD,
        Event.TERMINATE: _TERMINATE,
        Event.DELETE: _FORGET,
    },
    State.ENDED: {
        Event.RESUME: Transition(State.RESUMING, (Effect.HOLD,)),
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
"""States in which a process has the conversation in memory."""
TRANSIENT = frozenset({State.STARTING, State.RESUMING, State.ENDING})
"""States in which an operation is under way that will change the state."""
OVER = frozenset({State.ENDING, State.TERMINATED, State.DELETED})
"""States in which a client has ended the session for good, or is about to."""
AT_REST = frozenset({State.INTERRUPTED, State.ENDED, State.TERMINATED, State.DELETED})
"""States without a process."""


def allows(state: State, event: Event) -> bool:
    """Return whether the table has a move for an event in a state."""
    return event in _TABLE[state]


def move(state: State, event: Event, *, resumable: bool) -> Transition:
    """Return the transition for an event in a state. Raises IllegalMove.

    `resumable` says whether the agent can resume the session when no process holds it any more.
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
    """Return whether an event is too late to change anything."""
    if state is State.HELD:
        # Two loads were under way: this one has failed after the late response to the other arrived.
        return event is Event.FAILED
    return event in _ENDS and (state in AT_REST or state is State.ENDING)


def recalled(*, ended: bool, resumable: bool, terminated: bool) -> State:
    """Return the state of a session that an earlier server process saved."""
    if not ended:
        return HELD
    if terminated:
        return TERMINATED
    return INTERRUPTED if resumable else ENDED


def server_stopped() -> Object:
    """Return the termination info of a session that ended because the server stopped."""
    return {"reason": "error", "terminatedBy": "daemon", "message": SERVER_STOPPED}
