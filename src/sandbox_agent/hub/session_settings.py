"""Model, mode and options of a session, the same for a client whatever shape its agent has them in.

Agents have `models` and `modes` with methods of their own, or config options of these categories, or both.
"""

from dataclasses import dataclass
from functools import partial

from sandbox_agent.envelope import (
    Envelope,
    Object,
    object_at,
    objects_at,
    parse,
    request,
    text_at,
    with_id,
    with_result,
)
from sandbox_agent.errors import InvalidParams, SandboxAgentError
from sandbox_agent.hub.calls import Answer, Call
from sandbox_agent.hub.checks import not_offered
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.forward import Forward
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.session import Session
from sandbox_agent.log.event import Direction


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """`session/set_model`, `set_mode` and `set_config_option`."""

    hub: Hub
    forward: Forward

    async def set_model(self, connection: Connection, envelope: Envelope) -> Answer:
        return await self._set(connection, envelope, "model")

    async def set_mode(self, connection: Connection, envelope: Envelope) -> Answer:
        return await self._set(connection, envelope, "mode")

    async def _set(self, connection: Connection, envelope: Envelope, category: str) -> Answer:
        session = self.hub.session(envelope.session_id)
        value = text_at(envelope.params(), f"{category}Id")
        if value is None:
            raise InvalidParams(f"{envelope.method} needs {category}Id, a string")
        method, params = self._how(session, category, value)
        return await self._call(connection, session, envelope, method, params)

    async def set_config_option(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        params = envelope.params()
        category = params.get("configId")
        if (
            category in ("model", "mode")
            and session.option(category) is None
            and session.facts.offers.get(f"{category}s")
        ):
            translated: Object = {f"{category}Id": params.get("value")}
            answer = await self._call(connection, session, envelope, f"session/set_{category}", translated)
            return self._with_options(session, answer)
        if not session.facts.offers.get("configOptions"):
            raise not_offered(session.facts.agent, envelope.method)
        return await self._call(connection, session, envelope, envelope.method, params)

    def _with_options(self, session: Session, answer: Answer) -> Answer:
        """What a client expects in answer to set_config_option, of an agent that has no options."""
        if not parse(answer.line).succeeded:
            return answer
        options = [*objects_at(session.facts.offers, "configOptions"), *map(self._as_option, _offered(session))]
        return Answer(with_result(answer.line, "configOptions", options), answer.commit)

    @staticmethod
    def _as_option(offer: tuple[str, Object]) -> Object:
        category, offered = offer
        choices = objects_at(offered, f"available{category.capitalize()}s")
        return {
            "id": category,
            "name": category.capitalize(),
            "category": category,
            "type": "select",
            "currentValue": offered.get(f"current{category.capitalize()}Id"),
            "options": [{"value": one.get(f"{category}Id", one.get("id")), "name": one.get("name")} for one in choices],
        }

    async def apply(self, session: Session, asked: Object) -> list[str]:
        """Set what a client wished at the start; gives what could not be had."""
        warnings: list[str] = []
        for category in ("mode", "model"):
            wished = text_at(asked, category)
            if wished is None:
                continue
            try:
                method, params = self._how(session, category, wished)
                running = await self.forward.holder(session)
                params["sessionId"] = session.facts.agent_session_id
                response = await self.forward.own_call(running, session, method, params)
            except SandboxAgentError as error:
                warnings.append(f"{category} {wished!r} was not set: {error}")
                continue
            if response.succeeded:
                self._note(session, method, params, response.result())
            else:
                warnings.append(f"{category} {wished!r} was not set: {response.error().get('message')}")
        return warnings

    def _how(self, session: Session, category: str, value: str) -> tuple[str, Object]:
        """The method and parameters by which this agent takes a mode or a model."""
        if session.facts.offers.get(f"{category}s"):
            return f"session/set_{category}", {f"{category}Id": value}
        option = session.option(category)
        if option is None:
            raise not_offered(session.facts.agent, f"session/set_{category}")
        return "session/set_config_option", {"configId": option.get("id"), "value": value}

    async def _call(
        self, connection: Connection, session: Session, envelope: Envelope, method: str, params: Object
    ) -> Answer:
        assert envelope.id is not None
        running = await self.forward.holder(session)
        asked = envelope
        if method != envelope.method:
            asked = parse(request(envelope.id, method, {"sessionId": session.id, **params}))
        settle = partial(self._changed, method=method, params=params)
        return await self.forward.call(connection, running, session, asked, settle)

    def _changed(self, call: Call, response: Envelope, *, method: str, params: Object) -> Answer:
        assert call.session is not None
        line = with_id(response.line, call.client_id)
        if response.succeeded:
            self._note(call.session, method, params, response.result())
        return Answer(line, self.hub.record(call.session, line, Direction.FROM_AGENT).last)

    def _note(self, session: Session, method: str, params: Object, result: Object) -> None:
        offers = session.facts.offers
        match method:
            case "session/set_mode":
                offers["modes"] = object_at(offers, "modes") | {"currentModeId": params.get("modeId")}
            case "session/set_model":
                offers["models"] = object_at(offers, "models") | {"currentModelId": params.get("modelId")}
            case _:
                session.learn_offers(result)
        self.hub.save(session)


def _offered(session: Session) -> list[tuple[str, Object]]:
    offers = ((category, object_at(session.facts.offers, f"{category}s")) for category in ("mode", "model"))
    return [(category, offered) for category, offered in offers if offered and session.option(category) is None]
