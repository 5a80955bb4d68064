"""What a session request must bring, and its agent must offer, before it is passed on."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sandbox_agent.agents.manifest import Name, Text
from sandbox_agent.envelope import META, Envelope, Object, object_at, param, parse, without_params
from sandbox_agent.errors import InvalidParams, MethodNotFound
from sandbox_agent.hub.attachment import KEY
from sandbox_agent.hub.calls import Answer
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.process import Process
from sandbox_agent.wire import methods

Method = Callable[[Connection, Envelope], Awaitable[Answer]]
"""Answers one method of a client."""

MAX_PROMPT_ID = 128

_ADVERTISED: Mapping[str, tuple[str, ...]] = {
    methods.LOAD: ("loadSession",),
    methods.RESUME: ("sessionCapabilities", "resume"),
    methods.FORK: ("sessionCapabilities", "fork"),
    methods.CLOSE: ("sessionCapabilities", "close"),
    "logout": ("auth", "logout"),
}


def require_advertised(running: Process, method: str) -> None:
    """Raises MethodNotFound, with the agent's name, for what the agent does not advertise."""
    if not running.handshake.offers(*_ADVERTISED[method]):
        raise make_not_offered(running.agent.id, method)


def make_not_offered(agent: str, method: str, more: str = "") -> MethodNotFound:
    """The error for a method an agent does not have; `more` is what to do, or what comes of it."""
    message = f"agent {agent} does not offer {method}"
    return MethodNotFound(f"{message}; {more}" if more else message, agent=agent, method=method)


def read_directory(params: Object) -> str:
    """`cwd`. Only some agents check it, so it is checked for all of them; raises InvalidParams."""
    cwd = params.get("cwd")
    if not isinstance(cwd, str) or not Path(cwd).is_absolute():
        raise InvalidParams("cwd must be an absolute path", cwd=cwd)
    if "\0" in cwd or not Path(cwd).is_dir():
        raise InvalidParams(f"cwd {cwd} is not a directory on this host; create it first", cwd=cwd)
    return cwd


def take_environment(envelope: Envelope) -> tuple[dict[str, str], Envelope]:
    """`env` for a session's own process, and the request without it: it may contain secrets. Raises InvalidParams."""
    asked = object_at(envelope.params(), "_meta", META) if KEY in envelope.line else {}
    if "env" not in asked:
        return {}, envelope
    try:
        environment = msgspec.convert(asked["env"], dict[Name, Text])
    except msgspec.ValidationError:
        raise InvalidParams('env must map names without "=" to strings, all of them without NUL') from None
    return environment, parse(without_params(envelope.line, "_meta", META, "env"))


class _Ours(Struct):
    promptId: Raw | UnsetType = UNSET


class _Meta(Struct, rename={"ours": META}):
    ours: _Ours | UnsetType = UNSET


def prompt_id(line: bytes) -> str | None:
    """What the client calls a prompt; None when it calls it nothing. Raises InvalidParams."""
    meta = param(line, "_meta") if line.find(KEY) >= 0 else None
    try:
        ours = UNSET if meta is None else msgspec.json.decode(meta, type=_Meta).ours
    except msgspec.ValidationError:
        # Not ours to judge: the agent may understand it.
        return None
    if ours is UNSET or ours.promptId is UNSET:
        return None
    try:
        name = msgspec.json.decode(ours.promptId, type=str)
    except msgspec.DecodeError:
        name = ""
    if not 0 < len(name) <= MAX_PROMPT_ID or not name.isprintable():
        raise InvalidParams(f"promptId must be a string of 1 to {MAX_PROMPT_ID} printable characters")
    return name
