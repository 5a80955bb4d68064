"""Represent one conversation with one agent: its facts, its state and its queue of prompts.

Pure: no I/O, no clock, no event loop.

The process that holds it is, as the hub sees it, something to send requests and answers to.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from sandboxagent.protocol.envelope import Object, Places, notification, parse, text_at
from sandboxagent.protocol.errors import InvalidRequest, QueueFull
from sandboxagent.server.agents import options as choices
from sandboxagent.server.agents.dialects.dialect import Dialect
from sandboxagent.server.agents.handshake import Handshake
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.options import MODE, MODEL, Category
from sandboxagent.server.log.event import session_channel
from sandboxagent.server.log.session_index import IndexEntry
from sandboxagent.server.sessions import lifecycle
from sandboxagent.server.sessions.activity import Activity, Recent
from sandboxagent.server.sessions.lifecycle import AT_REST, DELETED, ENDED, HELD, OVER, Event, State, Transition

logger = logging.getLogger(__name__)


class Process(Protocol):
    """`agents.boot.RunningAgent`, or a fake of one in a test."""

    agent: Agent
    handshake: Handshake
    """What it answered to `initialize`."""
    dialect: Dialect
    """How it asks people."""
    echoes_prompts: bool | None
    """Whether it repeats prompts as user_message_chunk; None until it has shown it."""

    environment: Mapping[str, str]
    """What was added to its environment for the one session that it is for; may be secret."""
    alone: bool
    """It is for one session, and ends with it."""

    @property
    def key(self) -> str:
        """Its name; no other process of this server ever has the same."""
        ...

    @property
    def alive(self) -> bool: ...

    def send(self, line: bytes) -> None:
        """Write a line to its stdin; raises AgentExited or AgentNotReading."""
        ...

    def answer(self, line: bytes) -> None:
        """Send it an answer to what it asked, by the way the question came; raises as `send` does."""
        ...

    def pause_reading(self) -> None:
        """Do not read its stdout for now."""
        ...

    def resume_reading(self) -> None: ...


TERMINATED: Object = {"reason": "terminated", "terminatedBy": "daemon"}
"""Why a session ended that a client terminated."""
OFFERS_BYTES = 1 << 20
"""Modes, models and options of a session that take more, as JSON, are passed on and not kept."""
MAX_TITLE = 4096
"""Characters that are kept of a title."""
MAX_REMARKS = 8
"""Of what people said about refusals, as many wait for the next prompt."""


class SessionFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
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
    """No process holds it. Follows from its state, as the two below do."""
    can_resume: bool = False
    """Whether its agent can load or resume it; never again once it was terminated."""
    termination: Object | None = None
    """How it ended."""
    turn: str | None = None
    """The turn that runs."""
    prompt_id: str | None = None
    """What the client calls the prompt of that turn."""
    ruled_as: str | None = None
    """The permission mode that rules stand in for, because its agent has none like it."""
    metadata: Object = {}
    opened_with: Raw = Raw(b"{}")
    """`params` of the request that made it, without secrets: what a resume needs again."""
    held_by: str | None = None
    """The process that holds it or held it last: only that one may still send updates for it."""
    creator: str | None = None
    """Tag of the connection that opened or resumed it: the one that may serve its files and terminals."""
    event_count: int = 0
    counted_through: int = 0
    """Events in its history, up to a position; those after it are counted when it is read back."""
    told_at: float = 0.0
    """When its agent last announced its offers."""
    left_out: list[str] = []
    """Facts that an earlier server kept and that are nested too deep to be shown: they are not here any more."""
    remarks: list[str] = []
    """Why people refused what its agent asked for, as far as the agent does not know: the next prompt says so."""
    own_environment: bool = False
    """A client gave it variables, which are not kept: without them, no process may take it up."""
    activity: Activity = msgspec.field(default_factory=Activity)
    offers: Object = {}
    """`modes`, `models` and `configOptions` as the agent last announced them."""


class Prompt(Struct, eq=False):
    """One `session/prompt`, from its arrival until its turn ends."""

    session_id: str
    tag: str
    """Who sent it."""
    line: bytes
    position: int
    """Of the prompt in the log."""
    prompt_id: str | None = None
    """What its client calls it."""
    places: Places | None = None
    """Of a large one."""

    def __repr__(self) -> str:
        return f"Prompt({self.session_id}, {self.position})"

    @property
    def turn_id(self) -> str:
        return f"turn-{self.position}"


class Replay(Struct):
    """An agent replays a session's history: for one connection, not for all attached ones."""

    channel: str
    """Who sees it; empty when the server itself resumes the session."""
    history: bool
    """The log has none of it: the agent knew the session before we did."""
    finished: bool = False
    """The agent has announced its commands, which it does last."""
    when_finished: Callable[[], None] | None = None

    def finish(self) -> None:
        self.finished = True
        if self.when_finished is not None:
            self.when_finished()


