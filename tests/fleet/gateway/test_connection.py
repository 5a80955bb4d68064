"""What a gateway knows of one client is that client's alone."""

import pytest

from sandboxagent.fleet.gateway import connection as connection_module
from sandboxagent.fleet.gateway.connection import FleetConnection, ResponsePromise


def _connection() -> FleetConnection:
    return FleetConnection("id", "tag", "mock", 0.0)


def test_notes_of_one_connection_are_not_in_another() -> None:
    one, other = _connection(), _connection()
    one.note_asked(b"1", "n", promised_by="run", after=3)
    one.note_attaching(b"2", 4)
    one.note_requests({b'"rq_n.r.1"': "s"})
    one.note_settled([b'"rq_n.r.2"'])
    one.note_attached("s", "n", 5)
    one.note_attached("s", "n", 7)
    one.note_gone("t", 8, 9)
    assert (one.asked, one.unanswered) == ({b"1": ("n",)}, {b"1": ResponsePromise("n", "run", 3)})
    assert (one.attached_by, one.attached_again) == ({"s": "n"}, {"s": 7})
    assert (one.gone, one.attached_since("s")) == ({"t": [(8, 9)]}, 7)
    assert [list(table) for table in (*one.requests.values(), *one.settled.values())] == [
        [b'"rq_n.r.1"'],
        [b'"rq_n.r.2"'],
    ]
    for each in (other, _connection()):
        nothing = (each.asked, each.unanswered, each.attaching, each.requests, each.settled)
        assert not any((*nothing, each.attached_by, each.attached_again, each.gone, each.windows))


def test_forgotten_promises_and_ended_attachments_are_gone() -> None:
    one = _connection()
    one.note_promise(b"1", ResponsePromise("n", "run", 3))
    one.note_promise(b"1", ResponsePromise("n", "another", 3))
    assert one.unanswered[b"1"].run == "run"
    one.forget_promises([b"1", b"2"])
    one.note_attached("s", "n", 5)
    one.note_attached("s", "n", 7)
    one.end_attachment("s", 9)
    assert not any((one.unanswered, one.attached_by, one.attached_again, one.attached("s")))


def test_each_node_attaches_a_client_to_so_many_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_ATTACHED", 2)
    one = _connection()
    for session_id, node in (("a", "n"), ("b", "m"), ("c", "n")):
        assert not one.is_full(node)
        one.note_attached(session_id, node, 1)
    assert (one.is_full("n"), one.is_full("m"), one.is_full("o")) == (True, False, False)
    one.end_attachment("a", 2)
    assert not one.is_full("n")
