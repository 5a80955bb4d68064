"""Describe the options of a question, and which typed text answers it without Enter.

Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandboxagent.cli.chat.blocks import Line

KEY_TIMEOUT = 0.4
"""Seconds without another key after which a key answers: the user may type a word, such as `yes`."""
REASON_TIMEOUT = 1.2
"""Seconds without another key after which a key answers that may be followed by a reason."""
MAX_ROWS = 12
"""Maximum number of rows of options that are drawn below the question. More are printed as text."""


@dataclass(frozen=True, slots=True)
class Menu:
    """The options of a question, and the keys that answer it."""

    rows: Sequence[Line] = ()
    """The options, one line for each, for the arrow keys. They are typed as numbers, from 1."""
    below: Sequence[Line] = ()
    """Lines below the options."""
    several: bool = False
    """Whether several options can be chosen, with the space bar."""
    keys: frozenset[str] = frozenset()
    """Texts that answer without Enter."""
    reasons: frozenset[str] = frozenset()
    """Those keys that a reason may follow."""
    echo: Callable[[str], str] = str
    """Turns a typed answer into the text to show of it."""

    def timeout(self, typed: str) -> float | None:
        """Return the seconds after which a typed text answers without Enter; None if it needs Enter."""
        if typed not in self.keys:
            return None
        return REASON_TIMEOUT if typed in self.reasons else KEY_TIMEOUT

    def move(self, chosen: int | None, step: int) -> int | None:
        """Return the option after or before the chosen one. The first step chooses the first or the last option."""
        if not self.rows:
            return None
        if chosen is None:
            return 0 if step > 0 else len(self.rows) - 1
        return (chosen + step) % len(self.rows)

    @staticmethod
    def toggle(typed: str, chosen: int) -> str:
        """Add the number of an option to a typed list of numbers, or remove it."""
        numbers = [part.strip() for part in typed.split(",") if part.strip()]
        number = str(chosen + 1)
        kept = [each for each in numbers if each != number]
        return ", ".join(kept if number in numbers else [*numbers, number])
