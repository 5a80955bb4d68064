"""What the SDK reports while a command runs, on one line each."""

import io
import logging

import pytest

from sandboxagent.cli.chat.client import Reports


def test_a_report_that_cannot_be_shown_does_not_end_the_work_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    closed = io.StringIO()
    closed.close()

    def show(text: str) -> None:
        closed.write(text)

    record = logging.makeLogRecord({"levelno": logging.WARNING, "msg": "an answer cannot be given yet"})
    for say in (show, shown.append):
        Reports(say, say).handle(record)

    assert shown == ["an answer cannot be given yet"]
    assert "I/O operation on closed file" in capsys.readouterr().err


def test_a_command_gives_the_reports_back_when_it_ends() -> None:
    shown: list[str] = []
    reports, everything = logging.getLogger("sandboxagent.client"), logging.getLogger()
    before = reports.level, [*reports.handlers], [*everything.handlers]

    with Reports(shown.append, shown.append).installed():
        reports.warning("the server is slow")
    reports.warning("heard by another")

    assert shown == ["the server is slow"]
    assert (reports.level, [*reports.handlers], [*everything.handlers]) == before
