"""How to make each agent ask a question, and what its model gets of the answer."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.agents.real import PLAIN, RealAgent, Session
from tests.support import asking_tool
from tests.support.client import Client, Json, Stream
from tests.support.model.script import Call
from tests.support.speaking import FORMS, QUESTIONS, Speaking

CHOICES = ("SQLite", "Postgres", "Redis")
_OPTIONS = [{"label": label, "description": f"Known as {label}"} for label in CHOICES]
_QUESTION = {"header": "Database", "question": "Which database?", "options": _OPTIONS}
_TOOL = {"name": "asker", "command": sys.executable, "args": ["-I", asking_tool.__file__], "env": []}


@dataclass(frozen=True, kw_only=True)
class Asker:
    """One agent."""

    one: Call
    """The call of the tool that asks which database to take."""
    heard: str
    """What the model hears, with braces for the answer."""
    field: str
    """What the form calls the answer."""
    many: Call | None = None
    """The same where several may be taken."""
    own: tuple[str, ...] = ()
    """The fields of the form for a free answer; the last takes its text."""
    declined: str | None
    """What the model gets when the person declines; None: it is not asked again, and the turn ends."""
    cancelled: str | None
    """The same for a question that was cancelled."""
    options: tuple[tuple[str, str], ...] = ()
    """What must be set for it to ask."""
    mode: str | None = None
    tool: bool = False
    """It asks only what a tool of an MCP server asks."""

    def form(self, *chosen: str, several: bool = False) -> Json:
        """The answer of a client that knows forms."""
        return {"action": "accept", "content": {self.field: list(chosen) if several else chosen[0]}}

    def own_words(self, words: str) -> Json:
        first = dict.fromkeys(self.own[:-1], "None of the above")
        return {"action": "accept", "content": {**first, self.own[-1]: words}}

    @asynccontextmanager
    async def session(self, real: RealAgent, capabilities: Json = QUESTIONS) -> AsyncGenerator[Session]:
        """A session in which it asks, on a new connection of a client that can be asked so; other tests use it, too."""
        async with (
            Speaking(real.server, capabilities, real.recipe.agent) as client,
            client.stream() as stream,
            real.lent(self._kind, client, stream, lambda: self._opened(real, client, stream)) as session,
        ):
            yield session

    @property
    def _kind(self) -> str:
        """Any session will do for an agent that asks without being set to."""
        return "asking" if self.options or self.mode or self.tool else PLAIN

    async def _opened(self, real: RealAgent, client: Client, stream: Stream) -> Session:
        meta = {} if self.mode is None else {"mode": self.mode}
        session = await real.new_session(client, stream, **meta)
        if self.tool:
            params = {"cwd": str(session.folder), "mcpServers": [_TOOL], "_meta": {"sandboxagent.dev": meta}}
            session = session.named((await client.result("session/new", params))["sessionId"])
        for option, value in self.options:
            params = {"sessionId": session.id, "configId": option, "value": value}
            await client.result("session/set_config_option", params)
        return session


ASKERS = {
    "claude": Asker(
        one=Call("AskUserQuestion", {"questions": [_QUESTION | {"multiSelect": False}]}),
        many=Call("AskUserQuestion", {"questions": [_QUESTION | {"multiSelect": True}]}),
        heard='"Which database?"="{}"',
        field="question_0",
        own=("question_0_custom",),
        declined="did not answer",
        cancelled="aborted",
    ),
    "codex": Asker(
        one=Call("request_user_input", {"questions": [_QUESTION | {"id": "db"}]}),
        heard='"db":{{"answers":["{}"]}}',
        field="db",
        own=("db", "db_note"),
        declined='{"answers":{}}',
        cancelled='{"answers":{}}',
        options=(("collaboration_mode", "plan"),),
    ),
    "opencode": Asker(
        one=Call("question", {"questions": [_QUESTION]}),
        many=Call("question", {"questions": [_QUESTION | {"multiple": True}]}),
        heard='"Which database?"="{}"',
        field="question_0",
        own=("question_0_other",),
        declined=None,
        cancelled=None,
    ),
    "qwen": Asker(
        one=Call("ask_user_question", {"questions": [_QUESTION]}),
        many=Call("ask_user_question", {"questions": [_QUESTION | {"multiSelect": True}]}),
        heard="**Database**: {}",
        field="question_0",
        own=("question_0_other",),
        declined=None,
        cancelled=None,
    ),
    "goose": Asker(
        one=Call("asker__ask"),
        heard='"content": {{"db": "{}"}}',
        field="db",
        declined='"action": "decline"',
        cancelled='"action": "cancel"',
        mode="auto",
        tool=True,
    ),
}

SPEECHES = {"questions": QUESTIONS, "forms": FORMS}
