"""What a command wrote: the newest bytes of it, as text. Pure."""

import codecs


class Output:
    """The newest bytes of what was written, as text."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._truncated = False

    def feed(self, data: bytes) -> None:
        self._kept += data
        # Twice as much is kept at times: to move the rest for each piece would cost far more.
        if len(self._kept) > 2 * self._limit:
            self._cut()

    def read(self, *, ended: bool) -> tuple[str, bool]:
        """The text, and whether more had been written. A character that has come in part is left for later."""
        self._cut()
        kept = bytes(self._kept)
        if self._truncated:
            kept = kept[_first_character(kept) :]
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, ended)
        encoded = text.encode()
        if len(encoded) > self._limit:
            # What stands for bytes that are no text is longer than they are.
            encoded = encoded[len(encoded) - self._limit :]
            return encoded[_first_character(encoded) :].decode(), True
        return text, self._truncated

    def _cut(self) -> None:
        excess = len(self._kept) - self._limit
        if excess > 0:
            del self._kept[:excess]
            self._truncated = True


def _first_character(data: bytes) -> int:
    """Where the first whole character begins in bytes that were cut somewhere."""
    # A character has four bytes at most: where there is none in four, this is no text.
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0 if len(data) > 3 else len(data))
