"""The shapes of ASGI: how headers are read."""

from sandbox_agent.http.asgi import group_headers


def test_a_header_that_is_there_twice_is_a_list_of_its_values() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"1"), (b"c", b"")]

    assert group_headers(headers) == {b"a": b"1, 3, 1", b"b": b"2", b"c": b""}
    assert group_headers(headers[:2]) == {b"a": b"1", b"b": b"2"}
