"""A session, its life and its turns. Contract, section 5 and 6."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import InvalidRequest, QueueFull
from sandboxagent.server.agents.options import MODE, MODEL, OPTIONS, complete_offers
from sandboxagent.server.sessions.lifecycle import Event, State
from sandboxagent.server.sessions.session import MAX_OFFERS_BYTES, MAX_TITLE, Prompt, Replay, Session, SessionFacts, iso
from tests.support.shapes import SHAPES


def process(key: str = "p") -> Any:
    return SimpleNamespace(key=key)


def session(state: State = State.HELD, *, can_resume: bool = True) -> Session:
    facts = SessionFacts(session_id="s", agent_session_id="s", agent="a", cwd="/", created_at=0, updated_at=0)
    facts.can_resume = can_resume
    return Session(facts, state, process())


def prompt(position: int) -> Prompt:
    return Prompt("s", "c1", b"{}", position)


def queue(own: Session, one: Prompt) -> bool:
    """Whether it starts at once."""
    own.waiting.append(one)
    return own.start_next() is one


def test_the_first_prompt_starts_at_once_and_the_next_ones_wait_in_their_order() -> None:
    own, first, second, third = session(), prompt(1), prompt(2), prompt(3)
    assert queue(own, first)
    assert not queue(own, second)
    assert not queue(own, third)

    for ended, following in ((first, second), (second, third), (third, None)):
        own.finish(ended)
        assert own.start_next() is following
        assert own.running is following
    assert queue(own, prompt(4)), "an idle session starts at once"


def test_a_prompt_that_waits_can_be_taken_out() -> None:
    own, first, second, third = session(), prompt(1), prompt(2), prompt(3)
    for one in (first, second, third):
        queue(own, one)

    own.finish(second)

    assert own.running is first
    assert list(own.waiting) == [third]


@pytest.mark.parametrize("state", [state for state in State if state is not State.HELD])
def test_no_prompt_starts_in_a_session_that_no_process_holds(state: State) -> None:
    own = session(state)
    assert not queue(own, prompt(1))
    assert own.running is None


def test_a_full_queue_says_so_and_how_many_wait() -> None:
    own = session()
    own.check_queue(0)
    queue(own, prompt(0))
    for position in range(1, 4):
        own.check_queue(3)
        queue(own, prompt(position))

    with pytest.raises(QueueFull) as refused:
        own.check_queue(3)

    assert refused.value.rpc_code == -32000
    assert refused.value.fields == {"sessionId": "s", "limit": 3}
    assert "3 prompts wait" in str(refused.value)


@given(st.lists(st.sampled_from(["queue", "finish", "take out", "crash", "open"])))
def test_prompts_run_one_at_a_time_in_the_order_they_came_and_each_ends_once(steps: list[str]) -> None:
    own = session()
    sent: list[Prompt] = []
    started: list[Prompt] = []
    taken_out: list[Prompt] = []
    for step in steps:
        if step == "queue":
            sent.append(prompt(len(sent)))
            own.waiting.append(sent[-1])
        elif step == "finish" and own.running is not None:
            own.finish(own.running)
        elif step == "take out" and own.waiting:
            taken_out.append(own.waiting[-1])
            own.finish(taken_out[-1])
        elif step == "crash" and own.allows(Event.EXITED):
            own.move(Event.EXITED, termination={})
        elif step == "open" and own.allows(Event.RESUME):
            own.move(Event.RESUME, process())
            own.move(Event.OPENED)
        following = own.start_next()
        started += [following] if following is not None else []
        assert own.running is None or own.state is State.HELD
        assert own.running is not None or not own.waiting or own.state is not State.HELD, "nothing waits for nothing"
    waiting = list(own.waiting)
    assert len({*started, *taken_out, *waiting}) == len(started) + len(taken_out) + len(waiting) == len(sent)
    assert [one.position for one in started] == sorted(one.position for one in started)
    assert own.running is None or own.running is started[-1]


def test_a_session_at_rest_has_no_process_and_no_turn() -> None:
    own = session()
    own.replay = Replay("", history=False)
    queue(own, prompt(1))
    own.unechoed = own.running

    own.move(Event.EXITED, termination={"reason": "error"})

    assert (own.process, own.held, own.running, own.unechoed, own.replay) == (None, None, None, None, None)
    assert (own.facts.ended, own.facts.can_resume) == (True, True)
    assert own.facts.termination == {"reason": "error"}


def test_a_resumed_session_is_as_if_it_had_never_ended() -> None:
    own = session()
    own.move(Event.EXITED, termination={"reason": "error"})
    own.move(Event.RESUME, again := process("again"))
    assert (own.held, own.facts.ended) == (None, True), "clients learn of it when its agent has it"

    own.move(Event.OPENED)

    assert own.held is again
    assert (own.facts.ended, own.facts.termination) == (False, None)
    assert queue(own, prompt(2))


def test_a_session_that_a_client_terminated_is_over_for_good() -> None:
    own = session()
    own.move(Event.TERMINATE)
    assert own.over
    assert own.process is not None, "its agent winds down"
    own.move(Event.EXITED, termination={"reason": "error"})
    assert own.facts.termination == {"reason": "terminated", "terminatedBy": "daemon"}
    assert (own.facts.ended, own.facts.can_resume) == (True, False)
    with pytest.raises(InvalidRequest, match="session/new"):
        own.check_promptable()


def test_it_learns_what_the_agent_offers_and_keeps_what_it_does_not_mention() -> None:
    own = session()
    own.learn_offers({"sessionId": "s", "modes": {"currentModeId": "a"}, "models": None})
    own.learn_offers({"models": {"currentModelId": "m"}})
    assert own.facts.offers == {"modes": {"currentModeId": "a"}, "models": {"currentModelId": "m"}}
    assert (own.mode, own.model) == ("a", "m")


def test_model_and_mode_come_from_config_options_by_category_and_else_by_id() -> None:
    own = session()
    options = [
        {"id": "model", "currentValue": "by id"},
        {"id": "x", "category": "model", "currentValue": "by category"},
        {"id": "mode", "currentValue": "plan"},
    ]
    own.learn_offers({"configOptions": options})
    assert (own.model, own.mode) == ("by category", "plan")


@pytest.mark.parametrize("offers", [{}, {"modes": []}, {"configOptions": "x"}, {"configOptions": [None, {"id": 1}]}])
def test_odd_offers_mean_that_nothing_is_known(offers: dict[str, object]) -> None:
    own = session()
    own.learn_offers(offers)
    assert (own.mode, own.model) == (None, None)


def test_it_learns_from_updates_and_says_whether_anything_kept_has_changed() -> None:
    own = session()
    own.learn_offers({"modes": {"currentModeId": "a", "availableModes": [1]}})
    assert own.note_update({"sessionUpdate": "current_mode_update", "currentModeId": "b"})
    assert own.facts.offers["modes"] == {"currentModeId": "b", "availableModes": [1]}
    assert own.note_update({"sessionUpdate": "session_info_update", "title": "Named"})
    assert own.facts.title == "Named"
    assert own.note_update({"sessionUpdate": "session_info_update"})
    assert own.facts.title == "Named", "what is not mentioned stays"
    assert own.note_update({"sessionUpdate": "config_option_update", "configOptions": [{"id": "model"}]})
    assert own.facts.offers["configOptions"] == [{"id": "model"}]


@pytest.mark.parametrize(
    "update", [{}, {"sessionUpdate": "usage_update"}, {"sessionUpdate": "config_option_update"}, {"sessionUpdate": 7}]
)
def test_other_updates_change_nothing(update: dict[str, object]) -> None:
    own = session()
    assert not own.note_update(update)
    assert own.facts.offers == {}


def test_what_an_update_told_is_not_told_again() -> None:
    own = session()
    own.learn_offers(SHAPES["claude"].offers)
    own.mark_reported()
    own.choose(MODE, "plan")
    options = own.facts.offers["configOptions"]
    own.note_update({"sessionUpdate": "config_option_update", "configOptions": options})
    assert own.take_unreported_changes() == [{"sessionUpdate": "current_mode_update", "currentModeId": "plan"}]
    assert own.take_unreported_changes() == []


def test_what_no_update_reported_is_reported_in_both_forms() -> None:
    own = session()
    own.learn_offers(SHAPES["gemini"].offers)
    own.mark_reported()
    assert own.take_unreported_changes() == []
    own.choose(MODE, "plan")
    [mode, options] = own.take_unreported_changes()
    assert mode == {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    assert options == {
        "sessionUpdate": "config_option_update",
        "configOptions": complete_offers(own.facts.offers)[OPTIONS],
    }
    own.choose(MODEL, "auto")
    assert [update["sessionUpdate"] for update in own.take_unreported_changes()] == ["config_option_update"]


def test_a_change_that_was_taken_back_is_not_told() -> None:
    own = session()
    own.learn_offers(SHAPES["gemini"].offers)
    own.mark_reported()
    own.choose(MODE, "plan")
    own.choose(MODE, "default")
    assert own.take_unreported_changes() == []


def test_what_is_replayed_for_one_client_is_learned_and_reaches_no_other() -> None:
    own = session()
    own.learn_offers(SHAPES["claude"].offers)
    own.mark_reported()
    own.replay = Replay("", history=False)
    assert own.note_update({"sessionUpdate": "current_mode_update", "currentModeId": "plan"})
    own.replay = None
    assert own.mode == "plan"
    assert [update["sessionUpdate"] for update in own.take_unreported_changes()] == [
        "current_mode_update",
        "config_option_update",
    ]


def test_a_session_from_the_log_has_been_told_what_is_kept_of_it() -> None:
    facts = session().facts
    facts.offers = SHAPES["codex"].offers
    own = Session(facts)
    assert own.take_unreported_changes() == []
    own.choose(MODE, "read-only")
    assert len(own.take_unreported_changes()) == 2


def test_it_learns_from_notifications_of_an_agents_own_making() -> None:
    own = session()
    own.learn_offers(SHAPES["qwen"].offers)
    assert own.note_vendor({"v": 1, "sessionId": "s", "currentModeId": "yolo"})
    assert own.note_vendor({"v": 1, "sessionId": "s", "currentModelId": "mock-two(openai)"})
    assert (own.mode, own.model) == ("yolo", "mock-two(openai)")
    assert not own.note_vendor({"currentModeId": 7, "other": "x"})


def test_two_sessions_share_no_facts() -> None:
    first, second = session(), session()
    first.learn_offers({"modes": {}})
    first.facts.metadata["x"] = 1
    assert second.facts.offers == {}
    assert second.facts.metadata == {}


def test_points_in_time_are_in_utc_with_milliseconds() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000Z"
    assert iso(1_700_000_000.1239) == "2023-11-14T22:13:20.123Z"


def test_a_turn_is_named_by_the_position_of_its_prompt() -> None:
    assert prompt(7).turn_id == "turn-7"


def test_offers_and_titles_that_are_too_large_are_not_kept_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = session()
    small: Any = [{"id": "model", "category": "model", "type": "select", "currentValue": "a", "options": []}]
    assert own.note_update({"sessionUpdate": "config_option_update", "configOptions": small})
    kept = own.facts.offers
    huge: Any = [*small, {"id": "x", "description": "x" * MAX_OFFERS_BYTES}]
    for _ in range(3):
        own.note_update({"sessionUpdate": "config_option_update", "configOptions": huge})
        own.note_update({"sessionUpdate": "current_mode_update", "currentModeId": "m" * MAX_OFFERS_BYTES})
        own.note_vendor({"currentModelId": "m" * MAX_OFFERS_BYTES})
    assert own.facts.offers is kept
    assert [each.getMessage().split(" bytes=")[0] for each in caplog.records] == [
        "offers of a session are not kept session=s"
    ]
    own.note_update({"sessionUpdate": "session_info_update", "title": "t" * (MAX_TITLE + 1)})
    assert own.facts.title == "t" * MAX_TITLE
