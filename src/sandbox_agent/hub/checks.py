"""What a session request must bring, and its agent must offer, before it is passed on."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from sandbox_agent.agents.boot import RunningAgent
from sandbox_agent.envelope import Envelope, Object
from sandbox_agent.errors import InvalidParams, MethodNotFound
from sandbox_agent.hub.calls import Answer
from sandbox_agent.hub.connection import Connection

Method = Callable[[Connection, Envelope], Awaitable[Answer]]
"""Answers one method of a client."""

_ADVERTISED: Mapping[str, tuple[str, ...]] = {
    "session/load": ("loadSession",),
    "session/resume": ("sessionCapabilities", "resume"),
    "session/fork": ("sessionCapabilities", "fork"),
    "session/close": ("sessionCapabilities", "close"),
    "session/delete": ("sessionCapabilities", "delete"),
    "logout": ("auth", "logout"),
}


def require(running: RunningAgent, method: str) -> None:
    """Raises MethodNotFound, with the agent's name, for what the agent does not advertise."""
    if not running.handshake.offers(*_ADVERTISED[method]):
        raise not_offered(running.agent.id, method)


def not_offered(agent: str, method: str) -> MethodNotFound:
    """The error for a method an agent does not have."""
    return MethodNotFound(f"agent {agent} does not offer {method}", agent=agent, method=method)


def directory(params: Object) -> str:
    """`cwd`. Only some agents check it, so it is checked for all of them; raises InvalidParams."""
    cwd = params.get("cwd")
    if not isinstance(cwd, str) or not Path(cwd).is_absolute():
        raise InvalidParams("cwd must be an absolute path", cwd=cwd)
    if "\0" in cwd or not Path(cwd).is_dir():
        raise InvalidParams(f"cwd {cwd} is not a directory on this host; create it first", cwd=cwd)
    return cwd
