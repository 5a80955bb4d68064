"""Represent one conversation with one agent: its facts, its state and its queue of prompts.

Pure: no I/O, no clock, no event loop. `Process` is the hub's view of the agent process that holds a session.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from sandboxagent.protocol.envelope import Object, ReplaceableRanges, notification, parse, text_at
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
    """An agent process to which the hub sends requests and answers.

    The server's is `RunningAgent` of `server/agents/running`; tests have fakes.
    """

    agent: Agent
    handshake: Handshake
    """The process's answer to `initialize`."""
    dialect: Dialect
    """Translates the requests with which the agent asks people, and their answers."""
    echoes_prompts: bool | None
    """Whether the agent repeats prompts as user_message_chunk; None until its behaviour is known."""

    environment: Mapping[str, str]
    """Variables added to its environment for its only session. They may be secret."""
    alone: bool
    """Whether the process is for one session, and ends with that session."""

    @property
    def key(self) -> str:
        """The process's unique name: no other process of this server ever has the same."""
        ...

    @property
    def alive(self) -> bool: ...

    def send(self, line: bytes) -> None:
        """Write a line to its stdin; raises AgentExited or AgentNotReading."""
        ...

    def answer(self, line: bytes) -> None:
        """Send an answer to a request of the process, over the channel of that request. Raises as `send` does."""
        ...

    def pause_reading(self) -> None:
        """Stop reading its stdout, until `resume_reading`."""
        ...

    def resume_reading(self) -> None: ...


TERMINATED: Object = {"reason": "terminated", "terminatedBy": "daemon"}
"""Termination info of a session that a client terminated."""
MAX_OFFERS_BYTES = 1 << 20
"""Maximum bytes, as JSON, of a session's modes, models and options. Larger ones are passed on, but not kept."""
MAX_TITLE = 4096
"""Maximum characters of a title."""
MAX_REMARKS = 8
"""Maximum number of remarks on refusals that wait for the next prompt. The newest are kept."""


class SessionFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A session's record on disk."""

    session_id: str
    agent_session_id: str
    """The agent's own id. It differs from `session_id` only if another session has that id or alias already."""
    agent: str
    cwd: str
    created_at: float
    updated_at: float
    alias: str | None = None
    title: str | None = None
    ended: bool = False
    """Whether no process holds the session. It follows from the state, as the two fields below do."""
    can_resume: bool = False
    """Whether the agent can load or resume the session; False for good once a client has terminated it."""
    termination: Object | None = None
    """The termination info; None if the session has not ended."""
    turn: str | None = None
    """Id of the running turn."""
    prompt_id: str | None = None
    """The client's own id of that turn's prompt."""
    ruled_as: str | None = None
    """The permission mode that rules implement, because the agent has no such mode."""
    metadata: Object = {}
    opened_with: Raw = Raw(b"{}")
    """`params` of the request that opened it, without secrets. A resume sends some of them again."""
    held_by: str | None = None
    """Name of the process that holds it, or held it last. Only that process may still send updates for it."""
    creator: str | None = None
    """Tag of the connection that opened or resumed it. With `--client-fs`, it may answer about files and terminals."""
    event_count: int = 0
    counted_through: int = 0
    """Log position up to which `event_count` is right. Later events are counted when the record is read."""
    told_at: float = 0.0
    """Time at which the agent last announced its modes, models or options."""
    left_out: list[str] = []
    """Names of facts from an earlier server that were dropped, because they were nested too deep to be shown."""
    remarks: list[str] = []
    """People's reasons for refusals that the agent does not know yet. The next prompt contains them."""
    own_environment: bool = False
    """Whether a client gave the session environment variables.

    They are not kept. Without them, no process may resume the session.
    """
    activity: Activity = msgspec.field(default_factory=Activity)
    offers: Object = {}
    """`modes`, `models` and `configOptions` as the agent last announced them."""


