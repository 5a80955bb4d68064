"""The ids under which clients know what agents ask."""

from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.request_ids import RequestIds, asker, run_of

NAMES = st.from_regex(r"[a-z0-9-]{1,40}", fullmatch=True)


def test_no_two_runs_give_out_the_same_id() -> None:
    one, again = RequestIds("n1"), RequestIds("n1")
    id = one.make(7)
    assert one.position(id) == 7
    assert again.make(7) != id
    assert again.position(id) is None


@given(NAMES, st.integers(0, 2**63))
def test_it_leads_to_the_node_the_run_and_the_request(node: str, position: int) -> None:
    ids = RequestIds(node)
    id = ids.make(position)
    assert (asker(id), run_of(id), ids.position(id)) == (node, ids.run, position)


def test_id_of_a_server_without_fleet_leads_to_no_node() -> None:
    ids = RequestIds()
    assert (asker(ids.make(1)), run_of(ids.make(1)), ids.position(ids.make(1))) == (None, None, 1)


def test_it_has_one_spelling_but_for_escapes() -> None:
    ids = RequestIds("n", "r")
    assert ids.position(b'"rq\\u005fn.r.12"') == 12
    for other in ("rq_n.r.012", "rq_n.r.+12", "rq_n.r.1_2", "rq_n.r.", "rq_n.r.12 ", "rq_n.r.12.", "n.r.12", "rq_r.12"):
        assert ids.position(f'"{other}"'.encode()) is None, other
    for other in (b"12", b"null", b'"rq_n.r.\xd9\xa1"', b'"rq_n.r.' + b"1" * 5000 + b'"', b'"'):
        assert ids.position(other) is None, other


@given(st.text() | st.integers() | st.none(), st.text(), NAMES)
def test_text_that_is_no_id_leads_to_no_node(text: object, rest: str, node: str) -> None:
    for id in (repr(text), f'"{node}.{rest}"', f'"rq_{node}"', f'"rq_.{node}.1"', f'"rq_{node}..1"', f'"rq_{node}.r"'):
        assert asker(id.encode(errors="replace")) is None
