"""Create, find, resume and watch the server's sessions.

A watch waits until the server reports a change, and then reads the changed sessions from the list. Any number of
changes in between cost one request. While nothing changes, the watch reads nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Self

from msgspec import Struct

from sandboxagent.client.connection import BUNDLED_AGENT
from sandboxagent.client.errors import InvalidCall
from sandboxagent.client.session import Session, SessionInfo, SessionParts, fetch_session, fetch_sessions
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, text_at


class Sessions:
    """All sessions of a server, of all agents and clients."""

    def __init__(self, parts: SessionParts, agent: str | None, cwd: Path | None) -> None:
        self._parts = parts
        self._agent = agent
        self._cwd = cwd

    async def create(
        self,
        agent: str | None = None,
        *,
        cwd: str | PurePath | None = None,
        session_id: str | None = None,
        node: str | None = None,
        title: str | None = None,
        model: str | None = None,
        mode: str | None = None,
        config_options: Mapping[str, str | bool] | None = None,
        permission_mode: str | None = None,
        permissions: Sequence[Mapping[str, object]] | None = None,
        metadata: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        mcp_servers: Sequence[Mapping[str, object]] = (),
        additional_directories: Sequence[str | PurePath] = (),
    ) -> Session:
        """Create a session. If its agent is not installed, the server installs it first.

        Args:
            agent: id of the agent; without it, the agent given to `connect` or `start`.
            cwd: the session's directory, an absolute path on the server's machine. With `start`, the default is your
                working directory, and a relative path begins there.
            session_id: alias of the session, which is accepted wherever its id is.
            node: at a gateway, the node that gets the session; without it, the gateway chooses a node that has the
                agent.
            title: title of the session, until its agent gives it another one.
            model: id of a model of the agent. If the agent cannot use it, `session.warnings` says so.
            mode: id of a mode of the agent. If the agent cannot use it, `session.warnings` says so.
            config_options: values of further options of the agent, by option id. `session.warnings` names those that
                failed.
            permission_mode: how much the agent may do without asking, such as `default`, `acceptEdits` or `plan`.
            permissions: rules that decide the agent's permission requests. The first rule that fits decides.
            metadata: metadata to store with the session.
            env: environment variables for this session alone, such as its own API keys. The session gets its own agent
                process. The server never stores, lists or logs them.
            mcp_servers: MCP servers that the agent may use, in the form of ACP.
            additional_directories: further directories that the session may use.

        Raises:
            RequestError: the agent or the server refuses; the message says why.
            ServerProblem: the agent is unknown, or could not be installed or started.
            InvalidCall: no `agent` or no `cwd` is given, and there is no default.
        """
        agent = agent or self._agent
        if agent is None:
            raise InvalidCall("which agent? sessions.create('claude'), or agent='claude' in connect() or start()")
        asked = {
            "agent": agent,
            "node": node,
            "requestedSessionId": session_id,
            "title": title,
            "model": model,
            "mode": mode,
            "configOptions": None if config_options is None else dict(config_options),
            "permissionMode": permission_mode,
            "permissions": None if permissions is None else [dict(rule) for rule in permissions],
            "env": None if env is None else dict(env),
        }
        ours: Object = {**(metadata or {}), **{name: value for name, value in asked.items() if value is not None}}
        params: Object = {
            "cwd": self._directory(cwd),
            "mcpServers": [dict(each) for each in mcp_servers],
            "_meta": {META: ours},
        }
        if additional_directories:
            params["additionalDirectories"] = [str(each) for each in additional_directories]
        result = await self._parts.connection.begin(methods.NEW, params, agent)
        return Session(self._parts, text_at(result, "sessionId") or "", agent, str(params["cwd"]), result)

    def list(self, cwd: str | PurePath | None = None) -> AsyncIterator[SessionInfo]:
        """Return all sessions, or those of one directory, newest first."""
        return fetch_sessions(self._parts.api, None if cwd is None else str(cwd))

    def watch(self, every: float = 0.5) -> "SessionWatch":
        """Return all sessions, and then each session that changes, whether you are attached to it or not.

        Args:
            every: minimum number of seconds between two reads of the changes.
        """
        return SessionWatch(self._parts, self._agent, every)

    async def get(self, session_id: str) -> SessionInfo:
        """Return a session's state, by its id or alias."""
        return await self._parts.connection.read(lambda: fetch_session(self._parts.api, session_id))

    async def attach(self, session_id: str) -> Session:
        """Attach to a session: this client gets its events and its agent's requests from this call on."""
        info = await self.get(session_id)
        await self._parts.connection.attach(info.session_id, info.agent)
        return self._session(info, {})

    async def resume(self, session_id: str) -> Session:
        """Attach to a session that has ended, and resume it if its agent supports this. A prompt resumes it, too."""
        info = await self.get(session_id)
        params: Object = {"sessionId": info.session_id, "cwd": info.cwd, "mcpServers": []}
        # Attach first: the answer says at which position the session's past ends.
        await self._parts.connection.attach(info.session_id, info.agent)
        result = await self._parts.connection.begin(methods.RESUME, params, info.agent)
        return self._session(info, result)

    async def fork(self, session_id: str, cwd: str | None = None) -> Session:
        """Create a session that begins with the history of another one. Its agent must support this."""
        return await (await self.attach(session_id)).fork(cwd)

    async def terminate(self, session_id: str) -> Object:
        """End a session for good: its turn is cancelled, and it cannot be resumed. Its log stays.

        The result is the server's answer as JSON, with `reason` and `terminatedBy`.
        """
        return await self._call(methods.TERMINATE, await self.get(session_id))

    async def delete(self, session_id: str) -> None:
        """Delete a session with its log. If its agent cannot delete sessions, terminate the session first."""
        info = await self.get(session_id)
        await self._call(methods.DELETE, info)
        self._parts.connection.mark_detached(info.session_id)

    def _session(self, info: SessionInfo, opened: Object) -> Session:
        return Session(self._parts, info.session_id, info.agent, info.cwd, opened)

    async def _call(self, method: str, info: SessionInfo) -> Object:
        return await self._parts.connection.request(method, {"sessionId": info.session_id}, agent=info.agent)

    def _directory(self, cwd: str | PurePath | None) -> str:
        if cwd is not None:
            # A private server runs on this machine, so a relative path starts at our working directory.
            return str(self._cwd / cwd) if self._cwd is not None else str(cwd)
        if self._cwd is None:
            raise InvalidCall("cwd is needed: the session's directory, an absolute path on the server's machine")
        return str(self._cwd)


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """The sessions of a server that have changed."""

    sessions: list[SessionInfo]
    """The sessions that are new or have changed; all sessions if `all` is true."""
    gone: list[str]
    """Ids of the sessions that were deleted."""
    all: bool
    """Whether `sessions` has all sessions of the server. A session that is missing there was deleted."""


