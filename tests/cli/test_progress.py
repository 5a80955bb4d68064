"""Progress in lines: one for each step, and not one for each file of a thousand."""

import pytest

from sandboxagent.cli.output import REPORT_INTERVAL, Lines, sentence
from sandboxagent.protocol.views import Progress


def test_a_step_is_one_line_and_one_that_takes_long_another(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines("claude", lambda: now)

    for count in range(100):
        lines.show(Progress("fetching", f"{count} files fetched"))
    now = REPORT_INTERVAL
    lines.show(Progress("fetching", "500 files fetched"))
    lines.show(Progress("fetching", "501 files fetched"))
    lines.show(Progress("verifying", "starting it"))
    lines.show(Progress("done", "claude 1 is installed"))

    assert capsys.readouterr().err.splitlines() == [
        "claude: 0 files fetched",
        "claude: 500 files fetched",
        "claude: starting it",
    ]


def test_waiting_for_another_process_is_said_though_it_is_the_same_stage(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("claude", lambda: 0.0)

    lines.show(Progress("waiting", "waiting for its turn"))
    lines.show(Progress("waiting", "another process is installing it"))

    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress("fetching", "a"), "a"),
        (Progress("fetching", "a", 0), "a"),
        (Progress("fetching", "a", 3 << 19), "a (1.5 MiB)"),
        (Progress("fetching", "a", 3 << 19, 10 << 20), "a (1.5 MiB of 10.0 MiB)"),
        (Progress("fetching", "a\x1b[2J\nb"), "a?[2J b"),
    ],
)
def test_a_state_in_words(progress: Progress, expected: str) -> None:
    assert sentence(progress) == expected
