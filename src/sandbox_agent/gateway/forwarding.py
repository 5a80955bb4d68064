"""Requests that a node answers: files, agents, and OpenCode's API. Which node is meant, and what it is asked."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from starlette.requests import Request

from sandbox_agent.bus.subjects import is_name
from sandbox_agent.errors import BadRequest, SessionNotFound, UnknownSession
from sandbox_agent.fleet_errors import MissingNode, NoNode
from sandbox_agent.gateway.flows import NodeFlows
from sandbox_agent.gateway.roster import Roster
from sandbox_agent.http.asgi import Receive, Scope, Send, header
from sandbox_agent.http.guard import OPENCODE, OPENCODE_HEALTH, is_opencode
from sandbox_agent.http.paths import read_query
from sandbox_agent.wire import headers

NODE = "Which node; needed when there are several, and no `sessionId` says it."

_FORWARDED = re.compile(r"/v1/(fs|agents)(/.*)?", re.DOTALL)
_AT_NODE = re.compile(rb"/opencode/@(?P<node>[^/]*)(?P<rest>/.*)?", re.DOTALL)
_SECRETS = ("auth_token",)
"""Names in a query whose values are for the gateway alone."""


def is_forwarded(path: str) -> bool:
    """Whether a node answers requests for this path."""
    return _FORWARDED.fullmatch(path) is not None or is_opencode(path)


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Knows the nodes and the sessions."""

    roster: Roster
    flows: NodeFlows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the node answer that is meant. Raises MissingNode, NoNode, NodeUnreachable, SessionNotFound, TooMany."""
        query = _without_secrets(scope["query_string"])
        if not is_opencode(scope["path"]):
            node = self._choose(scope)
            await self.flows.proxy(node, {**scope, "query_string": query}, receive, send)
            return
        at = _AT_NODE.fullmatch(scope["raw_path"])
        if at is None:
            node, target = self._choose_for_opencode(scope), scope["raw_path"]
        else:
            node, target = _read_name(unquote(at["node"].decode("latin-1"))), OPENCODE.encode() + (at["rest"] or b"")
        await self.flows.proxy(node, {**scope, "raw_path": target, "query_string": query}, receive, send)

    def _choose(self, scope: Scope) -> str:
        query = read_query(Request(scope))
        named, session_id = query.get("node"), query.get("sessionId")
        if session_id is None:
            return self._only_node() if named is None else _read_name(named)
        try:
            owner = self.roster.session(session_id).node
        except UnknownSession:
            raise SessionNotFound(session_id.encode(errors="replace").decode()) from None
        if named not in (None, owner):
            raise BadRequest("node is not the one that has the session", parameter="node", node=owner)
        return owner

    def _choose_for_opencode(self, scope: Scope) -> str:
        """OpenCode's programs know no nodes: the one that has all sessions of the directory, or the only one."""
        if scope["path"] == OPENCODE_HEALTH and self.roster.leases:
            return min(self.roster.leases)
        query = read_query(Request(scope))
        if "node" in query:
            return _read_name(query["node"])
        given = header(scope, headers.raw(headers.OPENCODE_DIRECTORY)) or b""
        directory = query.get("directory") or unquote(given.decode("latin-1"), errors="surrogateescape")
        owners = self.roster.owners(directory) if directory else set[str]()
        return owners.pop() if len(owners) == 1 else self._only_node()

    def _only_node(self) -> str:
        nodes = list(self.roster.leases)
        if not nodes:
            raise NoNode("the fleet has no node")
        if len(nodes) > 1:
            raise MissingNode(len(nodes))
        return nodes[0]


def _read_name(text: str) -> str:
    """What a client calls a node. Raises NoNode; then the text may hold what UTF-8 cannot."""
    if not is_name(text):
        raise NoNode(f"no node can be called {text[:40]!a}")
    return text


def _without_secrets(query: bytes) -> bytes:
    parts = query.split(b"&")
    return b"&".join(part for part in parts if unquote_plus(part.partition(b"=")[0].decode("latin-1")) not in _SECRETS)
