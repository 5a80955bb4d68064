"""Create, list, change, prompt and end sessions as OpenCode's programs do, by requests to the hub.

Every change goes to the hub as a request of ACP, and the hub stores sessions. This module keeps only drafts: sessions
before their first prompt. A draft has no agent, because only the first prompt names it. Drafts are in memory, and a
restart loses them. With the first prompt, a draft becomes a session with the same id.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from sandboxagent import __version__
from sandboxagent.adapters.opencode.errors import BridgeError, refuse_message, refuse_other_agent, refuse_session
from sandboxagent.adapters.opencode.events import EventBus
from sandboxagent.adapters.opencode.hub_client import HubClient, Prompted
from sandboxagent.adapters.opencode.ids import Ticks, is_given_id, make_id, milliseconds
from sandboxagent.adapters.opencode.objects import (
    Cache,
    CommandBody,
    Message,
    MessageModel,
    ModelRef,
    NewSession,
    PromptBody,
    SessionChange,
    SessionInfo,
    SessionTime,
    Tokens,
)
from sandboxagent.adapters.opencode.prompts import KEY, PromptNote, make_blocks, make_meta, make_title
from sandboxagent.adapters.opencode.providers import Providers
from sandboxagent.adapters.opencode.session_ids import (
    Facts,
    default_title,
    describe,
    find_session,
    id_of,
    is_busy,
    make_slug,
    project_id,
)
from sandboxagent.adapters.opencode.transcript import DEFAULT, Transcript
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, objects_at, text_at
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.options import MODE
from sandboxagent.server.sessions.dispatch import resume_params
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session
from sandboxagent.server.sessions.store import sort_key

DEFAULT_LIMIT = 100
"""Default maximum number of sessions in a list."""
USED_LAST = 200
"""Minimum number of the newest sessions that a list reads to find those used last."""
PAGE, LOOKED_THROUGH = 50, 5000
"""Number of sessions that are read at a time, and the maximum for one list."""
_COMPACT = "compact"
"""The agents' name of the command that shortens their memory of a conversation."""
MAX_DRAFTS = 1000
"""Maximum number of drafts. Above it, the oldest is forgotten."""
_LAST_TICK = (1 << 48) - 1


@dataclass(slots=True)
class Draft:
    """A session before its first prompt."""

    id: str
    directory: str
    created_at: float
    updated_at: float
    title: str | None = None
    agent: str | None = None
    """The requested mode, or the id of an agent."""
    model: ModelRef | None = None
    facts: Facts = field(default_factory=Facts)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that is held while the draft's session is opened."""

    def describe(self) -> SessionInfo:
        time = SessionTime(created=milliseconds(self.created_at), updated=milliseconds(self.updated_at))
        time.archived = UNSET if self.facts.archived is None else self.facts.archived
        return SessionInfo(
            id=self.id,
            slug=make_slug(self.id),
            project_id=project_id(self.directory),
            directory=self.directory,
            title=self.title or default_title(self.created_at),
            version=__version__,
            time=time,
            parent_id=self.facts.parent_id or UNSET,
            agent=self.agent or UNSET,
            model=self.model or UNSET,
            cost=0,
            tokens=Tokens(cache=Cache()),
            permission=list(self.facts.permission) or UNSET,
            metadata=UNSET if self.facts.metadata is None else self.facts.metadata,
        )


