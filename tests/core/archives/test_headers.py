"""Headers of tar archives: what counts of them, and that nothing else is kept, however much there is."""

import io
import tarfile
import tracemalloc
from typing import NoReturn

import pytest

from sandboxagent.core.archives.tar import MAX_EXTENDED_BYTES, MAX_GLOBAL_BYTES, Headers
from sandboxagent.core.archives.tree import Damaged
from tests.support.archives import extended, header, member, records

MIB = 1 << 20


class Refused(Exception):
    pass


def refuse(name: str, rule: str, **facts: object) -> NoReturn:
    raise Refused(name, rule, facts)


def entries(*blocks: bytes) -> list[tuple[str, int, str]]:
    stream = io.BytesIO(b"".join(blocks))
    found: list[tuple[str, int, str]] = []
    for each in Headers(stream, refuse):
        stream.seek(each.size, io.SEEK_CUR)
        found.append((each.name, each.size, each.linkname))
    return found


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_sizes_are_those_that_a_program_wrote(format: int) -> None:
    long = "folder/" * 12 + "long" * 20 if format == tarfile.USTAR_FORMAT else "folder/" * 100 + "grün\udcff" * 20
    target = "t" * 90 if format == tarfile.USTAR_FORMAT else "t" * 400
    link, _ = member("link", type=tarfile.SYMTYPE, to=target)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, errors="surrogateescape") as archive:
        for info, content in (member("a", b"x" * 700), member(long, b"y" * 512), (link, b""), member("last")):
            archive.addfile(info, io.BytesIO(content))
    assert entries(buffer.getvalue()) == [("a", 700, ""), (long, 512, ""), ("link", 0, target), ("last", 0, "")]


def test_a_size_in_an_extended_header_counts() -> None:
    content = b"x" * 1024
    assert entries(extended(size="1024"), header("a"), content, header("b")) == [("a", 1024, ""), ("b", 0, "")]


def test_what_a_header_for_all_entries_says_is_passed_over() -> None:
    said = extended(type=tarfile.XGLTYPE, comment="0" * 40)
    assert entries(said, header("a"), said, header("b")) == [("a", 0, ""), ("b", 0, "")]


@pytest.mark.parametrize("keyword", ["path", "linkpath", "size", "GNU.sparse.size"])
def test_no_header_gives_all_entries_one_name_or_size(keyword: str) -> None:
    with pytest.raises(Damaged, match="all entries"):
        entries(extended(type=tarfile.XGLTYPE, **{keyword: "1"}), header("a"))


@pytest.mark.parametrize("type", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_claims_much_is_refused_before_it_is_read(type: bytes) -> None:
    stream = io.BytesIO(header("a") + header("x", type=type, size=1 << 40))
    with pytest.raises(Refused) as refused:
        list(Headers(stream, refuse))
    rule = f"is followed by headers of more than {MAX_EXTENDED_BYTES} bytes"
    assert refused.value.args == ("a", rule, {"limit": MAX_EXTENDED_BYTES})
    assert stream.tell() == 1024


def test_headers_of_one_entry_are_counted_together() -> None:
    passed_over = extended(type=tarfile.XGLTYPE, comment="x")
    with pytest.raises(Refused, match="begins with headers"):
        entries(*[passed_over] * 100, header("a"))


def test_many_records_for_all_entries_take_no_memory_and_no_more_than_a_bound() -> None:
    distinct = [extended(type=tarfile.XGLTYPE, **{f"k{n}-{i}": "" for i in range(4000)}) for n in range(10)]
    data = b"".join(said + header("f") for said in distinct)
    tracemalloc.start()
    try:
        entries(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + MIB // 2
    finally:
        tracemalloc.stop()
    with pytest.raises(Refused, match="for all entries of more than"):
        entries(data * (MAX_GLOBAL_BYTES // len(data) + 2))


@pytest.mark.parametrize(
    "body",
    [
        b"no number path=a\n",
        b"0 path=a\n",
        b"99 path=a\n",
        b"8 path=a\n",
        b"9 path:ab\n",
        b"5 =a\n",
        b"-9 path=a\n",
        b"10 path=ab\n\0\0",
        b"9" * 40 + b" path=a\n",
    ],
)
def test_a_record_that_makes_no_sense_is_damage(body: bytes) -> None:
    with pytest.raises(Damaged, match="record"):
        entries(header("x", type=tarfile.XHDTYPE, size=len(body)), body.ljust(512, b"\0"), header("a"))


def test_two_extended_headers_of_one_kind_are_damage() -> None:
    with pytest.raises(Damaged, match="two"):
        entries(extended(path="a"), extended(path="b"), header("c"))


@pytest.mark.parametrize("size", ["-1", "1e3", " 5", "9" * 40])
def test_a_size_that_is_no_number_is_damage(size: str) -> None:
    with pytest.raises(Damaged, match="no number"):
        entries(extended(size=size), header("a"))


def test_an_archive_that_ends_in_a_header_is_damage() -> None:
    whole = extended(path="a") + header("b")
    for cut in (512, 700, 1024, 1200):
        with pytest.raises(Damaged):
            entries(whole[:cut])
    with pytest.raises(Damaged, match="empty"):
        entries(b"")


def test_records_are_as_tarfile_writes_them() -> None:
    info, _ = member("a" * 200)
    assert records(path="a" * 200) in info.tobuf(tarfile.PAX_FORMAT)
