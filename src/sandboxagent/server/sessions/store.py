"""Keep sessions in use as objects and all others as records on disk, and find either.

Those in use are objects; all others are records in the log, and cost no memory.

An object is kept while something goes on in its session, and until the disk has what it knows. After that it is
dropped, unless code still refers to it: then a lookup finds the same object, so that there are never two for one
session.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from itertools import islice
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw

from sandboxagent.protocol.errors import LogUnavailable, SessionDamaged
from sandboxagent.protocol.json_bounds import excess_of_answer, shallow
from sandboxagent.server.log.log import Log
from sandboxagent.server.log.session_index import IndexEntry, SortKey
from sandboxagent.server.sessions.lifecycle import DELETED, recalled
from sandboxagent.server.sessions.session import TERMINATED, Process, Session, SessionFacts

logger = logging.getLogger(__name__)

READ_AT_ONCE = 250
"""How many sessions one question to the disk is about."""
MAX_EVICTED_AT_ONCE = 500
"""How many sessions are put to rest in one step, so that none takes long."""
MAX_UNKNOWN, MAX_UNKNOWN_NAME = 4096, 256
"""Names that no session has, as far as they are remembered, and how long such a one may be."""


class _Holders:
    """Processes by the names that they have on disk, and sessions by the ids that processes use."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._processes: dict[str, Process] = {}
        self.sessions_of: dict[str, dict[str, Session]] = {}
        """What each process means by its ids."""

    def name(self, running: Process) -> str:
        """The name of a process on disk: the next server restarts the count of keys."""
        return f"{self._boot}:{running.key}"

    def hold(self, session: Session, running: Process) -> None:
        """From now on, what the process says under the agent's session id belongs to this session."""
        session.facts.held_by = self.name(running)
        self._processes[session.facts.held_by] = running
        self.sessions_of.setdefault(running.key, {})[session.facts.agent_session_id] = session

    def release(self, session: Session, process: Process) -> None:
        """The process no longer holds the session, or the session rests and can be found on disk."""
        known = self.sessions_of.get(process.key, {})
        if known.get(session.facts.agent_session_id) is session:
            del known[session.facts.agent_session_id]
        if not known:
            self.sessions_of.pop(process.key, None)

    def sessions(self, running: Process) -> list[Session]:
        return list(self.sessions_of.get(running.key, {}).values())

    def namesakes(self, agent_session_id: str) -> list[Session]:
        """Sessions of any process under the same id."""
        return [known[agent_session_id] for known in self.sessions_of.values() if agent_session_id in known]

    def holds_any(self, running: Process) -> bool:
        """Whether a process has held a session since it started."""
        return self.name(running) in self._processes

    def complete(self, session: Session) -> None:
        """A session was read from disk: give it back its process, if that still runs."""
        facts = session.facts
        if facts.held_by is None or not facts.held_by.startswith(f"{self._boot}:"):
            # Held by an earlier server: its processes and connections are gone.
            facts.creator = None
        elif session.live:
            session.process = self._processes.get(facts.held_by)

    def forget(self, running: Process) -> None:
        """It has exited."""
        self.sessions_of.pop(running.key, None)
        self._processes.pop(self.name(running), None)


