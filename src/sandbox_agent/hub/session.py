"""A session: one conversation with one agent, and the turns in it. Pure: no I/O, no clock, no event loop."""

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import Raw

from sandbox_agent.envelope import Object, object_at, objects_at, text_at
from sandbox_agent.errors import QueueFull


class SessionFacts(msgspec.Struct, kw_only=True):
    """What is kept of a session on disk."""

    session_id: str
    agent_session_id: str
    """The agent's own id; differs only when two agents chose the same one."""
    agent: str
    cwd: str
    created_at: float
    updated_at: float
    alias: str | None = None
    title: str | None = None
    ended: bool = False
    can_resume: bool = False
    """Whether its agent can load or resume it; never again once it was terminated."""
    termination: Object | None = None
    turn: str | None = None
    """The turn that runs."""
    metadata: Object = {}
    opened_with: Raw = Raw(b"{}")
    """`params` of the request that made it, without secrets: what a resume needs again."""
    offers: Object = {}
    """`modes`, `models` and `configOptions` as the agent last told them."""


class Process(Protocol):
    """What a session knows of the process that holds its conversation."""

    @property
    def key(self) -> str: ...


@dataclass(slots=True, eq=False)
class Prompt:
    """One `session/prompt`, from its arrival until its turn ends."""

    tag: str
    """Who sent it."""
    line: bytes = field(repr=False)
    position: int
    """Of the prompt in the log."""

    @property
    def turn_id(self) -> str:
        return f"turn-{self.position}"


@dataclass(frozen=True, slots=True)
class Replay:
    """An agent repeats a session's past: for one connection, not for everybody attached."""

    channel: str
    """Who sees it; empty when the server itself resumes the session."""
    history: bool
    """The log has none of it: the agent knew the session before we did."""


@dataclass(slots=True, eq=False)
class Session:
    """A session as it is now: its facts, its process, its turns."""

    facts: SessionFacts
    process: Process | None = None
    """The process that holds the conversation in memory; None until it is resumed."""
    event_count: int = 0
    running: Prompt | None = None
    waiting: deque[Prompt] = field(default_factory=deque[Prompt])
    unechoed: Prompt | None = None
    """A prompt that the others have not been shown yet: the agent may echo it itself."""
    heard_at: float = 0.0
    """When its agent last said something for it."""
    replay: "Replay | None" = None
    """While a `session/load` runs at the agent."""

    @property
    def id(self) -> str:
        return self.facts.session_id

    @property
    def live(self) -> bool:
        return self.process is not None

    @property
    def terminated(self) -> bool:
        """Ended for good, by a client's wish."""
        return text_at(self.facts.termination, "reason") == "terminated"

    def check_queue(self, limit: int) -> None:
        """Raises QueueFull when no more prompts may wait."""
        if self.running is not None and len(self.waiting) >= limit:
            raise QueueFull(
                f"{limit} prompts wait in this session already; wait for one to end, or send session/cancel",
                sessionId=self.id,
                limit=limit,
            )

    def queue(self, prompt: Prompt) -> bool:
        """Take a prompt in; True when it may start at once."""
        if self.running is None:
            self.running = prompt
            return True
        self.waiting.append(prompt)
        return False

    def finish(self, prompt: Prompt) -> Prompt | None:
        """End a prompt's turn; gives the one that starts now."""
        if self.running is not prompt:
            return None
        self.running = self.waiting.popleft() if self.waiting else None
        return self.running

    def drop_waiting(self) -> list[Prompt]:
        dropped, self.waiting = list(self.waiting), deque()
        return dropped

    def end(self, termination: Object) -> None:
        self.process, self.running, self.unechoed, self.replay = None, None, None, None
        self.facts.ended = True
        self.facts.termination = termination

    def revive(self, process: Process) -> None:
        """A process holds it again."""
        self.process = process
        self.facts.ended, self.facts.termination = False, None

    @property
    def mode(self) -> str | None:
        current = text_at(self.facts.offers, "modes", "currentModeId")
        return current or text_at(self.option("mode"), "currentValue")

    @property
    def model(self) -> str | None:
        current = text_at(self.facts.offers, "models", "currentModelId")
        return current or text_at(self.option("model"), "currentValue")

    def option(self, category: str) -> Object | None:
        """The agent's config option of a category (`model`, `mode`), or the one of that id."""
        options = objects_at(self.facts.offers, "configOptions")
        for name in ("category", "id"):
            for option in options:
                if option.get(name) == category:
                    return option
        return None

    def models(self) -> Object:
        """`availableModels` and `currentModelId`, from the agent's `models` or its model option."""
        return self._choices("model", "modelId")

    def modes(self) -> Object:
        """`availableModes` and `currentModeId`, from the agent's `modes` or its mode option."""
        return self._choices("mode", "id")

    def _choices(self, category: str, id_name: str) -> Object:
        available, current = f"available{category.capitalize()}s", f"current{category.capitalize()}Id"
        offered = object_at(self.facts.offers, f"{category}s")
        if offered:
            return {available: offered.get(available), current: offered.get(current)}
        option = self.option(category)
        groups = objects_at(option, "options")
        values = [choice for group in groups for choice in objects_at(group, "options") or [group]]
        choices = [{id_name: one.get("value"), "name": one.get("name")} | _description(one) for one in values]
        return {available: choices, current: option.get("currentValue") if option else None}

    def learn_offers(self, result: Object) -> None:
        """Keep what an agent's answer says of modes, models and options."""
        for name in ("modes", "models", "configOptions"):
            if result.get(name) is not None:
                self.facts.offers[name] = result[name]

    def note_update(self, update: Object) -> bool:
        """Learn from one of the agent's updates; True when a kept fact changed."""
        match update.get("sessionUpdate"):
            case "session_info_update":
                self.facts.title = text_at(update, "title") or self.facts.title
            case "current_mode_update":
                modes = object_at(self.facts.offers, "modes")
                self.facts.offers["modes"] = modes | {"currentModeId": update.get("currentModeId")}
            case "config_option_update" if isinstance(update.get("configOptions"), list):
                self.facts.offers["configOptions"] = update["configOptions"]
            case _:
                return False
        return True


def _description(choice: Object) -> Object:
    return {"description": choice["description"]} if choice.get("description") else {}


def iso(at: float) -> str:
    """A point in time as clients read it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
