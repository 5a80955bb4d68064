"""The mock agent's sessions: what was said in them, and where that is kept.

One small JSON file per session, replaced atomically, so that a session can be loaded after a restart. When the
directory cannot be written, sessions last as long as the process. Knows nothing of ACP's methods.
"""

import contextlib
import copy
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from sandbox_agent.agents.stdio import Object, RpcError

KEPT = 1000
"""Session files that stay; older ones are removed when a process creates its first session."""

RESOURCE_NOT_FOUND = -32002
"""ACP's code for what there is not."""

STREAMED = ("agent_message_chunk", "agent_thought_chunk")

SESSION_ID = re.compile(r"mock-[0-9a-f]{32}")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
    """One conversation, as it is kept."""

    session_id: str
    cwd: str
    mode: str
    model: str
    title: str | None = None
    updated_at: str = ""
    history: list[Object] = field(default_factory=list[Object])
    """Its updates, as they go on the wire."""

    def record(self, update: Object) -> None:
        """Add to the history. Streamed text is kept as one chunk."""
        match (self.history[-1] if self.history else None), update:
            case (
                {"sessionUpdate": kind, "content": {"text": str(text)}},
                {"sessionUpdate": again, "content": {"text": str(more)}},
            ) if kind == again and kind in STREAMED:
                self.history[-1] = {"sessionUpdate": kind, "content": {"type": "text", "text": text + more}}
            case _:
                self.history.append(copy.deepcopy(update))


def state_directory() -> Path | None:
    """Where sessions are kept: `MOCK_AGENT_STATE_DIR`, else the user's state directory."""
    if chosen := os.environ.get("MOCK_AGENT_STATE_DIR"):
        return Path(chosen)
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:  # no home directory
        return None
    return state / "sandbox-agent" / "mock"


class Sessions:
    """All sessions this agent knows: those open in this process, those closed, and those on disk."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: dict[str, Session] = {}
        self._open: set[str] = set()
        self._pruned = False

    def create(self, cwd: str, *, mode: str, model: str) -> Session:
        """A new, open session."""
        if not self._pruned:
            self._pruned = True
            self._prune()
        session = Session(session_id=f"mock-{uuid4().hex}", cwd=cwd, mode=mode, model=model)
        self._open.add(session.session_id)
        self.save(session)
        return session

    def get(self, session_id: str) -> Session:
        """The open session of that id; RpcError -32002 when it is not open here."""
        if session_id not in self._open:
            raise _unknown(session_id)
        return self._known[session_id]

    def reopen(self, session_id: str) -> Session:
        """Open the session of that id, from this process or from disk; RpcError -32002 when there is none."""
        session = self._known.get(session_id) or self._read(session_id)
        if session is None:
            raise _unknown(session_id)
        self._known[session_id] = session
        self._open.add(session_id)
        return session

    def close(self, session_id: str) -> None:
        """Close it. It can be loaded again."""
        self._open.discard(session_id)

    def newest_first(self) -> list[Session]:
        """Every session there is."""
        found = {session.session_id: session for session in self._on_disk()} | self._known
        return sorted(found.values(), key=lambda session: session.updated_at, reverse=True)

    def save(self, session: Session) -> None:
        """Keep it, on disk if possible."""
        session.updated_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._known[session.session_id] = session
        if self._directory is None:
            return
        path = self._directory / f"{session.session_id}.json"
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(asdict(session)), encoding="utf-8")
            unfinished.replace(path)
        except OSError as problem:
            logger.warning("sessions are kept in memory only reason=%s", problem)
            self._directory = None

    def _read(self, session_id: str) -> Session | None:
        # The id comes from the client and becomes a file name.
        if self._directory is None or not SESSION_ID.fullmatch(session_id):
            return None
        try:
            return Session(**json.loads((self._directory / f"{session_id}.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _on_disk(self) -> Iterator[Session]:
        for path in self._files():
            if session := self._read(path.stem):
                yield session

    def _files(self) -> list[Path]:
        try:
            return list(self._directory.glob("mock-*.json")) if self._directory else []
        except OSError:
            return []

    def _prune(self) -> None:
        files = self._files()
        if len(files) <= KEPT:
            return
        with contextlib.suppress(OSError):
            for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
                path.unlink(missing_ok=True)


def _unknown(session_id: str) -> RpcError:
    return RpcError(RESOURCE_NOT_FOUND, f"no such session: {session_id}", {"sessionId": session_id})
