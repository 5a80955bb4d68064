"""Find the session for an id of OpenCode's programs, and describe sessions to these programs.

A session that these programs made has their id as its alias. For a session that another client made, the id is computed
from its own id and its creation time, so that it can be found again without a table.
"""

import hashlib
import posixpath
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from sandboxagent import __version__
from sandboxagent.adapters.opencode.ids import PERIOD_MS, is_session_id, make_session_id, milliseconds, read_created
from sandboxagent.adapters.opencode.objects import Cache, ModelRef, SessionInfo, SessionTime, Tokens
from sandboxagent.adapters.opencode.prompts import KEY
from sandboxagent.adapters.opencode.transcript import DEFAULT, Transcript
from sandboxagent.protocol.envelope import Object, object_at, objects_at, text_at
from sandboxagent.server.log.session_index import SortKey
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session, iso
from sandboxagent.server.sessions.store import sort_key

PAGE = 8
"""Number of sessions that are read at a time. It is small, because two are seldom made in one millisecond."""
AHEAD_MS = 24 * 3600 * 1000
"""Milliseconds by which the clock may have been set back since a session was made."""


def id_of(session: Session) -> str:
    """Return OpenCode's id of a session."""
    alias = session.facts.alias
    if alias is not None and is_session_id(alias):
        return alias
    return session.id if is_session_id(session.id) else make_session_id(session.facts.created_at, session.id)


def find_session(hub: Hub, id: str, now: float) -> Session | None:
    """Return the session for an id of OpenCode's programs; None if there is none."""
    if not is_session_id(id):
        return None
    session = hub.find_session(id)
    if session is not None:
        return session
    # The digits of time start over every two years. Take the last time at which they had these values.
    ms = milliseconds(now) + AHEAD_MS
    ms -= (ms - read_created(id)) % PERIOD_MS
    before: SortKey = ((ms + 2) / 1000, "")
    while page := hub.store.page(before, None, PAGE):
        for session in page:
            if milliseconds(session.facts.created_at) < ms:
                return None
            if id_of(session) == id:
                return session
        before = sort_key(page[-1])
    return None


def is_busy(session: Session) -> bool:
    """Return whether a turn runs or waits in a session."""
    return session.running is not None or bool(session.waiting)


def project_id(directory: str) -> str:
    """Return the id of a project. Each directory is a project."""
    return hashlib.sha1(directory.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()


def normalize(directory: str) -> str:
    """Return a directory in its normal form, such as without a slash at the end."""
    return posixpath.normpath(directory)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a session that ACP has no place for. They are in its metadata, under `opencode`."""

    parent_id: str | None = None
    archived: int | None = None
    permission: tuple[Object, ...] = ()
    always: tuple[tuple[str, ...], ...] = ()
    """Permissions that were given for good and that the agent does not remember: name and digest of the request."""
    metadata: Object | None = None
    title: str | None = None
    """The beginning of the session's first prompt."""

    @classmethod
    def of(cls, session: Session) -> "Facts":
        kept = object_at(session.facts.metadata, KEY)
        archived = kept.get("archived")
        given = kept.get("always")
        always = [tuple(map(str, each)) for each in given if isinstance(each, list)] if isinstance(given, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return cls(
            text_at(kept, "parentID"),
            archived if isinstance(archived, int) else None,
            tuple(objects_at(kept, "permission")),
            tuple(always),
            object_at(kept, "metadata") or None,
            text_at(kept, "title"),
        )

    def write(self) -> Object:
        """Return the facts as an object for the metadata."""
        facts: Object = {
            "parentID": self.parent_id,
            "archived": self.archived,
            "permission": list(self.permission) or None,
            "always": [list(each) for each in self.always] or None,
            "metadata": self.metadata,
            "title": self.title,
        }
        return {name: value for name, value in facts.items() if value is not None}


def describe(session: Session, transcript: Transcript | None) -> SessionInfo:
    """Return a session in OpenCode's form."""
    facts, kept, id = session.facts, Facts.of(session), id_of(session)
    told = text_at(facts.metadata, "title") or facts.title or kept.title or (transcript.title if transcript else None)
    time = SessionTime(created=milliseconds(facts.created_at), updated=milliseconds(facts.updated_at))
    time.archived = UNSET if kept.archived is None else kept.archived
    return SessionInfo(
        id=id,
        slug=make_slug(id),
        project_id=project_id(facts.cwd),
        directory=facts.cwd,
        title=told or default_title(facts.created_at),
        version=__version__,
        time=time,
        parent_id=kept.parent_id or UNSET,
        agent=session.mode or DEFAULT,
        model=ModelRef(id=session.model or DEFAULT, provider_id=facts.agent),
        cost=transcript.cost if transcript else 0,
        tokens=Tokens(input=transcript.used if transcript else 0, cache=Cache()),
        permission=list(kept.permission) or UNSET,
        metadata=_given(kept.metadata),
    )


def _given(value: Object | None) -> Object | UnsetType:
    return UNSET if value is None else value


def default_title(created_at: float) -> str:
    """Return the title of a session without a prompt."""
    return f"New session - {iso(created_at)}"


def make_slug(id: str) -> str:
    """Return a short name of a session."""
    return id[-8:].lower()
