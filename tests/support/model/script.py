"""What the model says, and when. Knows no vendor's API and no HTTP.

A script is a list of steps, one for each time that the model is asked. Which script is played and which step of it
follows from the conversation alone: the newest marker that a user wrote, and the model's turns after it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.support.model.api import Request
    from tests.support.model.gate import Gate

Json = dict[str, Any]
_MARKER = re.compile(r"\[\[([\w-]+)\]\]")
_WORD = re.compile(r"\S+\s*|\s+")


class Say:
    """Text. Given in one piece it is streamed word by word; given in several, as they are; a gate holds the stream."""

    def __init__(self, *pieces: "str | Gate") -> None:
        match pieces:
            case (str(text),):
                self.pieces: tuple[str | Gate, ...] = tuple(_WORD.findall(text))
            case _:
                self.pieces = pieces

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def gates(self) -> "list[Gate]":
        return [piece for piece in self.pieces if not isinstance(piece, str)]


class Think(Say):
    """A thought; like text."""


@dataclass(frozen=True)
class Call:
    """A tool to be called. What has no JSON form (a custom tool of OpenAI) is a string."""

    tool: str
    arguments: Json | str = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The arguments as they travel."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Fail:
    """The request is answered with an error of the API."""

    status: int
    type: str
    message: str


Part = Say | Think | Call
Step = Part | Fail | Sequence[Part]


@dataclass(frozen=True)
class Turn:
    """What one side said at once. Results of tools have the role `tool`, whatever an API calls them."""

    role: Literal["user", "model", "tool", "system"]
    text: str


@dataclass(frozen=True)
class Conversation:
    """What a request told the model so far."""

    turns: tuple[Turn, ...]
    side_answer: str | None = None
    """What to answer when this is no turn of a session but a request on the side: a title, a suggestion."""


class Script:
    """One test's script."""

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = name
        self.steps = steps
        self.requests: list[Request] = []
        """The requests that were answered from this script, in the order in which they came."""

    @property
    def marker(self) -> str:
        """What a prompt must contain."""
        return f"[[{self.name}]]"


def has_marker(turn: Turn) -> bool:
    """Whether it is a user's prompt that names a script."""
    return turn.role == "user" and _MARKER.search(turn.text) is not None


def find(conversation: Conversation, scripts: Mapping[str, Script]) -> tuple[Script, int] | None:
    """The script that a conversation is in, and how many steps of it have been played."""
    turns = conversation.turns
    for index in range(len(turns) - 1, -1, -1):
        names = _MARKER.findall(turns[index].text) if turns[index].role == "user" else []
        known = [name for name in names if name in scripts]
        if known:
            return scripts[known[-1]], _runs_of_model(turns[index + 1 :])
    return None


def step_of(script: Script, number: int) -> list[Part] | Fail:
    """The step to play; a script that is at its end says so."""
    if number >= len(script.steps):
        return [Say(f"The script {script.name} has no step {number}.")]
    match script.steps[number]:
        case Fail() as fail:
            return fail
        case Say() | Call() as part:
            return [part]
        case parts:
            return list(parts)


def gates_of(parts: Sequence[Part]) -> "Iterator[Gate]":
    """Every gate in these parts, in order."""
    for part in parts:
        if isinstance(part, Say):
            yield from part.gates


def _runs_of_model(turns: Sequence[Turn]) -> int:
    # Several items in a row are one turn: some APIs write each call and each thought as a message.
    return sum(1 for role, _ in groupby(turns, key=lambda turn: turn.role) if role == "model")
