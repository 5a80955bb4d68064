"""Remember which idempotency keys may be on disk, with a few bits for each.

This is a Bloom filter: it may take a new key for a seen one, but never a seen key for a new one. It knows nothing of
the disk.
"""

from collections.abc import Iterable

Name = tuple[str, str]
"""The scope of a key, and the key."""

BITS_EACH = 16
"""Bits of the filter for each key. Each key sets three bits, and so one new key in two hundred looks like a seen
one."""
MIN_BITS, MAX_BITS = 1 << 19, 1 << 27
"""Limits of the filter's size in bits: 64 KiB to 16 MiB."""


class KeyFilter:
    """A Bloom filter: contains every name that was added, and few others."""

    __slots__ = ("_bits", "_mask", "room")

    def __init__(self, expected: int = 0) -> None:
        size = min(max(MIN_BITS, 1 << (2 * BITS_EACH * expected).bit_length()), MAX_BITS)
        self._bits = bytearray(size >> 3)
        self._mask = size - 1
        self.room = size // BITS_EACH
        """Number of names that can be added before too many others look as if they had been added."""

    def add(self, name: Name) -> None:
        bits, mask, number = self._bits, self._mask, hash(name)
        self.room -= 1
        for place in (number & mask, (number >> 18) & mask, (number >> 36) & mask):
            bits[place >> 3] |= 1 << (place & 7)

    def add_all(self, names: Iterable[Name]) -> None:
        for name in names:
            self.add(name)

    def __contains__(self, name: Name) -> bool:
        bits, mask, number = self._bits, self._mask, hash(name)
        first, second, third = number & mask, (number >> 18) & mask, (number >> 36) & mask
        return bool(
            bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & bits[third >> 3] >> (third & 7) & 1
        )
