"""How old a log is: by what the machine saw, not by what its wall clock says."""

import pytest

from sandboxagent.server.log.clock import SETTLE_INTERVAL, Age, AgeClock

DAY = 86400.0


class Clocks:
    """A wall clock and a boot clock, at the test's word."""

    def __init__(self) -> None:
        self.wall, self.ticks = 1e9, 500.0

    def start(self, saved: Age | None = None, boot: str = "first") -> AgeClock:
        return AgeClock(saved, lambda: self.wall, lambda: self.ticks, boot)

    def run(self, clock: AgeClock, seconds: float) -> float:
        """Let time pass, with a look at the clock now and then; gives the age."""
        for _ in range(10):
            self.wall += seconds / 10
            self.ticks += seconds / 10
            clock.now()
        return clock.now().seconds


def test_it_begins_with_the_wall_clock_and_goes_on_with_the_boot_clock() -> None:
    clocks = Clocks()
    clock = clocks.start()

    assert clocks.run(clock, DAY) == pytest.approx(1e9 + DAY)


@pytest.mark.requirement("4.clock-jump")
@pytest.mark.parametrize("jump", [31 * DAY, -31 * DAY])
def test_a_jump_of_the_wall_clock_changes_nothing_however_long_it_stays(jump: float) -> None:
    clocks = Clocks()
    clock = clocks.start()
    clocks.wall += jump

    assert clocks.run(clock, DAY) == pytest.approx(1e9 + DAY)


@pytest.mark.requirement("4.clock-jump")
def test_between_two_servers_on_a_machine_that_runs_the_boot_clock_counts() -> None:
    clocks = Clocks()
    saved = clocks.start().now()
    clocks.wall += 31 * DAY
    clocks.ticks += DAY

    assert clocks.start(saved).now().seconds == pytest.approx(1e9 + DAY)


def test_time_the_machine_was_off_counts_after_an_hour_of_steady_clock() -> None:
    clocks = Clocks()
    saved = clocks.start().now()
    clocks.wall += 40 * DAY
    clocks.ticks = 10.0
    clock = clocks.start(saved, "second")

    assert clocks.run(clock, SETTLE_INTERVAL / 2) == pytest.approx(1e9 + SETTLE_INTERVAL / 2)
    assert clocks.run(clock, SETTLE_INTERVAL) == pytest.approx(1e9 + 40 * DAY + SETTLE_INTERVAL * 1.5)


@pytest.mark.requirement("4.clock-jump")
def test_a_wrong_clock_after_a_reboot_that_is_corrected_in_time_counts_for_nothing() -> None:
    clocks = Clocks()
    saved = clocks.start().now()
    clocks.wall += 31 * DAY
    clocks.ticks = 10.0
    clock = clocks.start(saved, "second")
    clocks.run(clock, SETTLE_INTERVAL / 2)
    clocks.wall -= 31 * DAY

    assert clocks.run(clock, 3 * SETTLE_INTERVAL) == pytest.approx(1e9 + 3.5 * SETTLE_INTERVAL)


def test_what_was_not_counted_yet_is_counted_by_a_later_server() -> None:
    clocks = Clocks()
    saved = clocks.start().now()
    clocks.wall += 40 * DAY
    clocks.ticks = 10.0
    first = clocks.start(saved, "second")
    clocks.run(first, 60.0)
    second = clocks.start(first.now(), "second")

    assert clocks.run(second, 2 * SETTLE_INTERVAL) == pytest.approx(1e9 + 40 * DAY + 60 + 2 * SETTLE_INTERVAL)


def test_a_wall_clock_that_went_back_does_not_turn_the_age_back() -> None:
    clocks = Clocks()
    saved = clocks.start().now()
    clocks.wall -= 40 * DAY
    clocks.ticks = 10.0
    clock = clocks.start(saved, "second")

    assert clocks.run(clock, 2 * SETTLE_INTERVAL) == pytest.approx(1e9 + 2 * SETTLE_INTERVAL)
