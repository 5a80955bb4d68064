"""Permission modes: how much an agent may do without asking, as one of the agent's own modes or as rules. Pure."""

from dataclasses import dataclass

from sandbox_agent.agents.manifest import Agent
from sandbox_agent.envelope import Object, objects_at, text_at
from sandbox_agent.errors import InvalidParams
from sandbox_agent.hub.choices import MODE, listing

KEY = "permissionMode"
"""Of `session/new`, in our `_meta`."""
DEFAULT, BYPASS = "default", "bypassPermissions"
_CHANGES = ["edit", "delete", "move", "execute", "other"]
"""Kinds of tools that may change something."""


def _rule(name: str, action: str, **conditions: object) -> list[Object]:
    return [{"action": action, "name": f"{KEY} {name}", **conditions}]


_ALLOWING: dict[str, list[Object]] = {DEFAULT: [], BYPASS: _rule(BYPASS, "allow", tool="*")}
_ALLOWING_EDITS: dict[str, list[Object]] = {
    "acceptEdits": _rule("acceptEdits", "allow", kind="edit", path="./**"),
}
_FORBIDDING: dict[str, list[Object]] = {name: _rule(name, "reject", kind=_CHANGES) for name in ("plan", "read-only")}
"""Of use only with an agent that asks before it does such things."""


@dataclass(frozen=True, slots=True)
class PermissionMode:
    """How an agent is brought to ask as it should."""

    own: str | None
    """The mode of its own to set; None leaves it as it is."""
    ruled: str | None = None
    """The name of the mode that rules stand in for."""


def wished_mode(asked: Object) -> str | None:
    """What a client asks for; raises InvalidParams when that is no name."""
    if asked.get(KEY) is not None and not isinstance(asked[KEY], str):
        raise InvalidParams(f"{KEY} must be a string")
    return text_at(asked, KEY)


def permission_mode(agent: Agent, offers: Object, wished: str) -> PermissionMode:
    """The mode of an agent that a client means; raises InvalidParams, with those that there are."""
    own = _own_modes(agent, offers)
    if wished in own:
        return PermissionMode(own[wished])
    ruled = _ruled(agent, own)
    if wished in ruled:
        return PermissionMode(own.get(DEFAULT), wished)
    known = list(dict.fromkeys([*own, *ruled]))
    message = f"agent {agent.id} has no {KEY} {wished!r}; it has {', '.join(known)}"
    raise InvalidParams(message, agent=agent.id, value=wished, available=known)


def _asks(agent: Agent) -> str | None:
    return agent.features.permissions if agent.features else None


def _own_modes(agent: Agent, offers: Object) -> dict[str, str]:
    """Names, and the agent's own modes that they mean."""
    if _asks(agent) == "never":
        # Its modes are not about permissions.
        return {}
    modes = [id for one in objects_at(listing(offers, MODE), MODE.available) if (id := text_at(one, MODE.choice_id))]
    others = {name: mode for name, mode in agent.permission_modes.items() if mode in modes}
    return {mode: mode for mode in modes} | {name: mode for name, mode in others.items() if name not in modes}


def _ruled(agent: Agent, own: dict[str, str]) -> list[str]:
    """Names that rules can stand in for, on top of the mode in which the agent asks."""
    asks = _asks(agent)
    if asks == "never":
        return [BYPASS]
    names = [*_ALLOWING]
    if agent.tells_kinds:
        names += _ALLOWING_EDITS
        if asks == "always" or (asks == "mode" and DEFAULT in own):
            names += _FORBIDDING
    return names


def mode_rules(ruled: str | None) -> tuple[list[Object], list[Object]]:
    """The rules that stand in for a mode: those before the session's own, and those after."""
    name = ruled or ""
    return _FORBIDDING.get(name, []), (_ALLOWING | _ALLOWING_EDITS).get(name, [])