class Prompt(Struct, eq=False):
    """One `session/prompt`, from its arrival until its turn ends."""

    session_id: str
    tag: str
    """Tag of the connection that sent the prompt."""
    line: bytes
    position: int
    """Position of the prompt in the log."""
    prompt_id: str | None = None
    """The client's own id of the prompt."""
    places: ReplaceableRanges | None = None
    """Byte ranges that the server may replace; only for a large prompt."""

    def __repr__(self) -> str:
        return f"Prompt({self.session_id}, {self.position})"

    @property
    def turn_id(self) -> str:
        return f"turn-{self.position}"


class Replay(Struct):
    """An agent's replay of a session's history, for one connection and not for all attached ones."""

    channel: str
    """Channel of the connection that sees the replay; empty if the server itself resumes the session."""
    history: bool
    """Whether the replay becomes part of the log, because the session is new to the server."""
    finished: bool = False
    """Whether the agent has announced its commands, which it does last."""
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
    """The process that holds the conversation, or was asked to resume it; None while the session is at rest."""
    event_count: int = 0
    running: Prompt | None = None
    waiting: list[Prompt] = []
    turn_started_at: float | None = None
    """Start time of the running turn, or else of the last one."""
    recent: Recent = field(default_factory=Recent)
    unechoed: Prompt | None = None
    """The prompt that other clients have not seen yet, because the agent may echo it itself."""
    heard_at: float = 0.0
    """Monotonic time of the agent's last output for the session."""
    replay: "Replay | None" = None
    """The replay, while the agent loads or resumes the session."""
    unsaved: bool = False
    """Whether the record on disk lacks the latest event count and time."""
    saved_card: IndexEntry | None = None
    """The index entry that was saved last: it is written again only if it changes."""
    saved_offers: object = None
    """The offers that were saved last: `told_at` is updated only if they change."""
    id: str = ""
    """`session_id` of the facts."""
    channel: str = ""
    """Channel of the session's events for attached clients."""
    _told_offers: Object = {}
    """The offers that clients know from the last answer or report."""
    _told_mode: str | UnsetType | None = UNSET
    """The mode in the agent's newest update since then; unset if there was none."""
    _has_too_many_offers: bool = False
    _told_options: object = UNSET
    """The options in the agent's newest update since then; unset if there was none."""

    def __post_init__(self) -> None:
        self.id, self._told_offers = self.facts.session_id, self.facts.offers
        self.channel = session_channel(self.id)

    @property
    def directories(self) -> list[str]:
        """`cwd` and `additionalDirectories`: the directories in which the agent may use files."""
        opened = parse(notification("opened", self.facts.opened_with)).params()
        given = opened.get("additionalDirectories")
        more = cast("list[object]", given) if isinstance(given, list) else []
        return [self.facts.cwd, *(path for path in more if isinstance(path, str) and path.startswith("/"))]

    def note_reopened(self, cwd: str, params: Raw) -> None:
        """Note that the session was loaded or resumed, perhaps in another directory."""
        self.facts.cwd, self.facts.opened_with = cwd, params

    # State

    @property
    def live(self) -> bool:
        """Whether a process has the conversation in memory."""
        return self.state in lifecycle.LIVE

    @property
    def held(self) -> Process | None:
        """The process that accepts requests for the session; None if there is none."""
        return self.process if self.state is HELD else None

    @property
    def over(self) -> bool:
        """Whether a client has ended the session for good, or is about to."""
        return self.state in OVER

    @property
    def deleted(self) -> bool:
        return self.state is DELETED

    def allows(self, event: Event) -> bool:
        return lifecycle.allows(self.state, event)

    def move(self, event: Event, process: Process | None = None, termination: Object | None = None) -> Transition:
        """Apply an event, and return the transition, whose effects `Hub.move` carries out. Raises IllegalMove."""
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
            # Keep it after a timeout: the agent may still replay the history, which the log has already.
            self.replay = self.replay if event is Event.FAILED else None
        return move

    def check_resumable(self) -> None:
        """Raise InvalidRequest if no process can be asked to resume the session at this moment."""
        self.check_promptable()
        if not self.allows(Event.RESUME):
            raise InvalidRequest(
                f"the agent was asked to load session {self.id} and has not answered yet; try again later",
                sessionId=self.id,
            )

    def check_environment(self, environment: Mapping[str, str]) -> None:
        """Raise InvalidRequest if the session had its own variables, and would run without them.

        It would then use the keys of others.
        """
        if self.facts.own_environment and not environment:
            raise InvalidRequest(
                f"session {self.id} was opened with an environment of its own, which is not kept; take it up again "
                "with session/load or session/resume, and env",
                sessionId=self.id,
            )

    def check_promptable(self) -> None:
        """Raise InvalidRequest if no prompt will ever run in the session."""
        if self.state is ENDED or self.over:
            raise self.ended_error()

    def ended_error(self) -> InvalidRequest:
        return InvalidRequest(
            f"session {self.id} has ended and cannot be resumed; start a new one with session/new", sessionId=self.id
        )

    # Turns

    def check_queue(self, limit: int) -> None:
        """Raise QueueFull if no more prompts may wait."""
        room = limit if self.running is not None else limit + 1
        if len(self.waiting) >= room:
            raise QueueFull(
                f"{limit} prompts wait in this session already; wait for one to end, or send session/cancel",
                sessionId=self.id,
                limit=limit,
            )

    def start_next(self) -> Prompt | None:
        """Make the first waiting prompt the running one, and return it; None if no prompt can run."""
        if self.next_prompt is not None:
            self.running = self.waiting.pop(0)
            return self.running
        return None

    @property
    def next_prompt(self) -> Prompt | None:
        """The first waiting prompt, if the session is held and no other prompt runs."""
        if self.state is not HELD or self.running is not None or not self.waiting:
            return None
        return self.waiting[0]

    def finish(self, prompt: Prompt) -> None:
        """Remove a prompt, whether it runs or waits."""
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
        """Return `availableModels` and `currentModelId`, for any shape that the agent uses."""
        return choices.listing(self.facts.offers, MODEL)

    def modes(self) -> Object:
        """Return `availableModes` and `currentModeId`, for any shape that the agent uses."""
        return choices.listing(self.facts.offers, MODE)

    def config_options(self) -> list[Object]:
        """Return all options, with those for mode and model, for any shape that the agent uses."""
        return choices.list_options(self.facts.offers)

    def learn_offers(self, sent: Object) -> bool:
        """Merge modes, models and options that an agent sent; return False if they are too large to be kept."""
        return self._keep_offers(choices.merge_offers(self.facts.offers, sent))

    def choose(self, category: Category, value: str) -> bool:
        """Note that the agent has set a mode or a model; return False if the offers are too large to be kept."""
        return self._keep_offers(choices.choose(self.facts.offers, category, value))

    def _keep_offers(self, offers: Object) -> bool:
        size = len(msgspec.json.encode(offers))
        if size <= MAX_OFFERS_BYTES:
            self.facts.offers = offers
            return True
        if not self._has_too_many_offers:
            # Log it once per session: the agent may send them again and again.
            self._has_too_many_offers = True
            logger.warning(
                "offers of a session are not kept session=%s bytes=%d limit=%d", self.id, size, MAX_OFFERS_BYTES
            )
        return False

    def note_update(self, update: Object) -> bool:
        """Read facts from an agent's update; return whether a fact changed that clients may need to know."""
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
        """Store a summary of the newest updates as the session's activity, and drop the updates."""
        last = self.recent.last_line()
        if last is not None:
            self.facts.activity.kind, self.facts.activity.said = last
        self.recent.clear()

    def note_vendor(self, params: Object) -> bool:
        """Read mode and model from a vendor notification that uses ACP's names; return whether it has one."""
        found = [(category, text_at(params, category.current)) for category in choices.CATEGORIES]
        for category, value in found:
            if value is not None:
                self.choose(category, value)
        return any(value is not None for _, value in found)

    def take_unreported_changes(self) -> list[Object]:
        """Return updates for changes of mode and options that no update has reported, and mark them as reported."""
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
    """Return a time in the format for clients: ISO 8601, UTC, with milliseconds."""
    moment = datetime.fromtimestamp(at, UTC)
    # This takes a third of the time of `isoformat`; a page of sessions has hundreds. msgspec omits a zero fraction.
    text: str = msgspec.to_builtins(moment)
    return f"{text[:23]}Z" if moment.microsecond else f"{text[:19]}.000Z"
