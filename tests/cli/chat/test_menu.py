"""What answers a question without Enter, and what the arrow keys and the space bar choose."""

import pytest

from sandboxagent.cli.chat.blocks import Span
from sandboxagent.cli.chat.menu import KEY_TIMEOUT, REASON_TIMEOUT, Menu

MENU = Menu([[Span("  1 Yes")], [Span("  2 No")]], keys=frozenset("yr"), reasons=frozenset("r"))


@pytest.mark.parametrize(("typed", "seconds"), [("y", KEY_TIMEOUT), ("r", REASON_TIMEOUT), ("yes", None), ("", None)])
def test_one_key_answers_after_a_pause_and_a_word_needs_enter(typed: str, seconds: float | None) -> None:
    assert MENU.timeout(typed) == seconds


def test_the_arrow_keys_go_round() -> None:
    assert (MENU.move(None, 1), MENU.move(None, -1)) == (0, 1)
    assert (MENU.move(1, 1), MENU.move(0, -1)) == (0, 1)
    assert Menu().move(None, 1) is None


def test_the_space_bar_adds_and_removes_a_number() -> None:
    assert MENU.toggle("", 0) == "1"
    assert MENU.toggle("1", 1) == "1, 2"
    assert MENU.toggle("1,2", 0) == "2"
