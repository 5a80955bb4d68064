"""Ids as OpenCode makes them: what sorts before what, and what follows from what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.adapters.opencode.ids import (
    LATEST,
    PERIOD_MS,
    Ticks,
    is_given_id,
    is_session_id,
    make_id,
    make_session_id,
    milliseconds,
    read_created,
    tick_of,
)

NOW = 1_794_722_412_634
TIMES = st.integers(NOW - 10**9, NOW + 10**9)


def test_an_id_is_written_as_opencode_writes_it() -> None:
    id = make_id("msg", tick_of(NOW) + 1, "s", 7)

    assert id.startswith("msg_1ddcab85a001")
    assert len(id) == len("msg_") + 12 + 14


@given(st.lists(TIMES, min_size=2, max_size=20))
def test_what_comes_later_sorts_later_whatever_the_clock_says(times: list[int]) -> None:
    ticks = Ticks()
    ids = [make_id("prt", ticks.next(ms), "s", number) for number, ms in enumerate(times)]

    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


@given(TIMES, TIMES)
def test_id_made_after_a_clients_id_sorts_after_it(ours: int, theirs: int) -> None:
    ticks = Ticks()
    given_id = make_id("msg", tick_of(theirs) + 5, "page")
    ticks.note(given_id)

    assert make_id("msg", ticks.next(ours), "s", 1) > given_id


@given(TIMES)
def test_the_newer_session_sorts_first(ms: int) -> None:
    older, newer = make_session_id(ms / 1000, "a"), make_session_id(ms / 1000 + 1, "b")

    assert newer < older
    assert is_session_id(newer)
    assert is_session_id(older)


@given(TIMES)
def test_a_sessions_id_says_when_it_was_made(ms: int) -> None:
    created_at = ms / 1000

    assert read_created(make_session_id(created_at, "a")) == milliseconds(created_at) % PERIOD_MS


def test_ids_follow_from_their_session_and_number() -> None:
    assert make_id("msg", 1, "s", 2) == make_id("msg", 1, "s", 2)
    assert make_id("msg", 1, "s", 2) != make_id("msg", 1, "t", 2)


@pytest.mark.parametrize("id", ["msg_1ddcab85a001ABCDEFGHIJKLMN", "msg_of-mine", "msg_1"])
def test_plausible_message_id_of_a_client_is_accepted(id: str) -> None:
    assert is_given_id("msg", id)


@pytest.mark.parametrize(
    "id", ["", "prt_1", "msg 1", "msg_é", "msg_" + "x" * 200, "msg_\n", make_id("msg", LATEST), "msg_" + "f" * 26]
)
def test_implausible_message_id_of_a_client_is_refused(id: str) -> None:
    assert not is_given_id("msg", id)
