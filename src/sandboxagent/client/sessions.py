"""Create, find, resume and watch the server's sessions.

Of a watch, the server says when something has changed; what it is comes from its list. However much happens meanwhile,
it is one answer, and nothing is asked while nothing happens.
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
        """Start a session; an agent that is not installed is installed first.

        Args:
            agent: its agent; without one, that of `connect` or `start`.
            cwd: its directory, an absolute path on the server's machine; with `start`, ours unless told.
            session_id: another name for it, accepted wherever its id is.
            node: at a gateway, the node that gets it; without one, the gateway chooses a node that has the agent.
            title: what to call it, until its agent gives it a title.
            model: a model of the agent's; `session.warnings` says if it cannot be had.
            mode: a mode of the agent's, likewise.
            config_options: values of further options of the agent's, by their ids, likewise.
            permission_mode: how much the agent may do without asking, such as `default`, `acceptEdits`, `plan`.
            permissions: rules that answer what the agent asks, the first that fits.
            metadata: what else to keep with it.
            env: variables for this session alone, such as its own keys: it gets a process of its own. The server never
                keeps, lists or logs them.
            mcp_servers: MCP servers for the agent to use, as ACP has them.
            additional_directories: further directories that the session may use.

        Raises:
            RequestError: the agent or the server refuses; the error says what is wrong.
            ServerProblem: no such agent, or it could not be installed or started.
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
        """All sessions, newest first; those of one directory, when it is given."""
        return fetch_sessions(self._parts.api, None if cwd is None else str(cwd))

    def watch(self, every: float = 0.5) -> "SessionWatch":
        """All sessions, kept up to date: first all of them, then those that change, whether you are attached or not.

        Args:
            every: seconds between two looks at what has changed, at least.
        """
        return SessionWatch(self._parts, self._agent, every)

    async def get(self, session_id: str) -> SessionInfo:
        """A session's state, by its id or alias."""
        return await self._parts.connection.read(lambda: fetch_session(self._parts.api, session_id))

    async def attach(self, session_id: str) -> Session:
        """Attach to a session: from now on you get its events and its agent's requests."""
        info = await self.get(session_id)
        await self._parts.connection.attach(info.session_id, info.agent)
        return self._session(info, {})

    async def resume(self, session_id: str) -> Session:
        """Attach, and bring a session that has ended back to its agent, if that can do so. A prompt does it, too."""
        info = await self.get(session_id)
        params: Object = {"sessionId": info.session_id, "cwd": info.cwd, "mcpServers": []}
        # First: it says where the past of the session ends.
        await self._parts.connection.attach(info.session_id, info.agent)
        result = await self._parts.connection.begin(methods.RESUME, params, info.agent)
        return self._session(info, result)

    async def fork(self, session_id: str, cwd: str | None = None) -> Session:
        """A new session that begins with the history of another; its agent must be able to do that."""
        return await (await self.attach(session_id)).fork(cwd)

    async def terminate(self, session_id: str) -> Object:
        """End a session for good; its log stays."""
        return await self._call(methods.TERMINATE, await self.get(session_id))

    async def delete(self, session_id: str) -> None:
        """Delete a session with its log. Where its agent cannot delete, terminate it first."""
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
    """What has changed among the sessions of a server."""

    sessions: list[SessionInfo]
    """Those that are new or have changed; all of them when `all` is set."""
    gone: list[str]
    """The ids of those that were deleted."""
    all: bool
    """These are all sessions: what is not among them is gone."""


class _Page(Struct, rename="camel"):
    sessions: list[SessionInfo]
    changes: str
    next_cursor: str | None = None
    gone: list[str] | None = None


class SessionWatch(AsyncIterator[SessionChanges]):
    """The changes, from the first step on, until it is left. A server that was restarted gives all sessions again."""

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
        """End it now instead of when it is garbage-collected."""
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
        """The sessions that have changed since a moment; all of them when the server does not know."""
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
        """Wait for a change; False when none has come in the time that a server lets a request wait."""
        connection = self._parts.connection
        answer = await connection.request(methods.SESSION_CHANGES, {"after": after}, agent=self._agent)
        return text_at(answer, "changes") != after
