"""Which step of which script a conversation is in."""

from tests.support.model.script import Call, Conversation, Fail, Say, Script, Turn, find, step_of

FIRST = Script("first", [Call("write"), Say("one two")])
SECOND = Script("second", [Fail(500, "api_error", "no")])
SCRIPTS = {"first": FIRST, "second": SECOND}


def found(*turns: tuple[str, str]) -> tuple[Script, int] | None:
    return find(Conversation(tuple(Turn(role, text) for role, text in turns)), SCRIPTS)  # type: ignore[arg-type]


def test_marker_of_the_newest_user_text_picks_the_script() -> None:
    assert found(("user", "[[first]]"), ("model", "…"), ("user", "[[second]]")) == (SECOND, 0)


def test_last_marker_of_a_text_counts() -> None:
    assert found(("user", "[[first]] and then [[second]] and [[unknown]]")) == (SECOND, 0)


def test_model_turns_after_the_marker_pick_the_step() -> None:
    assert found(("user", "[[first]]"), ("model", ""), ("tool", "[[second]]"), ("system", "")) == (FIRST, 1)


def test_model_turns_in_a_row_are_one() -> None:
    assert found(("user", "[[first]]"), ("model", ""), ("model", ""), ("tool", ""), ("model", "")) == (FIRST, 2)


def test_conversation_without_a_marker_is_in_no_script() -> None:
    assert found(("user", "hello")) is None


def test_text_in_one_piece_is_said_word_by_word() -> None:
    assert Say(" one  two\nthree").pieces == (" ", "one  ", "two\n", "three")


def test_script_at_its_end_says_so() -> None:
    (said,) = step_of(FIRST, 2)

    assert said.text == "The script first has no step 2."
