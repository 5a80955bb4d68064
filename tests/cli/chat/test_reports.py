"""What the SDK reports while a command runs, on one line each."""

import io
import logging
from collections.abc import Callable

import pytest

from sandboxagent.cli.chat.client import Reports


class Shown:
    """What shows each report by a function."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show

    def warn(self, text: str) -> None:
        self._show(text)

    def lose(self) -> None:
        self._show("lost")

    def regain(self) -> None:
        self._show("there")


def test_a_report_that_cannot_be_shown_does_not_end_the_work_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    closed = io.StringIO()
    closed.close()

    def show(text: str) -> None:
        closed.write(text)

    record = logging.makeLogRecord({"levelno": logging.WARNING, "msg": "an answer cannot be given yet"})
    for say in (show, shown.append):
        Reports(Shown(say)).handle(record)

    assert shown == ["an answer cannot be given yet"]
    assert "I/O operation on closed file" in capsys.readouterr().err


def test_a_command_gives_the_reports_back_when_it_ends() -> None:
    shown: list[str] = []
    reports, everything = logging.getLogger("sandboxagent.client"), logging.getLogger()
    before = reports.level, [*reports.handlers], [*everything.handlers]

    with Reports(Shown(shown.append)).installed():
        reports.warning("the server is slow")
        reports.info("the stream broke, going on")
        reports.info("the stream is open")
    reports.warning("heard by another")

    assert shown == ["the server is slow", "lost", "there"]
    assert (reports.level, [*reports.handlers], [*everything.handlers]) == before
