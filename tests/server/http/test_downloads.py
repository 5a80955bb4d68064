"""Files on their way out: contract, section 13."""

import pytest

from sandboxagent.server.http.downloads import content_disposition, media_type


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("page.html", "text/html"),
        ("photo.JPG", "image/jpeg"),
        ("data.json", "application/json"),
        ("notes", "application/octet-stream"),
        (".bashrc", "application/octet-stream"),
        ("source.tar.gz", "application/gzip"),
        ("dump.sql.xz", "application/x-xz"),
        ("odd.unknown-ending", "application/octet-stream"),
        ("data:text/html,x", "application/octet-stream"),
        ("http://host/page.html", "text/html"),
    ],
)
def test_a_type_is_known_by_the_name(name: str, expected: str) -> None:
    assert media_type(name) == expected


def test_no_name_breaks_out_of_its_header() -> None:
    for name in ('a"; filename="b', "a\r\nSet-Cookie: x", "a\\", "ä" * 100, "\uefff"):
        value = content_disposition(name)
        assert value.isascii()
        assert value.isprintable()
        assert value.count('"') == 2
