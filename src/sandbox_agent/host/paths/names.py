"""Names of files as text that JSON and an address can carry, and back. Pure.

A name is bytes. Those that are not UTF-8 are shown as characters of the private use area, U+EF80 to U+EFFF for the
bytes 80 to FF, one each; a name that really has such characters is shown with their bytes. So each name has one
spelling, and a client that sends it back gets that file.
"""

import os

_BYTES = range(0x80, 0x100)
_PRIVATE, _ESCAPED = 0xEF00, 0xDC00
_SHOWN: dict[int, str] = {_ESCAPED + byte: chr(_PRIVATE + byte) for byte in _BYTES} | {
    _PRIVATE + byte: "".join(chr(_PRIVATE + each) for each in chr(_PRIVATE + byte).encode()) for byte in _BYTES
}
_MEANT = {_PRIVATE + byte: _ESCAPED + byte for byte in _BYTES}


def encode_name(name: str) -> str:
    """A name or path of the host, as Python has it, in the spelling that clients see."""
    return name if name.isascii() else name.translate(_SHOWN)


def decode_name(text: str) -> str:
    """A name or path in a client's spelling, as Python has it. A text that cannot be a name stays as it is."""
    if text.isascii():
        return text
    try:
        return os.fsdecode(os.fsencode(text.translate(_MEANT)))
    except UnicodeEncodeError:
        return text
