"""What a request of OpenCode's programs says."""

import pytest
from starlette.requests import Request

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.params import Reading
from sandboxagent.adapters.opencode.paths import DIRECTORY


def request(header: bytes | None = None, query: bytes = b"") -> Request:
    named = {} if header is None else {DIRECTORY: header}
    return Request({"type": "http", "query_string": query, "headers_by_name": named})


@pytest.mark.parametrize("header", [b"/%FF", b"/w/%ED%B3%BF", b"/%C3", b"w", b"/%00"])
def test_a_directory_that_no_answer_could_name_is_refused(header: bytes) -> None:
    with pytest.raises(BridgeError) as refused:
        Reading(1000, "/base").directory(request(header))

    assert refused.value.status == 400
    assert refused.value.body["name"] == "BadRequest"


def test_default_directory_that_no_answer_could_name_is_refused() -> None:
    with pytest.raises(BridgeError):
        Reading(1000, "/base\udcff").directory(request())


def test_a_directory_is_named_by_the_query_or_the_header_or_is_the_servers_own() -> None:
    reading = Reading(1000, "/base")

    assert reading.directory(request(b"/w/%C3%A4/")) == "/w/ä"
    assert reading.directory(request(b"/w", b"directory=/q")) == "/q"
    assert reading.directory(request()) == "/base"
