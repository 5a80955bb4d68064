"""Keep sessions in use as objects and all others as records on disk, and find either.

Records are in the log, and cost no memory. The store keeps an object while something happens in its session, and until
the disk has its facts. Then it drops the object. While code still refers to a dropped object, a lookup finds the same
one, so that a session never has two objects.
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

MAX_READ_AT_ONCE = 250
"""Maximum number of sessions in one query to the disk."""
MAX_EVICTED_AT_ONCE = 500
"""Maximum number of sessions that one step evicts, so that no step takes long."""
MAX_UNKNOWN, MAX_UNKNOWN_NAME = 4096, 256
"""Maximum number of remembered names that no session has, and maximum characters of one."""


class _Holders:
    """Processes by their names on disk, and sessions by the ids that processes use."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._processes: dict[str, Process] = {}
        self.sessions_of: dict[str, dict[str, Session]] = {}
        """For each process, by key: its sessions, by the agent's ids."""

    def name(self, running: Process) -> str:
        """Return the name of a process on disk. It is unique among servers, each of which counts its keys anew."""
        return f"{self._boot}:{running.key}"

    def hold(self, session: Session, running: Process) -> None:
        """Assign all later messages of the process with the agent's session id to this session."""
        session.facts.held_by = self.name(running)
        self._processes[session.facts.held_by] = running
        self.sessions_of.setdefault(running.key, {})[session.facts.agent_session_id] = session

    def release(self, session: Session, process: Process) -> None:
        """Forget a session that the process does not hold any more, or that can be found on disk."""
        known = self.sessions_of.get(process.key, {})
        if known.get(session.facts.agent_session_id) is session:
            del known[session.facts.agent_session_id]
        if not known:
            self.sessions_of.pop(process.key, None)

    def sessions(self, running: Process) -> list[Session]:
        return list(self.sessions_of.get(running.key, {}).values())

    def namesakes(self, agent_session_id: str) -> list[Session]:
        """Return the sessions of all processes that use this agent's id."""
        return [known[agent_session_id] for known in self.sessions_of.values() if agent_session_id in known]

    def holds_any(self, running: Process) -> bool:
        """Return whether a process has held any session since it started."""
        return self.name(running) in self._processes

    def complete(self, session: Session) -> None:
        """Restore the process of a session that was read from disk, if that still runs."""
        facts = session.facts
        if facts.held_by is None or not facts.held_by.startswith(f"{self._boot}:"):
            # An earlier server process held it. Its agent processes and connections are gone.
            facts.creator = None
        elif session.live:
            session.process = self._processes.get(facts.held_by)

    def forget(self, running: Process) -> None:
        """Forget a process that has exited."""
        self.sessions_of.pop(running.key, None)
        self._processes.pop(self.name(running), None)


