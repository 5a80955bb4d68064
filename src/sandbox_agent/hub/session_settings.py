"""Model, mode and options of a session, the same for a client whatever shape its agent has them in.

Agents have `models` and `modes` with methods of their own, or config options of these categories, or both.
"""

from dataclasses import dataclass
from functools import partial

from sandbox_agent.envelope import Envelope, Object, object_at, objects_at, parse, request, text_at, with_id
from sandbox_agent.errors import InvalidParams, MethodNotFound, SandboxAgentError
from sandbox_agent.hub.calls import Answer, Call
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.forward import Forward
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.session import Session
from sandbox_agent.log.event import Direction


@dataclass(frozen=True, slots=True)
class SessionSettings:
    hub: Hub
    forward: Forward

    async def set_model(self, connection: Connection, envelope: Envelope) -> Answer:
        return await self._set(connection, envelope, "model", "models", "modelId")

    async def set_mode(self, connection: Connection, envelope: Envelope) -> Answer:
        return await self._set(connection, envelope, "mode", "modes", "modeId")

    async def set_config_option(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        params = envelope.params()
        for category, method in (("model", "session/set_model"), ("mode", "session/set_mode")):
            offered = session.facts.offers.get(f"{category}s")
            if params.get("configId") == category and offered and session.option(category) is None:
                translated = {"sessionId": envelope.session_id, f"{category}Id": params.get("value")}
                return await self._call(connection, session, envelope, method, translated)
        return await self._call(connection, session, envelope, envelope.method, params)

    def models(self, session: Session | None) -> Object:
        """`availableModels` and `currentModelId`, from the agent's `models` or its model option."""
        models = object_at(session.facts.offers, "models") if session else {}
        if models:
            return {"availableModels": models.get("availableModels"), "currentModelId": models.get("currentModelId")}
        option = session.option("model") if session else None
        values = [
            choice for group in objects_at(option, "options") for choice in objects_at(group, "options") or [group]
        ]
        available = [
            {"modelId": one.get("value"), "name": one.get("name"), "description": one.get("description")}
            for one in values
        ]
        return {"availableModels": available, "currentModelId": option.get("currentValue") if option else None}

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

    async def _set(
        self, connection: Connection, envelope: Envelope, category: str, offer: str, parameter: str
    ) -> Answer:
        session = self.hub.session(envelope.session_id)
        value = text_at(envelope.params(), parameter)
        if value is None:
            raise InvalidParams(f"{envelope.method} needs {parameter}, a string")
        if session.facts.offers.get(offer) or not session.facts.offers:
            return await self._call(connection, session, envelope, envelope.method, envelope.params())
        method, params = self._how(session, category, value)
        return await self._call(connection, session, envelope, method, {"sessionId": envelope.session_id, **params})

    def _how(self, session: Session, category: str, value: str) -> tuple[str, Object]:
        """The method and parameters by which this agent takes a mode or a model."""
        if session.facts.offers.get(f"{category}s"):
            return f"session/set_{category}", {f"{category}Id": value}
        option = session.option(category)
        if option is None:
            agent = session.facts.agent
            raise MethodNotFound(f"agent {agent} does not offer session/set_{category}", agent=agent)
        return "session/set_config_option", {"configId": option.get("id"), "value": value}

    async def _call(
        self, connection: Connection, session: Session, envelope: Envelope, method: str, params: Object
    ) -> Answer:
        assert envelope.id is not None
        running = await self.forward.holder(session)
        asked = envelope if method == envelope.method else parse(request(envelope.id, method, params))
        settle = partial(self._changed, method=method, params=params)
        return await self.forward.call(connection, running, session, asked, settle)

    def _changed(self, call: Call, response: Envelope, *, method: str, params: Object) -> Answer:
        assert call.session is not None
        line = with_id(response.line, call.client_id)
        self.hub.record(call.session, line, Direction.FROM_AGENT)
        if response.succeeded:
            self._note(call.session, method, params, response.result())
        return Answer(line)

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
