"""Checks before something happens: all agree, or it does not happen."""

import asyncio
import logging

import pytest

from sandboxagent.core.gates import Gate
from sandboxagent.protocol.errors import BadRequest, CheckFailed
from tests.support.running import BOUND


class Refused(BadRequest):
    def __init__(self) -> None:
        super().__init__("not this one")


def refuse(_: str) -> None:
    raise Refused


def break_down(_: str) -> None:
    raise ZeroDivisionError


async def agree(_: str) -> None:
    await asyncio.sleep(0)


async def refuse_later(_: str) -> None:
    await asyncio.sleep(0)
    raise Refused


async def break_down_later(_: str) -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


async def never_answer(_: str) -> None:
    await asyncio.Event().wait()


def gate(*checks: object, timeout: float = BOUND) -> "Gate[str]":
    made: Gate[str] = Gate("a prompt", timeout)
    for number, check in enumerate(checks):
        made.add(f"c{number}", check)  # type: ignore[arg-type]
    return made


async def pass_through(checked: "Gate[str]") -> None:
    wait = checked.ask("x")
    if wait is not None:
        await wait


def test_a_gate_without_checks_lets_everything_pass_at_once() -> None:
    assert gate().ask("x") is None


def test_checks_that_agree_at_once_cost_no_wait() -> None:
    assert gate(lambda _: None, lambda _: None).ask("x") is None


def test_a_gate_waits_for_checks_that_need_time() -> None:
    async def scenario() -> None:
        wait = gate(lambda _: None, agree, agree).ask("x")
        assert wait is not None
        await wait

    asyncio.run(scenario())


@pytest.mark.parametrize("checks", [[refuse], [agree, refuse], [refuse_later], [agree, refuse_later, agree]])
def test_one_refusal_refuses_with_its_own_error(checks: list[object]) -> None:
    with pytest.raises(Refused):
        asyncio.run(pass_through(gate(*checks)))


@pytest.mark.parametrize("check", [break_down, break_down_later])
def test_a_check_that_fails_refuses_and_names_its_owner(check: object, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CheckFailed, match="c1 could not check a prompt"):
        asyncio.run(pass_through(gate(agree, check, agree)))
    assert any("check failed" in record.getMessage() and record.exc_info for record in caplog.records)


def test_a_check_that_never_answers_refuses_in_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    with pytest.raises(CheckFailed, match="c0"):
        asyncio.run(pass_through(gate(never_answer, agree, timeout=0.01)))
    assert "check took too long" in caplog.text
