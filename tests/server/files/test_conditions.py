"""What a client expects of a file: contract, section 13."""

import os
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import BadRequest, FileChanged
from sandboxagent.server.files.entries import WriteCondition, etag, has_version, parse_tags


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("*", {"*"}),
        (' "a" , W/"b",""', {'"a"', 'W/"b"', '""'}),
        ('"with, comma"', None),
        ("a", BadRequest),
        ('"a', BadRequest),
        ('"a" "b"', BadRequest),
        ('*, "a"', BadRequest),
    ],
)
def test_tags_are_read_as_http_has_them(header: str | None, expected: object) -> None:
    if expected is BadRequest or header == '"with, comma"':
        with pytest.raises(BadRequest):
            parse_tags(header)
    else:
        assert parse_tags(header) == expected


def test_a_tag_changes_with_the_content_and_with_a_replacement(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    seen = {etag(file.stat())}
    file.write_text("longer")
    seen.add(etag(file.stat()))
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    seen.add(etag(file.stat()))
    (tmp_path / "new").write_text("longer")
    os.utime(tmp_path / "new", ns=(0, file.stat().st_mtime_ns))
    (tmp_path / "new").replace(file)
    seen.add(etag(file.stat()))
    assert len(seen) == 4


def test_what_is_expected_is_compared_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    facts = (tmp_path / "file").stat()
    tag = etag(facts)

    def holds(there: bool, match: str | None = None, none_match: str | None = None) -> bool:
        condition = WriteCondition(parse_tags(match), parse_tags(none_match))
        try:
            condition.check("/path", facts if there else None)
        except FileChanged as error:
            changed.append(error)
            return False
        return True

    changed: list[FileChanged] = []

    assert holds(True)
    assert holds(False)
    assert holds(True, match="*")
    assert holds(True, match=f'"x", {tag}')
    assert not holds(True, match='"x"')
    assert not holds(True, match=f"W/{tag}")
    assert [error.fields for error in changed] == [{"path": "/path", "etag": tag}] * 2
    assert not holds(False, match="*")
    assert changed[-1].fields == {"path": "/path"}
    assert holds(False, none_match="*")
    assert not holds(True, none_match="*")
    assert not holds(True, none_match=tag)
    assert holds(True, none_match='"x"')


def test_weak_tag_is_good_enough_for_reading() -> None:
    assert has_version('"a"', frozenset({'W/"a"'}))
    assert not has_version('"a"', frozenset({'"b"'}))
