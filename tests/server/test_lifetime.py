"""When a server counts as idle."""

from sandboxagent.server.lifetime import MAX_TICK_INTERVAL, IdleTimer


def test_it_is_idle_when_it_had_nothing_to_do_for_long_enough() -> None:
    idle_timer = IdleTimer(lambda: False, 2.0)

    assert [idle_timer.tick(now) for now in (0.0, 1.0, 1.9, 2.0, 3.0)] == [False, False, False, True, True]


def test_work_begins_the_time_anew() -> None:
    busy = [False, False, True, False, False, False]
    idle_timer = IdleTimer(lambda: busy.pop(0), 2.0)

    assert [idle_timer.tick(float(now)) for now in range(6)] == [False, False, False, False, True, True]


def test_a_machine_that_slept_was_not_idle() -> None:
    idle_timer = IdleTimer(lambda: False, 10 * MAX_TICK_INTERVAL)

    assert [idle_timer.tick(now) for now in (0.0, 3600.0, 7200.0)] == [False, False, False]