class SessionStore:
    """Sessions by their ids and aliases. Lookups raise LogUnavailable if the disk cannot be read."""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._holders = _Holders()
        self._objects: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._kept: dict[str, Session] = {}
        """Sessions that must not be dropped from memory, by id."""
        self._active: dict[str, None] = {}
        """Ids of kept sessions with new activity. `evict` checks them next."""
        self._aliases: dict[str, str] = {}
        """Alias → id, for kept sessions. An alias that is reserved for a session being opened has an empty id."""
        self._unknown: dict[str, str] = {}
        """Name → agent: no session on disk has this name as its id, as its alias, or as its id at this agent."""

    # Looking up

    def find(self, session_id: str) -> Session | None:
        """Return a session by its id; None if there is none."""
        session = self._kept.get(session_id) or self._objects.get(session_id)
        if session is None and session_id not in self._unknown and not self._log.is_being_deleted(session_id):
            session = self._read(session_id)
        return session

    def find_by_alias(self, alias: str) -> Session | None:
        """Return a session by its alias; None if there is none."""
        session_id = self._aliases.get(alias)
        if session_id is None and alias not in self._unknown:
            session_id = self._log.ask(lambda index: index.find_alias(alias))
        return self.find(session_id) if session_id else None

    def has(self, session_id: str) -> bool:
        if session_id in self._objects:
            return True
        return not self._log.is_being_deleted(session_id) and self._log.ask(lambda index: index.has(session_id))

    def is_taken(self, name: str) -> bool:
        """Return whether a name is a session's id or alias, or is reserved as an alias."""
        if name in self._aliases or self.has(name):
            return True
        session_id = self._log.ask(lambda index: index.find_alias(name))
        return session_id is not None and not self._log.is_being_deleted(session_id)

    def make_id(self, agent: str) -> str:
        """Return a new id that no session has as its id or alias."""
        while self.is_taken(made := f"{agent}-{secrets.token_hex(8)}"):
            pass
        return made

    def all_of(self, session_ids: Iterable[str]) -> list[Session]:
        """Return the sessions with these ids that exist and can be read."""
        ids = list(session_ids)
        found = {id: session for id in ids if (session := self._objects.get(id)) is not None}
        unread = [id for id in ids if id not in found and not self._log.is_being_deleted(id)]
        for at in range(0, len(unread), MAX_READ_AT_ONCE):
            some = unread[at : at + MAX_READ_AT_ONCE]
            found |= self._recall_all(self._log.ask(lambda index, some=some: index.records(some)))
        return [found[id] for id in ids if id in found]

    def page(self, before: SortKey | None, cwd: str | None, limit: int) -> list[Session]:
        """Return the newest sessions, or the newest before `before`; of one directory, or of all."""
        kept = [one for one in self._kept.values() if cwd is None or one.facts.cwd == cwd]
        ages = sorted(map(sort_key, kept), reverse=True)
        younger = [one for one in ages if before is None or one < before]
        newest = merge(younger, self._pages(before, cwd, limit), reverse=True)
        with self._log.reading():
            return self.all_of(session_id for _, session_id in islice(newest, limit))

    def _pages(self, before: SortKey | None, cwd: str | None, limit: int) -> Iterable[SortKey]:
        """Yield the sort keys of the sessions that are only on disk, newest first."""
        while True:
            page = self._log.ask(lambda index, after=before: index.page(after, cwd, limit))
            for one in page:
                if one[1] not in self._kept and not self._log.is_being_deleted(one[1]):
                    yield one
            if len(page) < limit:
                return
            before = page[-1]

    def find_newest(self, agent: str) -> Session | None:
        """Return the session in which an agent last announced its models and modes."""
        # The disk may be behind the sessions in memory.
        told = [one for one in self._kept.values() if one.facts.agent == agent and one.facts.offers]
        session_id = self._log.ask(lambda index: index.find_newest(agent))
        on_disk = None if session_id is None else self.find(session_id)
        found = told if on_disk is None else [*told, on_disk]
        return max(found, key=lambda one: one.facts.told_at, default=None)

    # Sessions and their processes

    def hold(self, session: Session, running: Process) -> None:
        """Assign all later messages of the process with the agent's session id to this session."""
        self._holders.hold(session, running)

    def release(self, session: Session, process: Process) -> None:
        """Note that the process does not hold the session any more."""
        self._holders.release(session, process)

    def find_held(self, running: Process, agent_session_id: str) -> Session | None:
        """Return the session that an agent process holds under its own id; None if there is none."""
        known = self._holders.sessions_of.get(running.key)
        session = None if known is None else known.get(agent_session_id)
        if session is not None or not self._holders.holds_any(running):
            return session
        if self._is_unknown(running.agent.id, agent_session_id):
            return None
        name = self._holders.name(running)
        session_id = self._log.ask(lambda index: index.find_held(name, agent_session_id))
        session = None if session_id is None else self.find(session_id)
        # The disk may be behind the session in memory.
        if session is None or session.process is not running:
            return None
        self._holders.hold(session, running)
        self.load_into_memory(session)
        return session

    def find_late(self, running: Process, agent_session_id: str) -> Session | None:
        """Return the session that a process held under this id until the session ended; None if there is none."""
        # A name that `_is_unknown` has checked is known to be missing in lookups by id and alias, too.
        if agent_session_id not in self._objects and self._is_unknown(running.agent.id, agent_session_id):
            return None
        session = self.find(agent_session_id)
        if session is None or session.process is not None or session.facts.held_by != self._holders.name(running):
            return None
        return session

    def find_all_held(self, running: Process) -> list[Session]:
        """Return all sessions that a process holds."""
        name, sessions = self._holders.name(running), self._holders.sessions(running)
        try:
            sessions += self.all_of(self._log.ask(lambda index: index.find_all_held(name)))
        except LogUnavailable as error:
            # The caller is about to end the sessions. Those in memory must end although the disk is unreadable.
            logger.error("sessions at rest not found agent=%s reason=%s", running.agent.id, error)
        return [session for session in dict.fromkeys(sessions) if session.process is running]

    def shares_agent_id(self, session: Session) -> bool:
        """Return whether another session has the same agent and the same id at it, since agents reuse ids."""
        agent, id = session.facts.agent, session.facts.agent_session_id
        on_disk = self.all_of(self._log.ask(lambda index: index.find_namesakes(agent, id)))
        others = (*on_disk, *self._holders.namesakes(id))
        return any(other is not session and other.facts.agent == agent for other in others)

    def forget_process(self, running: Process) -> None:
        """Forget a process that has exited and whose sessions have ended."""
        self._holders.forget(running)

    def _is_unknown(self, agent: str, name: str) -> bool:
        """Return whether no session on disk has this name.

        The last `MAX_UNKNOWN` such names are remembered, because agents invent names.
        """
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
        """Remove a session's names from the unknown ones, because they are on disk or about to be."""
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
        """Keep a session in memory, because something happens in it, until `evict` finds it idle."""
        if session.id in self._active and session.facts.alias is None:
            return
        if session.state is DELETED:
            return
        self._kept[session.id] = session
        self._active[session.id] = None
        if session.facts.alias:
            self._aliases[session.facts.alias] = session.id

    def load_by_id(self, session_id: str) -> None:
        """Have `evict` check a session again, if it is kept in memory."""
        if session_id in self._kept:
            self._active[session_id] = None

    def save(self, session: Session) -> None:
        """Save a session's facts, together with the events before this moment."""
        if session.state is DELETED:
            # A deleted session can get here, if an operation in it was still under way.
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
        """Drop idle sessions from memory once they are on disk. Call this periodically."""
        for session_id in list(islice(self._active, MAX_EVICTED_AT_ONCE)):
            del self._active[session_id]
            session = self._kept.get(session_id)
            if session is None or is_busy(session):
                # The end of the activity makes the session active again, so it will be checked then.
                continue
            if session.unsaved:
                self.save(session)
            elif session.replay is not None or not self._log.is_saved(session_id):
                # Nothing makes the session active when the replay or the write ends, so check it again.
                self._active[session_id] = None
            else:
                if session.process is not None:
                    self.release(session, session.process)
                self._drop(session)

    def reserve_alias(self, alias: str) -> bool:
        """Reserve an alias for a session that is being opened; return False if it is taken."""
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

    # Records on disk

    def not_ended(self) -> list[Session]:
        """Return the sessions that an earlier server process left running. Indexes records without an entry."""
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
        """Return the sessions of records. Damaged records are left out, so that the others stay available."""
        read = {session_id: self._decode(session_id, record) for session_id, record in records.items()}
        known = {session_id: facts for session_id, facts in read.items() if facts is not None}
        positions = {session_id: facts.counted_through for session_id, facts in known.items()}
        counts = self._log.ask(lambda index: index.counts_since(positions))
        return {id: self._recall(facts, *counts.get(id, (0, 0.0))) for id, facts in known.items()}

    def _recall(self, facts: SessionFacts, events: int, at: float) -> Session:
        """Return the session of a record. `events` came after the record was saved, the last one at time `at`."""
        facts.updated_at = max(facts.updated_at, at)
        terminated = facts.termination is not None and facts.termination.get("reason") == TERMINATED["reason"]
        state = recalled(ended=facts.ended, resumable=facts.can_resume, terminated=terminated)
        session = Session(facts, state, event_count=facts.event_count + events)
        session.saved_offers, session.saved_card = facts.offers, index_entry(facts)
        self._objects[facts.session_id] = session
        self._holders.complete(session)
        return session

    def _decode(self, session_id: str, record: bytes | None) -> SessionFacts | None:
        """Decode a record; report a damaged one, and return None for it."""
        try:
            if record is not None:
                return _read_facts(record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        self._log.damage.report(f"the record of session {session_id!r} is damaged")
        return None

    def _drop(self, session: Session) -> None:
        # A lookup may have found its names unknown, before they were on disk.
        self._note_known(session.facts)
        self._kept.pop(session.id, None)
        self._active.pop(session.id, None)
        alias = session.facts.alias
        if alias is not None and self._aliases.get(alias) == session.id:
            del self._aliases[alias]


def _read_facts(record: bytes) -> SessionFacts:
    """Decode a record, without facts that are nested too deep for clients.

    One such session would make the whole list unreadable.
    """
    if excess_of_answer(record) is None:
        return msgspec.json.decode(record, type=SessionFacts)
    members, left_out = shallow(record, Raw, bytes)
    facts = msgspec.json.decode(msgspec.json.encode(members), type=SessionFacts)
    facts.left_out = [*facts.left_out, *left_out]
    return facts


def sort_key(session: Session) -> SortKey:
    """Return the key by which lists are sorted."""
    return session.facts.created_at, session.id


def index_entry(facts: SessionFacts) -> IndexEntry:
    """Return a session's entry in the index."""
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
