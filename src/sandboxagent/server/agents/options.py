"""Read modes, models and options from the three shapes in which agents announce them.

Pure.

An agent sends `configOptions`, among them one of the category `mode` and one of `model`; or `modes`, or `models`; or
several of these. When it sends a value twice, the option wins, because updates carry the option and ACP keeps it.
"""

from msgspec import Struct

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, objects_at, parse, success, text_at, with_result
from sandboxagent.protocol.errors import InvalidParams
from sandboxagent.server.agents.manifest import Agent

OPTIONS = "configOptions"
SET_OPTION = methods.SET_CONFIG_OPTION

KEY = "permissionMode"
"""Member of our `_meta` in `session/new`."""
DEFAULT, BYPASS = "default", "bypassPermissions"
_CHANGES = ["edit", "delete", "move", "execute", "other"]
"""Kinds of tools that may change something."""


class Category(Struct, frozen=True):
    """ACP's names around modes, or around models, which have a shape and a method of their own."""

    name: str
    choice_id: str
    """Member that has the id of a choice in that shape."""

    @property
    def shape(self) -> str:
        return f"{self.name}s"

    @property
    def available(self) -> str:
        return f"available{self.name.capitalize()}s"

    @property
    def current(self) -> str:
        return f"current{self.name.capitalize()}Id"

    @property
    def method(self) -> str:
        return f"session/set_{self.name}"

    @property
    def param(self) -> str:
        return f"{self.name}Id"


MODE = Category("mode", "id")
MODEL = Category("model", "modelId")
CATEGORIES = (MODE, MODEL)


class Setter(Struct, frozen=True):
    """A request that sets a value at an agent, and the values that the agent lists for it."""

    method: str
    params: Object
    values: list[str]


def find_setters(offers: Object, category: Category, value: str) -> list[Setter]:
    """Return the requests that could set a mode or a model at an agent, best first; empty when there are none."""
    found: list[Setter] = []
    if shape := object_at(offers, category.shape):
        found.append(Setter(category.method, {category.param: value}, _ids(shape, category)))
    if option := find_option(offers, category):
        found.append(Setter(SET_OPTION, {"configId": option.get("id"), "value": value}, values_of(option)))
    # ACP has dropped session/set_model, so an agent may send `models` without supporting it.
    return found if category is MODE else found[::-1]


def option(offers: Object, config_id: str) -> Object | None:
    """Return the agent's option with that id, else with that category."""
    for name in ("id", "category"):
        for one in objects_at(offers, OPTIONS):
            if one.get(name) == config_id:
                return one
    return None


def find_option(offers: Object, category: Category) -> Object | None:
    """Return the agent's option for its modes or models."""

    def fits(one: Object) -> int:
        return 2 * (one.get("category") == category.name) + (one.get("id") == category.name)

    best = max(objects_at(offers, OPTIONS), key=fits, default=None)
    return best if best is not None and fits(best) else None


def values_of(option: Object | None) -> list[str]:
    """Return the values of an option that is a list to choose from, grouped or not."""
    return [value for one in _choices(option) if (value := text_at(one, "value")) is not None]


def find_current(offers: Object, category: Category) -> str | None:
    """Return the current mode or model."""
    by_option = text_at(find_option(offers, category), "currentValue")
    return text_at(offers, category.shape, category.current) if by_option is None else by_option


def listing(offers: Object, category: Category) -> Object:
    """Return all modes or models and the current one, in the shape that `modes` and `models` have."""
    chosen_from = [_rename_key(one, "value", category.choice_id) for one in _choices(find_option(offers, category))]
    own = objects_at(offers, category.shape, category.available)
    return {category.available: chosen_from or own, category.current: find_current(offers, category)}


def complete_offers(offers: Object) -> Object:
    """Return all three shapes: those that the agent sent, unchanged, and the missing ones derived from them."""
    whole = {name: offers[name] for name in (MODE.shape, MODEL.shape, OPTIONS) if offers.get(name)}
    for category in CATEGORIES:
        if category.shape not in whole and find_current(offers, category) is not None:
            whole[category.shape] = listing(offers, category)
    if OPTIONS not in whole:
        derived = [
            _as_option(offers, category) for category in CATEGORIES if find_current(offers, category) is not None
        ]
        whole |= {OPTIONS: derived} if derived else {}
    return whole


def list_options(offers: Object) -> list[Object]:
    """Return all options, including those for mode and model, whichever shape the agent uses."""
    return objects_at(complete_offers(offers), OPTIONS)


def complete_answer(line: bytes, offers: Object) -> bytes:
    """Add to the answer that opens a session the shapes that its agent left out; `_meta` names them."""
    answer = parse(line)
    result = answer.result()
    added = {name: value for name, value in complete_offers(offers).items() if not result.get(name)}
    if not added:
        return line
    meta = object_at(result, "_meta")
    added["_meta"] = meta | {META: object_at(meta, META) | {"added": sorted(added)}}
    if not result and answer.id is not None:
        # Some agents answer null.
        return success(answer.id, added)
    for name, value in added.items():
        line = with_result(line, name, value)
    return line


def merge_offers(offers: Object, sent: Object) -> Object:
    """Merge the shapes that an agent has just sent into the known offers, and update those it did not send."""
    news: Object = {name: sent[name] for name in (MODE.shape, MODEL.shape) if isinstance(sent.get(name), dict)}
    if isinstance(sent.get(OPTIONS), list):
        news[OPTIONS] = sent[OPTIONS]
    known = offers | news
    for category in CATEGORIES:
        if (category.shape in news) == (OPTIONS in news):
            continue
        follows = news if category.shape in news else {OPTIONS: known.get(OPTIONS)}
        value = find_current(follows, category)
        if value is not None:
            known = choose(known, category, value)
    return known