class Session(Struct, eq=False, weakref=True):
    """A session as it is now: its facts, its process, its turns."""

    facts: SessionFacts
    state: State = State.STARTING
    process: Process | None = None
    """The process that holds the conversation, or was asked to take it up; None while the session is at rest."""
    event_count: int = 0
    running: Prompt | None = None
    waiting: list[Prompt] = []
    turn_started_at: float | None = None
    """When the turn that runs, or the last one, was started."""
    recent: Recent = field(default_factory=Recent)
    unechoed: Prompt | None = None
    """A prompt that other clients have not seen yet: the agent may echo it itself."""
    heard_at: float = 0.0
    """When its agent last said something for it."""
    replay: "Replay | None" = None
    """While a `session/load` runs at the agent."""
    unsaved: bool = False
    """The disk does not know yet how many events it has, and when the last one came."""
    saved_card: IndexEntry | None = None
    saved_offers: object = None
    """What was saved last, so that only what has changed is written and dated anew."""
    id: str = ""
    """By its facts."""
    channel: str = ""
    """Where attached clients see what happens in it."""
    _told_offers: Object = {}
    """What clients were sent last in an answer."""
    _told_mode: str | UnsetType | None = UNSET
    _has_too_many_offers: bool = False
    _told_options: object = UNSET
    """What updates have said since; unset when there were none."""

    def __post_init__(self) -> None:
        self.id, self._told_offers = self.facts.session_id, self.facts.offers
        self.channel = session_channel(self.id)

    @property
    def directories(self) -> list[str]:
        """`cwd` and `additionalDirectories`: where its agent may use files."""
        opened = parse(notification("opened", self.facts.opened_with)).params()
        given = opened.get("additionalDirectories")
        more = cast("list[object]", given) if isinstance(given, list) else []
        return [self.facts.cwd, *(path for path in more if isinstance(path, str) and path.startswith("/"))]

    def note_reopened(self, cwd: str, params: Raw) -> None:
        """It was taken up again, perhaps in another directory."""
        self.facts.cwd, self.facts.opened_with = cwd, params

    # Its life

    @property
    def live(self) -> bool:
        """A process has the conversation in memory."""
        return self.state in lifecycle.LIVE

    @property
    def held(self) -> Process | None:
        """The process that takes requests for it now."""
        return self.process if self.state is HELD else None

    @property
    def over(self) -> bool:
        """A client has ended it for good, or is about to have."""
        return self.state in OVER

    @property
    def deleted(self) -> bool:
        return self.state is DELETED

    def allows(self, event: Event) -> bool:
        return lifecycle.allows(self.state, event)

    def move(self, event: Event, process: Process | None = None, termination: Object | None = None) -> Transition:
        """Apply an event; `Hub.move` carries out the effects. Raises IllegalMove."""
        move = lifecycle.move(self.state, event, resumable=self.facts.can_resume)
        if move.state is self.state:
            return move
        self.state = move.state
        self.process = process or self.process
        match self.state:
            case State.HELD:
                self.facts.ended, self.facts.termination = False, None
            case State.TERMINATED:
                self.facts.ended, self.facts.can_resume, self.facts.termination = True, False, TERMINATED
            case State.INTERRUPTED | State.ENDED:
                self.facts.ended = True
                self.facts.termination = termination or self.facts.termination
            case _:
                pass
        if self.state in AT_REST:
            self.process, self.running, self.unechoed = None, None, None
            # An agent that took too long may still repeat the past, which the log has.
            self.replay = self.replay if event is Event.FAILED else None
        return move

    def check_revivable(self) -> None:
        """Raises InvalidRequest when no process can be asked to take it up again now."""
        self.check_promptable()
        if not self.allows(Event.REVIVE):
            raise InvalidRequest(
                f"the agent was asked to load session {self.id} and has not answered yet; try again later",
                sessionId=self.id,
            )

    def check_environment(self, environment: Mapping[str, str]) -> None:
        """Raises InvalidRequest when it had variables of its own and would now run without: with others' keys."""
        if self.facts.own_environment and not environment:
            raise InvalidRequest(
                f"session {self.id} was opened with an environment of its own, which is not kept; take it up again "
                "with session/load or session/resume, and env",
                sessionId=self.id,
            )

    def check_promptable(self) -> None:
        """Raises InvalidRequest when no prompt will ever run in it."""
        if self.state is ENDED or self.over:
            raise self.ended_error()

    def ended_error(self) -> InvalidRequest:
        return InvalidRequest(
            f"session {self.id} has ended and cannot be resumed; start a new one with session/new", sessionId=self.id
        )

    # Its turns

    def check_queue(self, limit: int) -> None:
        """Raises QueueFull when no more prompts may wait."""
        room = limit if self.running is not None else limit + 1
        if len(self.waiting) >= room:
            raise QueueFull(
                f"{limit} prompts wait in this session already; wait for one to end, or send session/cancel",
                sessionId=self.id,
                limit=limit,
            )

    def start_next(self) -> Prompt | None:
        """Make the first prompt that waits the running one; None when there is none, or it has to go on waiting."""
        if self.next_prompt is not None:
            self.running = self.waiting.pop(0)
            return self.running
        return None

    @property
    def next_prompt(self) -> Prompt | None:
        """The first prompt that waits, when nothing of the session's own hinders it from running."""
        if self.state is not HELD or self.running is not None or not self.waiting:
            return None
        return self.waiting[0]

    def finish(self, prompt: Prompt) -> None:
        """Take a prompt out, whether it runs or waits."""
        if self.running is prompt:
            self.running = None
        elif prompt in self.waiting:
            self.waiting.remove(prompt)

    @property
    def mode(self) -> str | None:
        return choices.find_current(self.facts.offers, MODE)

    @property
    def model(self) -> str | None:
        return choices.find_current(self.facts.offers, MODEL)

    def models(self) -> Object:
        """`availableModels` and `currentModelId`, whichever shape the agent uses."""
        return choices.listing(self.facts.offers, MODEL)

    def modes(self) -> Object:
        """`availableModes` and `currentModeId`, whichever shape the agent uses."""
        return choices.listing(self.facts.offers, MODE)

    def config_options(self) -> list[Object]:
        """All options, those for mode and model among them, whichever shape the agent uses."""
        return choices.list_options(self.facts.offers)

    def learn_offers(self, sent: Object) -> bool:
        """Merge what an agent says about modes, models and options; False when that is too much to be kept."""
        return self._keep_offers(choices.merge_offers(self.facts.offers, sent))

    def choose(self, category: Category, value: str) -> bool:
        """The agent has taken a mode or a model; False when its name is too much to be kept."""
        return self._keep_offers(choices.choose(self.facts.offers, category, value))

    def _keep_offers(self, offers: Object) -> bool:
        size = len(msgspec.json.encode(offers))
        if size <= OFFERS_BYTES:
            self.facts.offers = offers
            return True
        if not self._has_too_many_offers:
            # Once: its agent may go on for ever.
            self._has_too_many_offers = True
            logger.warning("offers of a session are not kept session=%s bytes=%d limit=%d", self.id, size, OFFERS_BYTES)
        return False

    def note_update(self, update: Object) -> bool:
        """Learn from one of the agent's updates; True when a kept fact changed."""
        match update:
            case {"sessionUpdate": "session_info_update"}:
                self.facts.title = (text_at(update, "title") or self.facts.title or "")[:MAX_TITLE] or None
            case {"sessionUpdate": "current_mode_update", "currentModeId": str(mode)}:
                is_kept = self.choose(MODE, mode)
                if self.replay is None and is_kept:
                    self._told_mode = mode
            case {"sessionUpdate": "config_option_update", "configOptions": list()}:
                if self.learn_offers(update) and self.replay is None:
                    self._told_options = update["configOptions"]
            case {"sessionUpdate": "usage_update"}:
                self.facts.activity.note_usage(update)
                return False
            case _:
                return False
        return True

    def add_remark(self, remark: str) -> None:
        """Keep why a person refused something until the next prompt."""
        self.facts.remarks = [*self.facts.remarks, remark][-MAX_REMARKS:]

    def note_said(self) -> None:
        """Keep what its agent said last, in place of the updates that have it."""
        last = self.recent.last_line()
        if last is not None:
            self.facts.activity.kind, self.facts.activity.said = last
        self.recent.clear()

    def note_vendor(self, params: Object) -> bool:
        """Learn from a vendor notification that uses ACP's names for these things."""
        found = [(category, text_at(params, category.current)) for category in choices.CATEGORIES]
        for category, value in found:
            if value is not None:
                self.choose(category, value)
        return any(value is not None for _, value in found)

    def take_unreported_changes(self) -> list[Object]:
        """Updates for changes of mode and options that no update has reported yet. Marks them as reported."""
        mode, options = _mode_and_options(self.facts.offers)
        told_mode, told_options = _mode_and_options(self._told_offers)
        told_mode = told_mode if self._told_mode is UNSET else self._told_mode
        told_options = told_options if self._told_options is UNSET else self._told_options
        self.mark_reported()
        updates: list[Object] = []
        if mode not in (None, told_mode):
            updates.append({"sessionUpdate": "current_mode_update", "currentModeId": mode})
        if options not in (None, told_options):
            updates.append({"sessionUpdate": "config_option_update", "configOptions": options})
        return updates

    def mark_reported(self) -> None:
        """Mark everything as reported."""
        self._told_offers, self._told_mode, self._told_options = self.facts.offers, UNSET, UNSET


def _mode_and_options(offers: Object) -> tuple[str | None, object]:
    return choices.find_current(offers, MODE), choices.complete_offers(offers).get(choices.OPTIONS)


def iso(at: float) -> str:
    """A point in time as clients read it."""
    moment = datetime.fromtimestamp(at, UTC)
    # In a third of the time that `isoformat` takes; a page of sessions has hundreds. A fraction of zero is left out.
    text: str = msgspec.to_builtins(moment)
    return f"{text[:23]}Z" if moment.microsecond else f"{text[:19]}.000Z"
