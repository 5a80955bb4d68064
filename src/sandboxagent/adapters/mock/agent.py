"""Serve ACP for the mock agent: sessions kept between starts, modes, models and turns.

Each session is one small JSON file, replaced atomically, so that it can be loaded after a restart. If the directory
cannot be written, sessions last as long as the process. `scripts.py` has the contents of turns.
"""

import asyncio
import contextlib
import copy
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from uuid import uuid4

from sandboxagent.adapters.mock.scripts import ClientFeatures, Session, Turn, play
from sandboxagent.adapters.stdio import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Method,
    Notification,
    Object,
    Peer,
    RpcError,
)

VERSION = "1.0.0"
PROTOCOL_VERSION = 1
PAGE = 100
TITLE_LENGTH = 60

MODES = {
    "default": ("Default", "Plays the script that your prompt names"),
    "plan": ("Plan", "A mode to switch to; it changes nothing"),
    "yolo": ("Yolo", "Another mode to switch to; it still asks for permission"),
}
MODELS = {
    "mock-small": ("Mock small", "Knows little"),
    "mock-large": ("Mock large", "Knows as little, in a larger way"),
}


MAX_SESSION_FILES = 1000
"""Maximum number of session files. When a process creates its first session, it removes older files."""
RESOURCE_NOT_FOUND = -32002
"""ACP's code for a resource that does not exist."""
SESSION_ID = re.compile(r"mock-[0-9a-f]{32}")

logger = logging.getLogger(__name__)


def state_directory() -> Path | None:
    """Return the directory of sessions: `MOCK_AGENT_STATE_DIR`, else the user's state directory."""
    if chosen := os.environ.get("MOCK_AGENT_STATE_DIR"):
        return Path(chosen)
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:  # no home directory
        return None
    return state / "sandbox-agent" / "mock"


def _make_private(directory: Path) -> None:
    """Make a directory and its missing parents, for this user alone and for any umask."""
    if not directory.is_dir():
        _make_private(directory.parent)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o700)


def _private(path: str, flags: int) -> int:
    """Open a file that only this user can read and write, for any umask."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


class Sessions:
    """All sessions that the agent knows: open in this process, closed in it, or on disk."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: dict[str, Session] = {}
        self._open: set[str] = set()
        self._pruned = False

    def create(self, cwd: str, *, mode: str, model: str) -> Session:
        """Return a new, open session."""
        if not self._pruned:
            self._pruned = True
            self._prune()
        session = Session(session_id=f"mock-{uuid4().hex}", cwd=cwd, mode=mode, model=model)
        self._open.add(session.session_id)
        self.save(session)
        return session

    def get(self, session_id: str) -> Session:
        """Return the open session with this id. Raises RpcError -32002 if it is not open in this process."""
        if session_id not in self._open:
            raise _unknown(session_id)
        return self._known[session_id]

    def reopen(self, session_id: str) -> Session:
        """Open the session with this id, from this process or from disk. Raises RpcError -32002 if none exists."""
        session = self._known.get(session_id) or self._read(session_id)
        if session is None:
            raise _unknown(session_id)
        self._known[session_id] = session
        self._open.add(session_id)
        return session

    def close(self, session_id: str) -> None:
        """Close a session. It can be loaded again."""
        self._open.discard(session_id)

    def newest_first(self) -> list[Session]:
        """Return all sessions, the last saved one first."""
        found = {session.session_id: session for session in self._on_disk()} | self._known
        return sorted(found.values(), key=lambda session: session.updated_at, reverse=True)

    def save(self, session: Session) -> None:
        """Save a session, on disk if possible."""
        session.updated_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._known[session.session_id] = session
        if self._directory is None:
            return
        path = self._directory / f"{session.session_id}.json"
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            _make_private(self._directory)
            with open(unfinished, "w", encoding="utf-8", opener=_private) as file:
                file.write(json.dumps(asdict(session)))
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
        except (OSError, ValueError, TypeError, RecursionError):
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
        if len(files) <= MAX_SESSION_FILES:
            return
        with contextlib.suppress(OSError):
            for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[MAX_SESSION_FILES:]:
                path.unlink(missing_ok=True)


def _unknown(session_id: str) -> RpcError:
    return RpcError(RESOURCE_NOT_FOUND, f"no such session: {session_id}", {"sessionId": session_id})