class SessionStore:
    """Sessions by their ids and aliases. Lookups raise LogUnavailable when the disk cannot be read."""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._holders = _Holders()
        self._objects: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._kept: dict[str, Session] = {}
        """Those that must not be dropped."""
        self._active: dict[str, None] = {}
        """Kept ones in which something has happened: they are the next to be asked whether they can rest."""
        self._aliases: dict[str, str] = {}
        """Of kept sessions, and those that were taken for a session that is about to be (empty)."""
        self._unknown: dict[str, str] = {}
        """Names that no session on disk has as its id, as its alias, or at this agent."""

    # Looking up

    def find(self, session_id: str) -> Session | None:
        """By id."""
        session = self._kept.get(session_id) or self._objects.get(session_id)
        if session is None and session_id not in self._unknown and not self._log.is_deleted(session_id):
            session = self._read(session_id)
        return session

    def find_by_alias(self, alias: str) -> Session | None:
        """By alias."""
        session_id = self._aliases.get(alias)
        if session_id is None and alias not in self._unknown:
            session_id = self._log.ask(lambda index: index.find_alias(alias))
        return self.find(session_id) if session_id else None

    def has(self, session_id: str) -> bool:
        if session_id in self._objects:
            return True
        return not self._log.is_deleted(session_id) and self._log.ask(lambda index: index.has(session_id))

    def is_taken(self, name: str) -> bool:
        """Whether a session has this id or alias, or is about to get it as its alias."""
        if name in self._aliases or self.has(name):
            return True
        session_id = self._log.ask(lambda index: index.find_alias(name))
        return session_id is not None and not self._log.is_deleted(session_id)

    def make_id(self, agent: str) -> str:
        """An id that no session has as its id or alias."""
        while self.is_taken(made := f"{agent}-{secrets.token_hex(8)}"):
            pass
        return made

    def all_of(self, session_ids: Iterable[str]) -> list[Session]:
        """Those that are still there, and can be read."""
        ids = list(session_ids)
        found = {id: session for id in ids if (session := self._objects.get(id)) is not None}
        unread = [id for id in ids if id not in found and not self._log.is_deleted(id)]
        for at in range(0, len(unread), READ_AT_ONCE):
            some = unread[at : at + READ_AT_ONCE]
            found |= self._recall_all(self._log.ask(lambda index, some=some: index.records(some)))
        return [found[id] for id in ids if id in found]

    def page(self, before: SortKey | None, cwd: str | None, limit: int) -> list[Session]:
        """The newest ones, or those older than `before`; of one directory, or of all."""
        kept = [one for one in self._kept.values() if cwd is None or one.facts.cwd == cwd]
        ages = sorted(map(sort_key, kept), reverse=True)
        younger = [one for one in ages if before is None or one < before]
        newest = merge(younger, self._pages(before, cwd, limit), reverse=True)
        with self._log.reading():
            return self.all_of(session_id for _, session_id in islice(newest, limit))

    def _pages(self, before: SortKey | None, cwd: str | None, limit: int) -> Iterable[SortKey]:
        """What the disk has of those that are not kept, from the newest on."""
        while True:
            page = self._log.ask(lambda index, after=before: index.page(after, cwd, limit))
            for one in page:
                if one[1] not in self._kept and not self._log.is_deleted(one[1]):
                    yield one
            if len(page) < limit:
                return
            before = page[-1]

    def find_newest(self, agent: str) -> Session | None:
        """The session in which an agent last announced its models and modes."""
        # The disk may lag behind what is known here.
        told = [one for one in self._kept.values() if one.facts.agent == agent and one.facts.offers]
        session_id = self._log.ask(lambda index: index.find_newest(agent))
        on_disk = None if session_id is None else self.find(session_id)
        found = told if on_disk is None else [*told, on_disk]
        return max(found, key=lambda one: one.facts.told_at, default=None)

    # Which process holds which

    def hold(self, session: Session, running: Process) -> None:
        """From now on, what the process says under the agent's session id belongs to this session."""
        self._holders.hold(session, running)

    def release(self, session: Session, process: Process) -> None:
        """The process no longer holds the session."""
        self._holders.release(session, process)

    def find_held(self, running: Process, agent_session_id: str) -> Session | None:
        """The session an agent process means by its id."""
        known = self._holders.sessions_of.get(running.key)
        session = None if known is None else known.get(agent_session_id)
        if session is not None or not self._holders.holds_any(running):
            return session
        if self._is_unknown(running.agent.id, agent_session_id):
            return None
        name = self._holders.name(running)
        session_id = self._log.ask(lambda index: index.find_held(name, agent_session_id))
        session = None if session_id is None else self.find(session_id)
        # The disk may lag behind what is known here.
        if session is None or session.process is not running:
            return None
        self._holders.hold(session, running)
        self.load_into_memory(session)
        return session

    def find_late(self, running: Process, agent_session_id: str) -> Session | None:
        """The session that an agent process held until it ended, and still means by its id."""
        # Once this has looked, lookups by id and alias know, too.
        if agent_session_id not in self._objects and self._is_unknown(running.agent.id, agent_session_id):
            return None
        session = self.find(agent_session_id)
        if session is None or session.process is not None or session.facts.held_by != self._holders.name(running):
            return None
        return session

    def find_all_held(self, running: Process) -> list[Session]:
        """All that a process holds."""
        name, sessions = self._holders.name(running), self._holders.sessions(running)
        try:
            sessions += self.all_of(self._log.ask(lambda index: index.find_all_held(name)))
        except LogUnavailable as error:
            # The caller is about to end them: sessions in memory must not wait for an unreadable disk.
            logger.error("sessions at rest not found agent=%s reason=%s", running.agent.id, error)
        return [session for session in dict.fromkeys(sessions) if session.process is running]

    def shares_agent_id(self, session: Session) -> bool:
        """Whether its agent may use the same id for another session: agents reuse ids."""
        agent, id = session.facts.agent, session.facts.agent_session_id
        on_disk = self.all_of(self._log.ask(lambda index: index.find_namesakes(agent, id)))
        others = (*on_disk, *self._holders.namesakes(id))
        return any(other is not session and other.facts.agent == agent for other in others)

    def forget_process(self, running: Process) -> None:
        """It has exited, and its sessions have ended."""
        self._holders.forget(running)

    def _is_unknown(self, agent: str, name: str) -> bool:
        """Whether no session on disk has this name. Agents make names up, so it is remembered, of so many."""
        if self._unknown.get(name) == agent:
            return True
        if self._log.ask(lambda index: index.knows(agent, name)):
            return False
        if len(name) <= MAX_UNKNOWN_NAME:
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[name] = agent
        return True

    def _note_known(self, facts: SessionFacts) -> None:
        """The disk has its names, or is about to."""
        for name in (facts.session_id, facts.alias, facts.agent_session_id):
            if name is not None:
                self._unknown.pop(name, None)

    # Changing

    def add(self, session: Session) -> None:
        self._objects[session.id] = session
        self.load_into_memory(session)

    def remove(self, session: Session) -> None:
        """Remove a session and its log."""
        self._drop(session)
        self._objects.pop(session.id, None)
        self._log.delete_session(session.id)

    def load_into_memory(self, session: Session) -> None:
        """Something happens in it: keep it in memory until it rests."""
        if session.id in self._active and session.facts.alias is None:
            return
        if session.state is DELETED:
            return
        self._kept[session.id] = session
        self._active[session.id] = None
        if session.facts.alias:
            self._aliases[session.facts.alias] = session.id

    def load_by_id(self, session_id: str) -> None:
        """The same for one that is kept."""
        if session_id in self._kept:
            self._active[session_id] = None

    def save(self, session: Session) -> None:
        """Keep what is known of it, with the events before."""
        if session.state is DELETED:
            # While something was still under way in it.
            return
        facts = session.facts
        if facts.offers and facts.offers is not session.saved_offers:
            facts.told_at = self._clock()
        facts.event_count, facts.counted_through = session.event_count, self._log.position
        session.saved_offers, entry = facts.offers, index_entry(facts)
        changed, session.saved_card = entry != session.saved_card, entry
        if changed:
            self._note_known(facts)
        self._log.save_session(session.id, msgspec.json.encode(facts), entry if changed else None)
        session.unsaved = False
        self.load_into_memory(session)

    def evict(self, is_busy: Callable[[Session], bool]) -> None:
        """Let go of sessions in which nothing goes on, once the disk has them. Call it again and again."""
        for session_id in list(islice(self._active, MAX_EVICTED_AT_ONCE)):
            del self._active[session_id]
            session = self._kept.get(session_id)
            if session is None or is_busy(session):
                # What ends the business stirs it again.
                continue
            if session.unsaved:
                self.save(session)
            elif session.replay is not None or not self._log.is_saved(session_id):
                # Nothing stirs it when these are over: look again.
                self._active[session_id] = None
            else:
                if session.process is not None:
                    self.release(session, session.process)
                self._drop(session)

    def reserve_alias(self, alias: str) -> bool:
        """Reserve an alias for a session that is being opened; False when it is taken."""
        if self.is_taken(alias):
            return False
        self._aliases[alias] = ""
        return True

    def free_alias(self, alias: str | None) -> None:
        """Free the alias reserved for a session that was not opened."""
        if alias is not None and self._aliases.get(alias) == "":
            del self._aliases[alias]

    def set_alias(self, session: Session, alias: str) -> None:
        session.facts.alias = alias
        self.load_into_memory(session)

    # Behind it

    def not_ended(self) -> list[Session]:
        """Those that a server before this one has left. Makes cards for records that have none."""
        session_ids = self._log.ask(lambda index: index.find_not_ended())
        for session_id, record in self._log.ask(lambda index: index.find_missing()):
            if (facts := self._decode(session_id, record)) is not None:
                self._log.save_session(session_id, record, index_entry(facts))
                session_ids += [] if facts.ended else [session_id]
        return self.all_of(session_ids)

    def _read(self, session_id: str) -> Session | None:
        records = self._log.ask(lambda index: index.records([session_id]))
        if session_id not in records:
            return None
        found = self._recall_all(records)
        if session_id not in found:
            raise SessionDamaged(session_id)
        return found[session_id]

    def _recall_all(self, records: Mapping[str, bytes | None]) -> dict[str, Session]:
        """The sessions of records. One that is damaged keeps no client from the others."""
        read = {session_id: self._decode(session_id, record) for session_id, record in records.items()}
        known = {session_id: facts for session_id, facts in read.items() if facts is not None}
        positions = {session_id: facts.counted_through for session_id, facts in known.items()}
        counts = self._log.ask(lambda index: index.counts_since(positions))
        return {id: self._recall(facts, *counts.get(id, (0, 0.0))) for id, facts in known.items()}

    def _recall(self, facts: SessionFacts, events: int, at: float) -> Session:
        """The session of a record, after which some events came, the last one then."""
        facts.updated_at = max(facts.updated_at, at)
        terminated = facts.termination is not None and facts.termination.get("reason") == TERMINATED["reason"]
        state = recalled(ended=facts.ended, resumable=facts.can_resume, terminated=terminated)
        session = Session(facts, state, event_count=facts.event_count + events)
        session.saved_offers, session.saved_card = facts.offers, index_entry(facts)
        self._objects[facts.session_id] = session
        self._holders.complete(session)
        return session

    def _decode(self, session_id: str, record: bytes | None) -> SessionFacts | None:
        """What a record says; None for one that is damaged, after a report."""
        try:
            if record is not None:
                return _read_facts(record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        self._log.damage.report(f"the record of session {session_id!r} is damaged")
        return None

    def _drop(self, session: Session) -> None:
        # They may have been looked up while the disk had them not yet.
        self._note_known(session.facts)
        self._kept.pop(session.id, None)
        self._active.pop(session.id, None)
        alias = session.facts.alias
        if alias is not None and self._aliases.get(alias) == session.id:
            del self._aliases[alias]


def _read_facts(record: bytes) -> SessionFacts:
    """Without what is nested deeper than any client could read it: one such session would make the list unreadable."""
    if excess_of_answer(record) is None:
        return msgspec.json.decode(record, type=SessionFacts)
    members, left_out = shallow(record, Raw, bytes)
    facts = msgspec.json.decode(msgspec.json.encode(members), type=SessionFacts)
    facts.left_out = [*facts.left_out, *left_out]
    return facts


def sort_key(session: Session) -> SortKey:
    """What sessions are listed by."""
    return session.facts.created_at, session.id


def index_entry(facts: SessionFacts) -> IndexEntry:
    """What a session is looked up by."""
    holder = None if facts.ended else facts.held_by or ""
    told_at = facts.told_at if facts.offers else None
    return IndexEntry(
        facts.session_id,
        facts.agent,
        facts.agent_session_id,
        facts.alias,
        facts.cwd,
        holder,
        facts.created_at,
        told_at,
    )
