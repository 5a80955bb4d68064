"""Pending requests: what agents asked. Contract, section 5 and 7."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxagent.protocol.envelope import parse
from sandboxagent.protocol.request_ids import RequestIds
from sandboxagent.server.sessions.pending import Outcome, PendingRequest, PendingRequests
from sandboxagent.server.sessions.session import Session, SessionFacts


@dataclass(frozen=True)
class FakeProcess:
    key: str


IDS = RequestIds()
P1, P2 = FakeProcess("agent-1"), FakeProcess("agent-2")
OPTIONS = [
    {"optionId": "yes", "kind": "allow_once"},
    {"optionId": "never", "kind": "reject_always"},
    {"optionId": "no", "kind": "reject_once"},
]
PERMISSION, QUESTION = "session/request_permission", "_sandboxagent/session/request_question"
ELICITATION = "elicitation/create"


def session(id: str = "s1") -> Session:
    return Session(SessionFacts(session_id=id, agent_session_id=id, agent="a", cwd="/", created_at=0, updated_at=0))


def request(
    key: int,
    id: str = "0",
    method: str = PERMISSION,
    params: object = None,
    process: Any = P1,
    of: Session | None = None,
    asked_at: float = 0,
) -> PendingRequest:
    params = {"options": OPTIONS} if params is None else params
    line = f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{json.dumps(params)}}}'
    return PendingRequest(key, IDS.make(key), parse(line.encode()), process, of, asked_at, waits_since=asked_at)


@pytest.mark.parametrize(
    ("method", "kind"),
    [(PERMISSION, "permission"), (QUESTION, "question"), (ELICITATION, "elicitation"), ("x/private", "request")],
)
def test_its_kind_follows_from_its_method(method: str, kind: str) -> None:
    assert request(1, method=method).kind == kind


def test_it_is_open_until_it_has_an_outcome() -> None:
    table, pending = PendingRequests(IDS), request(1)
    table.ask(pending)
    assert pending.open

    table.settle(pending, Outcome.ANSWERED, "c1")

    assert not pending.open
    assert (pending.outcome, pending.answered_by) == (Outcome.ANSWERED, "c1")


def test_it_is_found_under_its_agents_id_only_while_it_is_open() -> None:
    table, pending = PendingRequests(IDS), request(1, '"x"')
    table.ask(pending)
    assert table.find(P1, b'"x"') is pending
    assert table.find(P1, b'"\\u0078"') is pending, "spelled otherwise, it is the same id"
    assert table.find(P2, b'"x"') is None, "another process means something else by it"

    table.settle(pending, Outcome.CANCELLED, None)

    assert table.find(P1, b'"x"') is None


@pytest.mark.parametrize("other", ["1.0", '"1"', "10", "-1"])
def test_ids_that_look_alike_are_not_the_same(other: str) -> None:
    table, pending = PendingRequests(IDS), request(1, "1")
    table.ask(pending)
    assert table.find(P1, other.encode()) is None


def test_newer_of_two_requests_under_one_id_is_found_when_the_older_settles() -> None:
    table, older, newer = PendingRequests(IDS), request(1, "5"), request(2, "5")
    table.ask(older)
    table.ask(newer)
    assert table.find(P1, b"5") is newer

    table.settle(older, Outcome.ANSWERED, "c1")

    assert table.find(P1, b"5") is newer
    assert newer.open


def test_they_are_listed_by_session_process_and_age_in_the_order_they_were_asked() -> None:
    table, s1, s2 = PendingRequests(IDS), session("s1"), session("s2")
    first = request(1, of=s1, asked_at=10)
    second = request(2, of=s2, process=P2, asked_at=20)
    third = request(3, of=s1, process=P2, asked_at=30)
    for pending in (first, second, third):
        table.ask(pending)

    assert table.of_session(s1) == [first, third]
    assert table.of_process(P2) == [second, third]
    assert table.waiting_since(30) == [first, second]

    table.settle(first, Outcome.REJECTED, None)

    assert table.of_session(s1) == [third]
    assert table.of_process(P1) == []
    assert table.waiting_since(100) == [second, third]


def test_a_cancelled_one_is_answered_in_the_words_of_its_kind_under_the_agents_id() -> None:
    def told(method: str) -> object:
        return json.loads(request(1, '"u-1"', method).cancellation())

    def success(result: object) -> object:
        return {"jsonrpc": "2.0", "id": "u-1", "result": result}

    assert told(PERMISSION) == success({"outcome": {"outcome": "cancelled"}})
    assert told(QUESTION) == success({"status": "cancelled"})
    assert told(ELICITATION) == success({"action": "cancel"})
    other = told("x/private")
    assert isinstance(other, dict)
    assert other["error"]["code"] == -32800


def test_a_rejected_one_is_answered_with_a_no_in_the_words_of_its_kind() -> None:
    def told(method: str) -> object:
        return json.loads(request(1, "0", method).rejection())

    def success(result: object) -> object:
        return {"jsonrpc": "2.0", "id": 0, "result": result}

    assert told(PERMISSION) == success({"outcome": {"outcome": "selected", "optionId": "no"}})
    assert told(QUESTION) == success({"status": "rejected"})
    assert told(ELICITATION) == success({"action": "decline"})
    other = told("x/private")
    assert isinstance(other, dict)
    assert "error" in other


@pytest.mark.parametrize(
    "params",
    [
        {},
        [],
        "text",
        {"options": None},
        {"options": {"reject_once": "no"}},
        {"options": [None, 1, "reject_once", []]},
        {"options": [{"kind": "reject_once"}]},
        {"options": [{"kind": "reject_once", "optionId": 7}]},
        {"options": [{"kind": "allow_once", "optionId": "reject_once"}]},
        {"options": [{"kind": "reject_always", "optionId": "never"}]},
    ],
)
def test_rejection_without_a_reject_once_option_is_a_cancellation(params: object) -> None:
    answer = json.loads(request(1, params=params).rejection())
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
