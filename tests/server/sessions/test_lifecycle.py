"""A session's life is a table. Contract, section 6."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.sessions.lifecycle import (
    AT_REST,
    LIVE,
    Effect,
    Event,
    IllegalMove,
    State,
    allows,
    move,
    recalled,
)

ENDS = frozenset(Event) - {Event.OPENED, Event.RESUME}
FOR_GOOD = (State.TERMINATED, State.DELETED)
EVENTS = st.lists(st.tuples(st.sampled_from(Event), st.booleans()), max_size=40)


def tried(state: State, event: Event, *, resumable: bool = True) -> tuple[State, tuple[Effect, ...]]:
    """Where it leads; nowhere for what cannot happen."""
    try:
        found = move(state, event, resumable=resumable)
    except IllegalMove:
        return state, ()
    return found.state, found.effects


@given(EVENTS)
def test_what_a_client_ended_for_good_never_comes_back(events: list[tuple[Event, bool]]) -> None:
    state = State.HELD
    for event, resumable in events:
        before = state
        state, effects = tried(state, event, resumable=resumable)
        if before in FOR_GOOD:
            assert state in FOR_GOOD
            assert Effect.HOLD not in effects
        if before is State.DELETED:
            assert (state, effects) == (State.DELETED, ())


@given(EVENTS)
def test_clients_hear_of_an_end_once_for_each_time_that_it_ends(events: list[tuple[Event, bool]]) -> None:
    state, known_to_be_over = State.HELD, False
    for event, resumable in events:
        state, effects = tried(state, event, resumable=resumable)
        terminated_at_rest = event is Event.TERMINATE and state is State.TERMINATED
        if Effect.TELL_ENDED in effects:
            assert not known_to_be_over or terminated_at_rest, "said twice"
            known_to_be_over = True
        if state is State.HELD:
            known_to_be_over = False
        assert known_to_be_over or state not in AT_REST or state is State.DELETED, "ended, and not said"


@given(EVENTS)
def test_a_process_is_released_whenever_a_session_comes_to_rest(events: list[tuple[Event, bool]]) -> None:
    state, holds = State.HELD, True
    for event, resumable in events:
        state, effects = tried(state, event, resumable=resumable)
        holds = (holds or Effect.HOLD in effects) and Effect.RELEASE not in effects
        assert holds == (state not in AT_REST)


@pytest.mark.parametrize(("state", "event"), list(product(State, sorted(ENDS))))
def test_every_end_is_taken_in_every_state_or_is_a_bug_that_leaves_it_as_it_was(state: State, event: Event) -> None:
    """Ends overtake each other; none of them may raise once another one was first."""
    if state in AT_REST | {State.ENDING}:
        assert tried(state, event)[0] in AT_REST | {State.ENDING}
    if allows(state, event):
        assert move(state, event, resumable=True).state is not state


@pytest.mark.parametrize("state", State)
def test_only_a_session_that_an_agent_was_asked_to_open_can_be_opened(state: State) -> None:
    assert allows(state, Event.OPENED) == (state in (State.STARTING, State.RESUMING))
    if not allows(state, Event.OPENED):
        with pytest.raises(IllegalMove, match=state):
            move(state, Event.OPENED, resumable=True)


@pytest.mark.parametrize(("resumable", "rest"), [(True, State.INTERRUPTED), (False, State.ENDED)])
def test_an_agent_that_cannot_bring_it_back_leaves_it_ended(resumable: bool, rest: State) -> None:
    assert move(State.HELD, Event.EXITED, resumable=resumable).state is rest
    assert move(State.RESUMING, Event.FAILED, resumable=resumable).state is rest


@given(EVENTS)
def test_a_restart_finds_it_as_it_was_kept(events: list[tuple[Event, bool]]) -> None:
    """What is kept of a life are three flags; what runs when the server stops has no process afterwards."""
    state, resumable = State.HELD, True
    for event, _ in events:
        state, _ = tried(state, event, resumable=resumable)
        resumable = resumable and state is not State.TERMINATED
        if state is State.DELETED:
            return
        ended, terminated = state not in LIVE, state is State.TERMINATED
        found = recalled(ended=ended, resumable=resumable, terminated=terminated)
        again = move(found, Event.EXITED, resumable=resumable).state
        assert (again is State.TERMINATED) == terminated
        assert again in AT_REST
