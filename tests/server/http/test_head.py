"""A request's head, as far as HTTP itself is concerned. Contract, section 3."""

import pytest

from sandboxagent.protocol.errors import BadRequest, HeadersTooLarge
from sandboxagent.server.http.framing import body_length, check_head, without_upgrade

HOST = (b"host", b"a")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("target", [b"/", b"*", b"/a?b", b"http://a/", b"HTTP://A/x"])
def test_an_ordinary_head_passes(version: str, target: bytes) -> None:
    check_head(b"GET", target, version, [HOST])


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize("version", ["0.9", "2.0", "1.2"])
def test_another_version_is_refused(version: str) -> None:
    with pytest.raises(BadRequest):
        check_head(b"GET", b"/", version, [HOST])


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize("target", [b"/", b"a:80", b"http://a/", b"*"])
def test_a_tunnel_is_refused(target: bytes) -> None:
    with pytest.raises(BadRequest):
        check_head(b"CONNECT", target, "1.1", [HOST])


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize(
    ("version", "value"),
    [("1.0", b"chunked"), ("1.1", b"gzip, chunked"), ("1.1", b"gzip"), ("1.1", b"identity"), ("1.1", b"")],
)
def test_an_ambiguous_encoding_is_refused(version: str, value: bytes) -> None:
    with pytest.raises(BadRequest):
        check_head(b"POST", b"/", version, [HOST, (b"transfer-encoding", value)])


def test_chunked_is_known_in_any_case() -> None:
    check_head(b"POST", b"/", "1.1", [HOST, (b"transfer-encoding", b"Chunked")])


@pytest.mark.requirement("3.large-headers-431")
def test_more_than_200_headers_are_refused() -> None:
    check_head(b"GET", b"/", "1.1", [HOST] * 200)
    with pytest.raises(HeadersTooLarge):
        check_head(b"GET", b"/", "1.1", [HOST] * 201)


def test_the_length_of_a_body_is_counted_chunked_or_nothing() -> None:
    assert body_length([HOST, (b"content-length", b"12")]) == 12
    assert body_length([HOST, CHUNKED]) is None
    assert body_length([HOST]) == 0


def test_an_offer_of_another_protocol_is_left_out_and_all_else_stays() -> None:
    headers = [HOST, (b"connection", b"close, Upgrade"), (b"upgrade", b"h2c"), (b"http2-settings", b"x"), CHUNKED]

    assert without_upgrade(b"POST", b"/a?b", "1.0", headers) == (
        b"POST /a?b HTTP/1.0\r\nhost: a\r\nconnection: close, Upgrade\r\ntransfer-encoding: chunked\r\n\r\n"
    )