def choose(offers: Object, category: Category, value: str) -> Object:
    """Return the offers after a mode or a model is set, in every shape that has it.

    Two shapes may use different names for one model (`m[high]`, and `m` with an option for the rest). The value is set
    in each shape that lists it, or in all of them when none does.
    """
    option, shape = find_option(offers, category), object_at(offers, category.shape)
    in_option = option is not None and value in (values_of(option) or [value])
    in_shape = bool(shape) and value in (_ids(shape, category) or [value])
    known = offers
    if (shape and (in_shape or not in_option)) or option is None:
        known = known | {category.shape: shape | {category.current: value}}
    if option is not None and (in_option or not in_shape):
        known = known | {OPTIONS: set_value(offers, option, value)}
    return known


def set_value(offers: Object, option: Object, value: object) -> list[Object]:
    """Return the agent's options after one of them was given another value."""
    return [one | {"currentValue": value} if one is option else one for one in objects_at(offers, OPTIONS)]


def _ids(shape: Object, category: Category) -> list[str]:
    ids = (text_at(one, category.choice_id) for one in objects_at(shape, category.available))
    return [id for id in ids if id is not None]


def _choices(option: Object | None) -> list[Object]:
    groups = objects_at(option, "options")
    return [one for group in groups for one in objects_at(group, "options") or [group] if "value" in one]


def _as_option(offers: Object, category: Category) -> Object:
    choices = objects_at(offers, category.shape, category.available)
    return {
        "id": category.name,
        "name": category.name.capitalize(),
        "category": category.name,
        "type": "select",
        "currentValue": find_current(offers, category),
        "options": [_rename_key(one, category.choice_id, "value") for one in choices if category.choice_id in one],
    }


def _rename_key(choice: Object, old: str, new: str) -> Object:
    return {new: choice[old]} | {name: value for name, value in choice.items() if name != old}


def _rule(name: str, action: str, **conditions: object) -> list[Object]:
    return [{"action": action, "name": f"{KEY} {name}", **conditions}]


_ALLOWING: dict[str, list[Object]] = {DEFAULT: [], BYPASS: _rule(BYPASS, "allow", tool="*")}
_ALLOWING_EDITS: dict[str, list[Object]] = {
    "acceptEdits": _rule("acceptEdits", "allow", kind="edit", path="./**"),
}
_FORBIDDING: dict[str, list[Object]] = {name: _rule(name, "reject", kind=_CHANGES) for name in ("plan", "read-only")}
"""Rules that forbid. They work only with an agent that asks before it does such things."""


class PermissionMode(Struct, frozen=True):
    """The settings that make an agent ask as a client wants."""

    own: str | None
    """The agent's own mode to set; None leaves the mode as it is."""
    ruled: str | None = None
    """Name of the mode that rules stand in for."""


def read_wished_mode(asked: Object) -> str | None:
    """Return the permission mode that a client asks for. Raises InvalidParams when it is not a string."""
    if asked.get(KEY) is not None and not isinstance(asked[KEY], str):
        raise InvalidParams(f"{KEY} must be a string")
    return text_at(asked, KEY)


def find_permission_mode(agent: Agent, offers: Object, wished: str) -> PermissionMode:
    """Find the mode of an agent that a client means. Raises InvalidParams, which lists the modes."""
    own = _find_agent_modes(agent, offers)
    if wished in own:
        return PermissionMode(own[wished])
    ruled = _find_rule_modes(agent, own)
    if wished in ruled:
        return PermissionMode(own.get(DEFAULT), wished)
    known = list(dict.fromkeys([*own, *ruled]))
    message = f"agent {agent.id} has no {KEY} {wished!r}; it has {', '.join(known)}"
    raise InvalidParams(message, agent=agent.id, value=wished, available=known)


def _find_asking_mode(agent: Agent) -> str | None:
    return agent.features.permissions if agent.features else None


def _find_agent_modes(agent: Agent, offers: Object) -> dict[str, str]:
    """Return the agent's own modes, by the names that clients may use for them."""
    if _find_asking_mode(agent) == "never":
        # Its modes are not about permissions.
        return {}
    modes = [id for one in objects_at(listing(offers, MODE), MODE.available) if (id := text_at(one, MODE.choice_id))]
    others = {name: mode for name, mode in agent.permission_modes.items() if mode in modes}
    return {mode: mode for mode in modes} | {name: mode for name, mode in others.items() if name not in modes}


def _find_rule_modes(agent: Agent, own: dict[str, str]) -> list[str]:
    """Return the names of modes that rules can stand in for, on top of the mode in which the agent asks."""
    asks = _find_asking_mode(agent)
    if asks == "never":
        return [BYPASS]
    names = [*_ALLOWING]
    if agent.tells_kinds:
        names += _ALLOWING_EDITS
        if asks == "always" or (asks == "mode" and DEFAULT in own):
            names += _FORBIDDING
    return names


def mode_rules(ruled: str | None) -> tuple[list[Object], list[Object]]:
    """Return the rules that stand in for a mode: those before the session's own, and those after."""
    name = ruled or ""
    return _FORBIDDING.get(name, []), (_ALLOWING | _ALLOWING_EDITS).get(name, [])
