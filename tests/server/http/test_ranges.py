"""Parts of files: contract, section 13."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import RangeNotSatisfiable
from sandboxagent.server.http.downloads import Version, find_part, is_known


def version(size: int) -> Version:
    return Version('"tag"', 1_700_000_000.5, size)


@given(size=st.integers(0, 50), first=st.none() | st.integers(0, 60), last=st.none() | st.integers(0, 60))
def test_a_part_is_the_bytes_that_its_range_names(size: int, first: int | None, last: int | None) -> None:
    content = bytes(range(size))
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    if first is None:
        expected = None if last is None else content[max(size - last, 0) :]
    elif last is not None and last < first:
        expected = None
    else:
        expected = content[first : None if last is None else last + 1]
    if expected == b"":
        with pytest.raises(RangeNotSatisfiable) as refused:
            find_part({"range": header}, "/path", version(size))
        assert refused.value.fields["size"] == size
        return
    wanted = find_part({"range": header}, "/path", version(size))
    assert (None if wanted is None else content[wanted[0] : wanted[0] + wanted[1]]) == expected


@given(st.text(max_size=30))
def test_what_is_no_range_is_the_whole_file(text: str) -> None:
    if not text.lower().startswith("bytes="):
        assert find_part({"range": text}, "/path", version(10)) is None


def test_a_time_is_known_to_the_second() -> None:
    assert is_known({"if-modified-since": version(1).last_modified}, version(1))
    assert not is_known({"if-modified-since": "Tue, 14 Nov 2023 22:13:19 GMT"}, version(1))
    for wrong in ("", "today", "99 99 99", "Tue, 99 Nov 2023 22:13:19 GMT"):
        assert not is_known({"if-modified-since": wrong}, version(1))
