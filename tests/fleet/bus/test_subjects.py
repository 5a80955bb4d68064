"""Names on the bus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.memory import matches


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_become_one_part_of_a_subject_and_stay_different(one: str, other: str) -> None:
    for id in (one, other):
        name = subjects.token(id)
        assert name
        assert not set(name) & set(".*> \t\r\n")
        assert name.isascii()
        assert len(name) <= 140
    assert (subjects.token(one) == subjects.token(other)) == (one == other)


def test_a_long_id_is_not_taken_for_a_short_one() -> None:
    assert subjects.token("x" * 101).startswith("=")
    assert subjects.token("x" * 101) != subjects.token("x" * 102)


@pytest.mark.parametrize("name", ["", "*", ">", "a.b", "A", "a b", "a" * 41, "a\n", "ä"])
def test_names_that_would_match_others_are_no_names(name: str) -> None:
    assert not subjects.is_name(name)


def test_a_nodes_rights_reach_its_own_subjects_only() -> None:
    rights = subjects.rights_of_node("n1")
    assert rights == {"publish": {"allow": ["up.n1.>"]}, "subscribe": {"allow": ["dn.n1.>", "all.>"]}}
    assert subjects.request_to_gateway("n1", "log", "g1").startswith("up.n1.")
    assert subjects.inbox_of_node("n1").startswith("dn.n1.")
    assert subjects.sender(subjects.request_to_gateway("n1", "log", "g1")) == ("n1", "log")


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
    ],
)
def test_wildcards_match_subjects_as_in_nats(pattern: str, subject: str, *, fits: bool) -> None:
    assert matches(pattern, subject) is fits
