"""The server's sessions: making them, finding them, coming back to them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path, PurePath

from sandbox_agent.client.errors import InvalidCall
from sandbox_agent.client.inventory import SessionWatch
from sandbox_agent.client.session import Session, SessionInfo, SessionParts, fetch_session, fetch_sessions
from sandbox_agent.envelope import META, Object, text_at
from sandbox_agent.wire import methods


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

    def watch(self, every: float = 0.5) -> SessionWatch:
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