class _Page(Struct, rename="camel"):
    sessions: list[SessionInfo]
    changes: str
    next_cursor: str | None = None
    gone: list[str] | None = None


class SessionWatch(AsyncIterator[SessionChanges]):
    """Changes of a server's sessions: the first item has all sessions, later items have those that changed.

    The watch begins with the first step of the iteration, and ends when you leave it. After a restart of the server, an
    item has all sessions again.
    """

    def __init__(self, parts: SessionParts, agent: str | None, every: float) -> None:
        self._parts = parts
        self._agent = agent or BUNDLED_AGENT
        self._every = every
        self._changes = self._run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __anext__(self) -> SessionChanges:
        return await anext(self._changes)

    async def close(self) -> None:
        """End the watch at once. Otherwise it ends when the object is garbage-collected."""
        await self._changes.aclose()

    async def _run(self) -> AsyncGenerator[SessionChanges]:
        clock = asyncio.get_running_loop().time
        page = await self._changed_after(None)
        while True:
            looked = clock()
            if page.gone is None or page.gone or page.sessions:
                yield SessionChanges(page.sessions, page.gone or [], all=page.gone is None)
            while not await self._has_changed(page.changes):
                pass
            await asyncio.sleep(max(0.0, looked + self._every - clock()))
            page = await self._changed_after(page.changes)

    async def _changed_after(self, moment: str | None) -> _Page:
        """Return the sessions that have changed after a moment, or all if the server does not know that moment."""
        first = await self._read(changedAfter=moment)
        cursor = first.next_cursor
        while first.gone is None and cursor is not None:
            page = await self._read(cursor=cursor)
            first.sessions.extend(page.sessions)
            cursor = page.next_cursor
        return first

    async def _read(self, **params: str | None) -> _Page:
        api = self._parts.api
        return await self._parts.connection.read(lambda: api.json("GET", "/v1/sessions", params=params, type=_Page))

    async def _has_changed(self, after: str) -> bool:
        """Wait for a change. Return False if none came within the server's time limit for this request."""
        connection = self._parts.connection
        answer = await connection.request(methods.SESSION_CHANGES, {"after": after}, agent=self._agent)
        return text_at(answer, "changes") != after