class MockAgent:
    """One agent, for one client."""

    def __init__(self, peer: Peer, sessions: Sessions) -> None:
        self._peer = peer
        self._sessions = sessions
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._client = ClientFeatures()

    def methods(self) -> Mapping[str, Method]:
        """Return the handlers of requests, by method."""
        return {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/fork": self._fork,
            "session/list": self._list,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_config_option,
            "session/prompt": self._prompt,
        }

    def notifications(self) -> Mapping[str, Notification]:
        """Return the handlers of notifications, by method."""
        return {"session/cancel": lambda params: self._cancel(_text(params, "sessionId"))}

    async def _initialize(self, params: Object) -> Object:
        capabilities = _members(params.get("clientCapabilities"))
        files = _members(capabilities.get("fs"))
        self._client = ClientFeatures(
            forms=_members(capabilities.get("elicitation")).get("form") is not None,
            reads_files=files.get("readTextFile") is True,
            writes_files=files.get("writeTextFile") is True,
            terminals=capabilities.get("terminal") is True,
        )
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "mock", "title": "Mock agent", "version": VERSION},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}, "fork": {}, "close": {}},
            },
            "authMethods": [],
        }

    async def _new(self, params: Object) -> Object:
        session = self._sessions.create(_text(params, "cwd"), mode=next(iter(MODES)), model=next(iter(MODELS)))
        return {"sessionId": session.session_id, **_settings(session)}

    async def _load(self, params: Object) -> Object:
        session = self._reopened(params)
        for update in list(session.history):
            await self._update(session, update)
        return _settings(session)

    async def _resume(self, params: Object) -> Object:
        return _settings(self._reopened(params))

    async def _fork(self, params: Object) -> Object:
        origin = self._sessions.reopen(_text(params, "sessionId"))
        session = self._sessions.create(_text(params, "cwd"), mode=origin.mode, model=origin.model)
        session.title = origin.title
        session.history = copy.deepcopy(origin.history)
        self._sessions.save(session)
        return {"sessionId": session.session_id, **_settings(session)}

    async def _list(self, params: Object) -> Object:
        cwd, cursor = params.get("cwd"), params.get("cursor")
        if cursor is not None and not (isinstance(cursor, str) and cursor.isdecimal()):
            raise RpcError(INVALID_PARAMS, "Invalid params", {"cursor": cursor})
        first = int(cursor or 0)
        found = [session for session in self._sessions.newest_first() if cwd is None or session.cwd == cwd]
        page = [
            {
                "sessionId": each.session_id,
                "cwd": each.cwd,
                "updatedAt": each.updated_at,
                **({} if each.title is None else {"title": each.title}),
            }
            for each in found[first : first + PAGE]
        ]
        more = {"nextCursor": str(first + PAGE)} if len(found) > first + PAGE else {}
        return {"sessions": page, **more}

    async def _close(self, params: Object) -> Object:
        session = self._sessions.get(_text(params, "sessionId"))
        self._cancel(session.session_id)
        self._sessions.close(session.session_id)
        return {}

    async def _set_mode(self, params: Object) -> Object:
        session, mode = self._sessions.get(_text(params, "sessionId")), _text(params, "modeId")
        if mode not in MODES:
            raise RpcError(INVALID_PARAMS, "Invalid params", {"modeId": mode, "known": list(MODES)})
        session.mode = mode
        self._sessions.save(session)
        await self._update(session, {"sessionUpdate": "current_mode_update", "currentModeId": mode})
        return {}

    async def _set_config_option(self, params: Object) -> Object:
        session = self._sessions.get(_text(params, "sessionId"))
        option, value = params.get("configId"), params.get("value")
        if option != "model":
            raise RpcError(INVALID_PARAMS, "Invalid params", {"configId": option, "known": ["model"]})
        if not isinstance(value, str) or value not in MODELS:
            raise RpcError(INVALID_PARAMS, "Invalid params", {"value": value, "known": list(MODELS)})
        session.model = value
        self._sessions.save(session)
        options: Object = {"configOptions": _config_options(session)}
        await self._update(session, {"sessionUpdate": "config_option_update", **options})
        return options

    async def _prompt(self, params: Object) -> Object:
        # Await nothing before the turn is in the table: a cancel that follows at once must find it.
        session, prompt = self._sessions.get(_text(params, "sessionId")), _blocks(params)
        if session.session_id in self._turns:
            facts = {"sessionId": session.session_id}
            raise RpcError(INVALID_REQUEST, f"a turn is running in session {session.session_id}", facts)
        for block in prompt:
            session.record({"sessionUpdate": "user_message_chunk", "content": block})
        self._sessions.save(session)
        turn = Turn(self._peer, session, prompt, self._client)
        task = self._turns[session.session_id] = asyncio.create_task(self._play(turn))
        try:
            await task
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():  # stdin has ended, so there is no client to answer
                raise
            return {"stopReason": "cancelled"}
        finally:
            task.cancel()
            del self._turns[session.session_id]
            self._sessions.save(session)
        return {"stopReason": "end_turn"}

    def _cancel(self, session_id: str) -> None:
        if task := self._turns.get(session_id):
            task.cancel()

    async def _play(self, turn: Turn) -> None:
        session = turn.session
        if session.title is None and (words := turn.text.split()):
            session.title = " ".join(words)[:TITLE_LENGTH]
            facts = {"title": session.title, "updatedAt": session.updated_at}
            await self._update(session, {"sessionUpdate": "session_info_update", **facts})
        try:
            await play(turn)
        except RpcError as refusal:
            await turn.say(f"The client answered with an error: {refusal} ({refusal.code}).")
        except ValueError:
            await turn.say("The client's answer is not what ACP says it should be.")

    async def _update(self, session: Session, update: Object) -> None:
        await self._peer.notify("session/update", {"sessionId": session.session_id, "update": update})

    def _reopened(self, params: Object) -> Session:
        session = self._sessions.reopen(_text(params, "sessionId"))
        session.cwd = _text(params, "cwd")
        return session


def _members(value: object) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def _text(params: Object, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, "Invalid params", {"missing": name})
    return value


def _blocks(params: Object) -> list[Object]:
    prompt = params.get("prompt")
    if not isinstance(prompt, list):
        raise RpcError(INVALID_PARAMS, "Invalid params", {"missing": "prompt"})
    blocks = cast("list[object]", prompt)
    if not all(isinstance(each, dict) and isinstance(cast("Object", each).get("type"), str) for each in blocks):
        raise RpcError(INVALID_PARAMS, "Invalid params", {"prompt": "not content blocks"})
    return cast("list[Object]", blocks)


def _settings(session: Session) -> Object:
    modes = [{"id": id, "name": name, "description": text} for id, (name, text) in MODES.items()]
    return {
        "modes": {"currentModeId": session.mode, "availableModes": modes},
        "configOptions": _config_options(session),
    }


def _config_options(session: Session) -> list[Object]:
    options = [{"value": value, "name": name, "description": text} for value, (name, text) in MODELS.items()]
    facts: Object = {"id": "model", "name": "Model", "category": "model", "type": "select"}
    return [{**facts, "currentValue": session.model, "options": options}]
