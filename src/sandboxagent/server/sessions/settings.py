"""Set a session's mode, model and options, for any shapes that its agent uses.

A client may use any of the three methods, whichever shape the agent has. The answer has the form of the method that
the client used.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from sandboxagent.protocol.envelope import (
    Envelope,
    Object,
    object_at,
    objects_at,
    parse,
    request,
    success,
    text_at,
    with_param,
)
from sandboxagent.protocol.errors import InvalidParams, MethodNotFound, SandboxAgentError
from sandboxagent.server.agents import options as choices
from sandboxagent.server.agents.options import (
    CATEGORIES,
    MODE,
    MODEL,
    OPTIONS,
    SET_OPTION,
    Category,
    Setter,
    find_permission_mode,
)
from sandboxagent.server.log.event import Direction
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import Process, Session

MAX_LISTED = 20
"""Maximum number of values in an error's message. The error's data has all of them."""
_OWN_PARAMS = {MODE.param, MODEL.param, "configId", "value", "type"}


class SessionSettings(Struct, frozen=True):
    """Handlers of `session/set_model`, `set_mode` and `set_config_option`."""

    hub: Hub
    dispatcher: Dispatcher

    async def set_model(self, connection: Connection, envelope: Envelope) -> Answer:
        return await self._set(connection, envelope, MODEL)

    async def set_mode(self, connection: Connection, envelope: Envelope) -> Answer:
        return await self._set(connection, envelope, MODE)

    async def _set(self, connection: Connection, envelope: Envelope, category: Category) -> Answer:
        session = self.hub.session(envelope.session_id)
        value = text_at(envelope.params(), category.param)
        if value is None:
            raise InvalidParams(f"{envelope.method} needs {category.param}, a string")
        # Resume the session first: the agent then announces its offers again, and they decide what to send.
        running, _ = await self.dispatcher.process(connection, envelope)
        return await self._call(connection, running, session, envelope, self._find_way(session, category, value))

    async def set_config_option(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        params = envelope.params()
        config_id = text_at(params, "configId")
        if config_id is None or "value" not in params:
            raise InvalidParams(f"{envelope.method} needs configId, a string, and value")
        running = await self.dispatcher.get_holder(session)
        way = self._option_way(session, config_id, params["value"])
        return await self._call(connection, running, session, envelope, way)

    async def apply(self, session: Session, asked: Object) -> list[str]:
        """Set the values that a client asked for at the start; return a warning for each that could not be set."""
        named = [(category, wished) for category in CATEGORIES if (wished := text_at(asked, category.name)) is not None]
        warnings = [
            await self._try(session, category.name, wished, partial(self._find_way, session, category, wished))
            for category, wished in named
        ]
        # Set options after the model, which determines the available options.
        for config_id, value in object_at(asked, OPTIONS).items():
            find = partial(self._option_way, session, config_id, value)
            warnings.append(await self._try(session, f"option {config_id}", value, find))
        return [warning for warning in warnings if warning is not None]

    async def _try(self, session: Session, what: str, value: object, find_way: Callable[[], Setter]) -> str | None:
        """Set one value with a request of the server's own; return a warning if that failed, else None."""
        try:
            running = await self.dispatcher.get_holder(session)
            way = find_way()
            params = {"sessionId": session.facts.agent_session_id} | way.params
            if isinstance(value, bool):
                params["type"] = "boolean"
            response = await self.dispatcher.call_as_server(running, session, way.method, params)
        except SandboxAgentError as error:
            return f"{what} {value!r} was not set: {error}"
        if not response.succeeded:
            return f"{what} {value!r} was not set: {response.error().get('message')}"
        self._note(session, way, response.result())
        return None

    async def permit(self, session: Session, wished: str) -> None:
        """Apply the permission mode that a client asked for. Raises InvalidParams if the agent cannot."""
        running = await self.dispatcher.get_holder(session)
        mode = find_permission_mode(running.agent, session.facts.offers, wished)
        if mode.own is not None and mode.own != session.mode:
            way = self._find_way(session, MODE, mode.own)
            params = {"sessionId": session.facts.agent_session_id} | way.params
            response = await self.dispatcher.call_as_server(running, session, way.method, params)
            if not response.succeeded:
                message = f"agent {running.agent.id} does not take the mode {mode.own!r} for permissionMode {wished!r}"
                raise InvalidParams(f"{message}: {response.error().get('message')}", agent=running.agent.id)
            self._note(session, way, response.result())
        session.facts.ruled_as = mode.ruled
        self.hub.save(session)

    # The agent's method for a setting

    def _find_way(self, session: Session, category: Category, value: str) -> Setter:
        """Return the agent's method for a mode or a model. Raises MethodNotFound, or InvalidParams for a bad value."""
        agent, offers = session.facts.agent, session.facts.offers
        ways = choices.find_setters(offers, category, value)
        if not ways:
            raise MethodNotFound(f"agent {agent} offers no {category.shape}", agent=agent, method=category.method)
        for way in ways:
            if not way.values or value in way.values:
                return way
        if value == choices.find_current(offers, category) or self._takes_any(session, category):
            return ways[0]
        known = list(dict.fromkeys(value for way in ways for value in way.values))
        raise _make_unknown_value(agent, category.name, value, known)

    def _option_way(self, session: Session, config_id: str, value: object) -> Setter:
        """Return the agent's method for an option, by its id or category. Raises as `_find_way` does.

        `mode` and `model` work for every shape.
        """
        agent, offers = session.facts.agent, session.facts.offers
        option = choices.option(offers, config_id)
        if option is not None:
            way = Setter(SET_OPTION, {"configId": option.get("id"), "value": value}, choices.values_of(option))
            fits = not way.values or value in [*way.values, option.get("currentValue")]
            if fits or (option is choices.find_option(offers, MODEL) and self._takes_any(session, MODEL)):
                return way
            raise _make_unknown_value(agent, config_id, value, way.values)
        for category in CATEGORIES:
            if config_id == category.name and offers.get(category.shape):
                if not isinstance(value, str):
                    raise InvalidParams(f"the value of {config_id} must be a string", value=value)
                return self._find_way(session, category, value)
        known = [str(one.get("id")) for one in objects_at(choices.complete_offers(offers), OPTIONS)]
        if not known:
            raise MethodNotFound(f"agent {agent} offers no options", agent=agent, method=SET_OPTION)
        raise _make_unknown_value(agent, "option", config_id, known)

    def _takes_any(self, session: Session, category: Category) -> bool:
        return category is MODEL and session.process is not None and session.process.agent.any_model

    # The request to the agent, and its response

    async def _call(
        self, connection: Connection, running: Process, session: Session, envelope: Envelope, way: Setter
    ) -> Answer:
        settle = partial(self._finish_change, asked=envelope.method, way=way)
        return await self.dispatcher.call(connection, running, session, _translate(envelope, way), settle)

    def _finish_change(self, call: Call, response: Envelope, *, asked: str, way: Setter) -> Answer:
        session = call.session
        assert session is not None
        line = response.addressed(call.client_id, None)
        if not response.succeeded:
            return Answer(line, self.hub.record(session, line, Direction.FROM_AGENT).last)
        result = response.result()
        self._note(session, way, result)
        position = self.hub.record(session, line, Direction.FROM_AGENT).last
        if asked == SET_OPTION and not isinstance(result.get(OPTIONS), list):
            options = choices.complete_offers(session.facts.offers).get(OPTIONS, [])
            line = success(call.client_id, result | {OPTIONS: options})
        elif asked != SET_OPTION and way.method == SET_OPTION:
            line = success(call.client_id, {name: value for name, value in result.items() if name != OPTIONS})
        return Answer(line, position)

    def _note(self, session: Session, way: Setter, result: Object) -> None:
        if _is_mode(session, way):
            # A client that sets a mode wants exactly that mode, so drop the rules that implemented another one.
            session.facts.ruled_as = None
        if way.method != SET_OPTION:
            category = MODE if way.method == MODE.method else MODEL
            session.choose(category, str(way.params[category.param]))
        elif isinstance(result.get(OPTIONS), list):
            session.learn_offers(result)
        elif (option := choices.option(session.facts.offers, str(way.params["configId"]))) is not None:
            session.learn_offers({OPTIONS: choices.set_value(session.facts.offers, option, way.params["value"])})
        self.hub.note_changed_offers(session)


def _is_mode(session: Session, way: Setter) -> bool:
    if way.method == SET_OPTION:
        return text_at(choices.find_option(session.facts.offers, MODE), "id") == way.params["configId"]
    return way.method == MODE.method


def _translate(envelope: Envelope, way: Setter) -> Envelope:
    """Translate a request to the method of this agent. Its bytes stay unchanged if it has that form already."""
    assert envelope.id is not None
    params = envelope.params()
    if envelope.method == way.method:
        renamed = params | way.params != params
        return parse(with_param(envelope.line, "configId", way.params["configId"])) if renamed else envelope
    others = {name: value for name, value in params.items() if name not in _OWN_PARAMS}
    return parse(request(envelope.id, way.method, others | way.params))


def _make_unknown_value(agent: str, what: str, value: object, known: list[str]) -> InvalidParams:
    listed = ", ".join(known[:MAX_LISTED]) + (f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else "")
    message = f"agent {agent} has no {what} {value!r}; it has {listed}"
    return InvalidParams(message, agent=agent, value=value, available=known)
