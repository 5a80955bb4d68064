"""Names as text: contract, section 13."""

import os

from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent.host.paths.names import decode_name, encode_name

names = st.binary(min_size=1, max_size=30) | st.text(min_size=1, max_size=10).map(
    lambda text: text.encode(errors="replace")
)


@given(names)
def test_every_name_has_a_text_that_means_it_and_is_unicode(name: bytes) -> None:
    text = encode_name(os.fsdecode(name))
    assert text.encode().decode() == text
    assert os.fsencode(decode_name(text)) == name


@given(names, names)
def test_no_two_names_have_the_same_text(one: bytes, other: bytes) -> None:
    assert (encode_name(os.fsdecode(one)) == encode_name(os.fsdecode(other))) == (one == other)


def test_a_byte_is_shown_as_its_own_character_and_other_names_as_they_are() -> None:
    assert encode_name(os.fsdecode(b"caf\xe9")) == "caf\uefe9"
    assert encode_name("grün 𝄞") == "grün 𝄞"
    assert encode_name("\uefe9") == "\uefee\uefbf\uefa9"
    assert decode_name(os.fsdecode(b"caf\xe9")) == os.fsdecode(b"caf\xe9")


def test_what_can_be_no_name_stays_for_others_to_refuse() -> None:
    assert decode_name("a\ud800") == "a\ud800"
