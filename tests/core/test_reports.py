"""Reports of what may happen again and again."""

from sandboxagent.core.reports import REPORT_INTERVAL, Reports


def test_what_repeats_is_reported_at_a_bounded_rate_with_how_often_it_happened() -> None:
    now, said = [0.0], list[tuple[str, int, str]]()
    reports = Reports(lambda: now[0], lambda *report: said.append(report))
    for number in range(1000):
        reports.note("a-1", what=f"bytes={number}")
    reports.note("a-2", 5)
    assert said == [("a-1", 1, "bytes=0"), ("a-2", 5, "")]
    now[0] = REPORT_INTERVAL
    reports.note("a-1", what="bytes=7")
    assert said[2:] == [("a-1", 1000, "bytes=7")]


def test_what_was_left_out_is_reported_when_no_more_can_come() -> None:
    now, said = [0.0], list[tuple[str, int, str]]()
    reports = Reports(lambda: now[0], lambda *report: said.append(report))
    for _ in range(3):
        reports.note("a-1", what="the newest")
    reports.note("a-2")
    reports.forget("a-1")
    reports.forget("a-2")
    assert said[2:] == [("a-1", 2, "the newest")]
