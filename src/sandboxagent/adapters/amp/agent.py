"""Serve ACP for Amp: sessions are Amp's threads, and turns can be cancelled.

`run.py` runs a turn.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from sandboxagent.adapters.amp.permissions import PermissionSocket
from sandboxagent.adapters.amp.run import AmpCli, Session, Turn
from sandboxagent.adapters.amp.stream import message
from sandboxagent.adapters.amp.threads import history, is_thread_id, read_thread
from sandboxagent.adapters.stdio import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Method,
    Notification,
    Object,
    Peer,
    RpcError,
)
from sandboxagent.core.tasks import Tasks

PROTOCOL_VERSION = 1
RESOURCE_NOT_FOUND = -32002
"""ACP's code for a resource that does not exist."""

MODES = {
    "smart": ("Smart", "The most capable model"),
    "rush": ("Rush", "Faster and cheaper, for small tasks"),
    "deep": ("Deep", "Thinks longer"),
    "large": ("Large", "For much context"),
}
"""Amp's own modes, except `free`, which this adapter cannot use."""
DEFAULT_MODE = "smart"


class AmpAgent:
    """One agent, for one client."""

    def __init__(self, peer: Peer, cli: AmpCli, permission_socket: PermissionSocket) -> None:
        self._peer = peer
        self._cli = cli
        self._socket = permission_socket
        self._sessions: dict[str, Session] = {}
        self._turns: dict[str, Turn] = {}
        self._ending = Tasks()

    def methods(self) -> Mapping[str, Method]:
        """Return the handlers of requests, by method."""
        return {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/prompt": self._prompt,
        }

    def notifications(self) -> Mapping[str, Notification]:
        """Return the handlers of notifications, by method."""
        return {"session/cancel": lambda params: self._cancel(_text(params, "sessionId"))}

    async def stop(self) -> None:
        """End every turn."""
        await asyncio.gather(*(turn.cancel() for turn in self._turns.values()), return_exceptions=True)

    async def _initialize(self, params: Object) -> Object:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "amp", "title": "Amp", "version": self._cli.version},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": True},
                "sessionCapabilities": {"resume": {}, "close": {}},
            },
            "authMethods": [],
        }

    async def _new(self, params: Object) -> Object:
        directory = _directory(params)
        self._cli.check_credentials()
        session = Session(await self._cli.new_thread(directory), directory, DEFAULT_MODE, _servers(params))
        self._sessions[session.id] = session
        return {"sessionId": session.id, **_settings(session)}

    async def _load(self, params: Object) -> Object:
        session, thread = self._reopened(params)
        if thread is None:
            text = f"this machine does not have the thread {session.id}; resume it to go on without its history"
            raise RpcError(RESOURCE_NOT_FOUND, text, {"sessionId": session.id})
        for update in history(thread):
            await self._peer.notify("session/update", {"sessionId": session.id, "update": update})
        self._sessions[session.id] = session
        return _settings(session)

    async def _resume(self, params: Object) -> Object:
        session, _ = self._reopened(params)
        self._sessions[session.id] = session
        return _settings(session)

    async def _close(self, params: Object) -> Object:
        session = self._session(params)
        if turn := self._turns.get(session.id):
            await turn.cancel()
        self._sessions.pop(session.id, None)
        return {}

    async def _set_mode(self, params: Object) -> Object:
        session, mode = self._session(params), _text(params, "modeId")
        if mode not in MODES:
            raise RpcError(INVALID_PARAMS, "Invalid params", {"modeId": mode, "known": list(MODES)})
        if session.begun and mode != session.mode:
            text = f"Amp keeps to the mode in which a thread has begun: {session.mode}; open a new session for {mode}"
            raise RpcError(INVALID_REQUEST, text, {"modeId": mode})
        session.mode = mode
        update = {"sessionUpdate": "current_mode_update", "currentModeId": mode}
        await self._peer.notify("session/update", {"sessionId": session.id, "update": update})
        return {}

    async def _prompt(self, params: Object) -> Object:
        # Await nothing before the turn is in the table: a cancel that follows at once must find it.
        session = self._session(params)
        if session.id in self._turns:
            raise RpcError(INVALID_REQUEST, f"a turn is running in session {session.id}", {"sessionId": session.id})
        said = message(_blocks(params, "prompt"))
        turn = self._turns[session.id] = Turn(self._peer, self._cli, self._socket, session)
        try:
            return await turn.play(said)
        finally:
            del self._turns[session.id]

    def _cancel(self, session_id: str) -> None:
        if turn := self._turns.get(session_id):
            self._ending.run(turn.cancel(), "cancel a turn")

    def _session(self, params: Object) -> Session:
        id = _text(params, "sessionId")
        if id not in self._sessions:
            raise RpcError(RESOURCE_NOT_FOUND, f"no such session: {id}", {"sessionId": id})
        return self._sessions[id]

    def _reopened(self, params: Object) -> tuple[Session, Object | None]:
        """Return an existing session for a load or resume, and its thread if this machine has it."""
        id, directory = _text(params, "sessionId"), _directory(params)
        # The id comes from the client, and becomes a file name and an argument.
        if not is_thread_id(id):
            raise RpcError(RESOURCE_NOT_FOUND, f"no such session: {id}", {"sessionId": id})
        if id in self._turns:
            raise RpcError(INVALID_REQUEST, f"a turn is running in session {id}", {"sessionId": id})
        self._cli.check_credentials()
        thread = read_thread(self._cli.environ, id)
        mode = (thread or {}).get("agentMode")
        begun = thread is None or bool(thread.get("messages"))
        kept = self._sessions.get(id)
        known = mode if isinstance(mode, str) and mode in MODES else kept.mode if kept else DEFAULT_MODE
        return Session(id, directory, known, _servers(params), begun), thread


def _text(params: Object, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, "Invalid params", {"missing": name})
    return value


def _directory(params: Object) -> str:
    directory = _text(params, "cwd")
    if not directory.startswith("/") or not Path(directory).is_dir():
        raise RpcError(INVALID_PARAMS, f"cwd is no directory: {directory}", {"cwd": directory})
    return directory


def _servers(params: Object) -> list[Object]:
    return _blocks(params, "mcpServers") if params.get("mcpServers") is not None else []


def _blocks(params: Object, name: str) -> list[Object]:
    given = params.get(name)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in cast("list[object]", given)):
        raise RpcError(INVALID_PARAMS, "Invalid params", {"missing": name})
    return cast("list[Object]", given)


def _settings(session: Session) -> Object:
    modes = [{"id": id, "name": name, "description": text} for id, (name, text) in MODES.items()]
    return {"modes": {"currentModeId": session.mode, "availableModes": modes}}