class Drafts:
    """All drafts, by id."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._drafts: dict[str, Draft] = {}
        self._ticks = Ticks()

    def add(self, directory: str) -> Draft:
        now = self._clock()
        # Ids of sessions descend: a later session has a smaller number.
        tick = _LAST_TICK - self._ticks.next(milliseconds(now))
        draft = Draft(make_id("ses", tick, secrets.token_hex(8)), directory, now, now)
        self._drafts[draft.id] = draft
        if len(self._drafts) > MAX_DRAFTS:
            del self._drafts[next(iter(self._drafts))]
        return draft

    def find(self, id: str) -> Draft | None:
        return self._drafts.get(id)

    def remove(self, id: str) -> None:
        self._drafts.pop(id, None)

    def all(self) -> list[Draft]:
        """Return all drafts, newest first."""
        return list(reversed(self._drafts.values()))


class BridgeSessions:
    """All sessions, and all drafts."""

    def __init__(
        self,
        client: HubClient,
        transcripts: Transcripts,
        bus: EventBus,
        providers: Providers,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._hub: Hub = client.hub
        self._transcripts = transcripts
        self._bus = bus
        self._providers = providers
        self._clock = clock
        self._drafts = Drafts(clock)

    # Finding

    def find(self, id: str) -> Session | Draft:
        """Return the session or draft with an id. Raises BridgeError."""
        found = find_session(self._hub, id, self._clock()) or self._drafts.find(id)
        return refuse_session(id) if found is None else found

    def has_draft(self, id: str) -> bool:
        return self._drafts.find(id) is not None

    def describe(self, one: Session | Draft) -> SessionInfo:
        return one.describe() if isinstance(one, Draft) else describe(one, self._transcripts.find(one))

    def directory_of(self, id: str) -> str:
        one = self.find(id)
        return one.directory if isinstance(one, Draft) else one.facts.cwd

    def find_all(
        self,
        directory: str | None,
        *,
        roots: bool = False,
        start: int | None = None,
        search: str | None = None,
        limit: int | None = None,
    ) -> list[SessionInfo]:
        """Return sessions and drafts, the last used first."""
        drafts = [each.describe() for each in self._drafts.all() if directory in (None, each.directory)]
        wanted = DEFAULT_LIMIT if limit is None else limit

        def is_wanted(info: SessionInfo) -> bool:
            old = start is not None and info.time.updated < start
            unlike = search is not None and search.casefold() not in info.title.casefold()
            return not (old or unlike or (roots and info.parent_id is not UNSET))

        found = [info for info in drafts if is_wanted(info)]
        # Read more than are wanted: a session that was made earlier may have been used last.
        most = len(found) + max(wanted, USED_LAST)
        for session in self._newest(directory):
            if len(found) >= most:
                break
            info = describe(session, self._transcripts.find(session))
            found += [info] if is_wanted(info) else []
        found.sort(key=lambda info: info.time.updated, reverse=True)
        return found[:wanted]

    def _newest(self, directory: str | None) -> Iterator[Session]:
        """Yield sessions, newest first, at most LOOKED_THROUGH."""
        before = None
        for _ in range(LOOKED_THROUGH // PAGE):
            page = self._hub.store.page(before, directory, PAGE)
            yield from page
            if len(page) < PAGE:
                return
            before = sort_key(page[-1])

    def children(self, id: str) -> list[SessionInfo]:
        self.find(id)
        return [info for info in self.find_all(None, limit=LOOKED_THROUGH) if info.parent_id == id]

    def statuses(self, directory: str | None) -> Object:
        """Return the statuses of all running sessions, of the newest others, and of drafts."""
        running = [call.session for call in self._hub.calls.find_turns() if call.session is not None]
        sessions = [
            *self._hub.store.page(None, directory, DEFAULT_LIMIT),
            *(each for each in running if directory in (None, each.facts.cwd)),
        ]
        drafts = [each.id for each in self._drafts.all() if directory in (None, each.directory)]
        idle: Object = {id: {"type": "idle"} for id in drafts}
        return idle | {id_of(each): {"type": "busy" if is_busy(each) else "idle"} for each in sessions}

    async def transcript(self, id: str) -> Transcript | None:
        """Return a session's transcript, up to date; None for a draft."""
        one = self.find(id)
        return None if isinstance(one, Draft) else await self._transcripts.get(one)

    async def message(self, id: str, message_id: str) -> Message:
        transcript = await self.transcript(id)
        found = transcript.find(message_id) if transcript else None
        return refuse_message(message_id) if found is None else found

    # Making and changing

    def create(self, directory: str, asked: NewSession) -> SessionInfo:
        """Create a draft. If it raises BridgeError, there is no draft."""
        if asked.parent_id is not UNSET:
            self.find(asked.parent_id)
        if asked.model:
            self._check_model(self._agent(asked.model.provider_id), asked.model.id)
        draft = self._drafts.add(directory)
        draft.title = asked.title or None
        draft.agent = asked.agent or None
        draft.model = asked.model or None
        draft.facts = Facts(
            parent_id=asked.parent_id or None,
            permission=tuple(asked.permission or ()),
            metadata=asked.metadata or None,
        )
        self._tell_draft(draft, "session.created")
        return draft.describe()

    async def change(self, id: str, change: SessionChange) -> SessionInfo:
        one = self.find(id)
        facts = one.facts if isinstance(one, Draft) else Facts.of(one)
        if change.permission is not UNSET:
            facts = replace(facts, permission=tuple(change.permission))
        if change.metadata is not UNSET:
            facts = replace(facts, metadata=change.metadata)
        if change.time is not UNSET and change.time.archived is not UNSET:
            facts = replace(facts, archived=None if change.time.archived is None else int(change.time.archived))
        if isinstance(one, Draft):
            one.facts, one.updated_at = facts, self._clock()
            one.title = one.title if change.title is UNSET else change.title
            self._tell_draft(one, "session.updated")
            return one.describe()
        await self._keep(one, facts, {} if change.title is UNSET else {"title": change.title})
        return self.describe(one)

    async def _keep(self, session: Session, facts: Facts, others: Object | None = None) -> None:
        params: Object = {"sessionId": session.id, "metadata": {KEY: facts.write(), **(others or {})}}
        await self._client.call(session.facts.agent, methods.SET_METADATA, params)

    async def delete(self, id: str) -> None:
        one = self.find(id)
        if isinstance(one, Draft):
            self._drafts.remove(id)
            self._tell_draft(one, "session.deleted")
            return
        agent = one.facts.agent
        params: Object = {"sessionId": one.id}
        if not one.over:
            # Terminate it first. Then it can be deleted here even if its agent cannot delete sessions.
            await self._client.call(agent, methods.TERMINATE, params)
        await self._client.call(agent, methods.DELETE, params)

    async def fork(self, id: str, message_id: str | None) -> SessionInfo:
        one = self.find(id)
        if isinstance(one, Draft):
            return self.create(one.directory, NewSession(title=one.title or UNSET, model=one.model or UNSET))
        if message_id is not None:
            messages = (await self._transcripts.get(one)).messages()
            if not messages or messages[-1].info.id != message_id:
                raise BridgeError(400, "agents fork a session as a whole, not from one of its messages")
        params = resume_params(one) | {"sessionId": one.id}
        result = await self._client.call(one.facts.agent, methods.FORK, params)
        forked = self._hub.session(text_at(result, "sessionId"))
        await self._keep(
            forked, replace(Facts.of(forked), parent_id=None), {"title": f"{self.describe(one).title} (fork)"}
        )
        return self.describe(forked)

    # Prompting

    async def prompt(self, id: str, body: PromptBody) -> tuple[Session, Prompted]:
        """Send a prompt to a session. Raises BridgeError if it is not accepted."""
        if body.no_reply:
            raise BridgeError(400, "noReply is not supported: over ACP, an agent answers every prompt")
        note = PromptNote(messageID=await self._check_message_id(id, body.message_id or None))
        make_blocks(body.parts, images=True, embeds=True)
        session = await self._bind(id, body.model or None, body.agent or None, body.parts)
        agent = self._agent(session.facts.agent)
        images, embeds = (self._providers.takes(agent, name) for name in ("image", "embeddedContext"))
        blocks, note.partIDs = make_blocks(body.parts, images=images, embeds=embeds)
        return session, await self._send(session, blocks, note)

    async def command(self, id: str, body: CommandBody) -> tuple[Session, Prompted]:
        """Send a slash command, as a prompt that begins with the command. Raises BridgeError."""
        model = None
        if body.model:
            provider, _, name = body.model.partition("/")
            model = MessageModel(provider_id=provider, model_id=name)
        text = f"/{body.command} {body.arguments}".rstrip()
        parts: list[Object] = [{"type": "text", "text": text}, *body.parts]
        note = PromptNote(messageID=await self._check_message_id(id, body.message_id or None))
        note.command = f"{body.command} {body.arguments}".rstrip()
        session = await self._bind(id, model, body.agent or None, parts)
        blocks, note.partIDs = make_blocks(parts, images=True, embeds=True)
        return session, await self._send(session, blocks, note)

    async def compact(self, id: str) -> tuple[Session, Prompted]:
        """Have the agent shorten its own memory of the conversation. Raises BridgeError if it has no command for it."""
        session = self._session(id)
        transcript = await self._transcripts.get(session)
        if _COMPACT not in [text_at(each, "name") for each in transcript.commands]:
            raise BridgeError(400, f"agent {session.facts.agent} offers no command to compact a session")
        return session, await self._send(session, [{"type": "text", "text": f"/{_COMPACT}"}], PromptNote(compacts=True))

    async def finish(self, session: Session, prompted: Prompted) -> Message:
        """Wait until a prompt's turn is over and readers have its events, and return the reply."""
        await prompted.over()
        transcript = await self._transcripts.get(session)
        await self._bus.flushed()
        reply = transcript.find_reply(prompted.turn_id)
        if reply is None:
            raise BridgeError(500, "the answer is no longer kept")
        return reply

    async def abort(self, id: str) -> None:
        one = self.find(id)
        if isinstance(one, Session) and is_busy(one):
            await self._client.notify(one.facts.agent, methods.CANCEL, {"sessionId": one.id})

    async def init(self, id: str, provider_id: str, model_id: str) -> None:
        """Bind a session to an agent and a model."""
        await self._bind(id, MessageModel(provider_id=provider_id, model_id=model_id), None, [])

    async def _send(self, session: Session, blocks: list[Object], note: PromptNote) -> Prompted:
        note.agent, note.model = session.mode or DEFAULT, session.model or DEFAULT
        params: Object = {"sessionId": session.id, "prompt": blocks, "_meta": make_meta(note)}
        return await self._client.prompt(session, params)

    async def _check_message_id(self, id: str, message_id: str | None) -> str | None:
        if message_id is None:
            return None
        if not is_given_id("msg", message_id):
            message = (
                "messageID must begin with msg_, have only letters, digits, _ and -, and no time far in the future"
            )
            raise BridgeError(400, message)
        transcript = await self.transcript(id)
        if transcript is not None and transcript.find(message_id) is not None:
            raise BridgeError(400, f"there is a message {message_id} already")
        return message_id

    # Binding a session to an agent, a model and a mode

    def _session(self, id: str) -> Session:
        one = self.find(id)
        if isinstance(one, Draft):
            raise BridgeError(400, "this session has no prompt yet")
        return one

    async def bound(self, id: str) -> Session:
        """Return the session with an id; open it first if it is a draft."""
        return await self._bind(id, None, None, [])

    async def _bind(self, id: str, model: MessageModel | None, mode: str | None, parts: list[Object]) -> Session:
        one = self.find(id)
        if isinstance(one, Draft):
            async with one.opening:
                # Another prompt may have opened the session meanwhile.
                one = self.find(id)
                if isinstance(one, Draft):
                    return await self._open(one, model, mode, parts)
        await self._set(one, model, mode)
        return one

    async def _set(self, session: Session, model: MessageModel | None, mode: str | None) -> None:
        agent = session.facts.agent
        if model is not None:
            if model.provider_id != agent:
                refuse_other_agent()
            if model.model_id not in (DEFAULT, session.model):
                self._check_model(self._agent(agent), model.model_id)
                await self._client.call(agent, methods.SET_MODEL, {"sessionId": session.id, "modelId": model.model_id})
        if mode is not None and mode != session.mode and mode in _mode_names(session):
            await self._client.call(agent, methods.SET_MODE, {"sessionId": session.id, "modeId": mode})

    async def _open(self, draft: Draft, model: MessageModel | None, mode: str | None, parts: list[Object]) -> Session:
        """Open the session of a draft, with the agent that the first prompt names."""
        wished = draft.model
        if model is not None:
            wished = ModelRef(provider_id=model.provider_id, id=model.model_id)
        mode = mode or draft.agent
        if wished is None and mode is not None and self._providers.find(mode) is not None:
            wished, mode = ModelRef(provider_id=mode, id=DEFAULT), None
        agent = self._agent(wished.provider_id if wished else self._providers.default_agent())
        asked: Object = {"agent": agent.id, "requestedSessionId": draft.id}
        if wished is not None and wished.id != DEFAULT:
            self._check_model(agent, wished.id)
            asked["model"] = wished.id
        if mode is not None and mode in self._providers.mode_names(agent):
            asked["mode"] = mode
        if draft.title is not None:
            asked["title"] = draft.title
        said = next((text for part in parts if part.get("type") == "text" and (text := text_at(part, "text"))), "")
        facts = replace(draft.facts, title=make_title(said) or None)
        asked[KEY] = facts.write()
        params: Object = {"cwd": draft.directory, "mcpServers": [], "_meta": {META: asked}}
        await self._client.call(agent.id, methods.NEW, params)
        session = self._hub.session(draft.id)
        self._drafts.remove(draft.id)
        return session

    def _agent(self, id: str) -> Agent:
        agent = self._providers.find(id)
        if agent is None:
            raise BridgeError(400, f"Provider not found: {id}")
        return agent

    def _check_model(self, agent: Agent, id: str) -> None:
        known = [name for name, _ in self._providers.models(agent)]
        if id not in (DEFAULT, *known) and known != [DEFAULT] and not agent.any_model:
            raise BridgeError(400, f"Model not found: {agent.id}/{id}")

    def _tell_draft(self, draft: Draft, type: str) -> None:
        info = draft.describe()
        self._bus.publish(draft.directory, type, {"sessionID": draft.id, "info": info})


def _mode_names(session: Session) -> list[str]:
    return [id for each in objects_at(session.modes(), MODE.available) if (id := text_at(each, MODE.choice_id))]
