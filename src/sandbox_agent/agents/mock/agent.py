"""The mock agent's side of ACP: sessions, their modes and models, and turns that can be cancelled.

Knows nothing of what is said in a turn; that is in `scripts.py`.
"""

import asyncio
from collections.abc import Sequence

from acp import PROTOCOL_VERSION, Client, RequestError, update_user_message
from acp.helpers import ContentBlock
from acp.schema import (
    AgentCapabilities,
    AuthenticateResponse,
    ClientCapabilities,
    CloseSessionResponse,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionConfigOptionBoolean,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionForkCapabilities,
    SessionInfo,
    SessionInfoUpdate,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
)

from sandbox_agent.agents.mock.scripts import Turn, play
from sandbox_agent.agents.mock.sessions import Session, Sessions

VERSION = "1.0.0"
PAGE = 100
TITLE_LENGTH = 60

MODES = [
    SessionMode(id="default", name="Default", description="What you say is what it plays"),
    SessionMode(id="plan", name="Plan", description="A mode to switch to; it changes nothing"),
    SessionMode(id="yolo", name="Yolo", description="Another one; permission is asked all the same"),
]
MODELS = [
    SessionConfigSelectOption(value="mock-small", name="Mock small", description="Knows little"),
    SessionConfigSelectOption(value="mock-large", name="Mock large", description="Knows as little, in a larger way"),
]


class MockAgent:
    """The methods the SDK's router calls. Every `**kwargs` is there for its sake and stays empty."""

    _client: Client

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._takes_forms = False

    def on_connect(self, conn: Client) -> None:
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **kwargs: object,
    ) -> InitializeResponse:
        elicitation = client_capabilities.elicitation if client_capabilities else None
        self._takes_forms = elicitation is not None and elicitation.form is not None
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="mock", title="Mock agent", version=VERSION),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    fork=SessionForkCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **kwargs: object) -> AuthenticateResponse | None:
        raise RequestError.method_not_found("authenticate")

    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: Sequence[object] | None = None,
        **kwargs: object,
    ) -> NewSessionResponse:
        session = self._sessions.create(cwd, mode=MODES[0].id, model=MODELS[0].value)
        return NewSessionResponse(
            session_id=session.session_id, modes=_modes(session), config_options=_config_options(session)
        )

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Sequence[object] | None = None,
        additional_directories: list[str] | None = None,
        **kwargs: object,
    ) -> LoadSessionResponse:
        session = self._sessions.reopen(session_id)
        session.cwd = cwd
        for update in list(session.history):
            await self._client.session_update(session_id=session_id, update=update)
        return LoadSessionResponse(modes=_modes(session), config_options=_config_options(session))

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: Sequence[object] | None = None,
        **kwargs: object,
    ) -> ResumeSessionResponse:
        session = self._sessions.reopen(session_id)
        session.cwd = cwd
        return ResumeSessionResponse(modes=_modes(session), config_options=_config_options(session))

    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: Sequence[object] | None = None,
        **kwargs: object,
    ) -> ForkSessionResponse:
        origin = self._sessions.reopen(session_id)
        session = self._sessions.create(cwd, mode=origin.mode, model=origin.model)
        session.title = origin.title
        session.history = [update.model_copy(deep=True) for update in origin.history]
        self._sessions.save(session)
        return ForkSessionResponse(
            session_id=session.session_id, modes=_modes(session), config_options=_config_options(session)
        )

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: object
    ) -> ListSessionsResponse:
        if cursor is not None and not cursor.isdecimal():
            raise RequestError.invalid_params({"cursor": cursor})
        first = int(cursor or 0)
        found = [session for session in self._sessions.newest_first() if cwd is None or session.cwd == cwd]
        page = [
            SessionInfo(session_id=it.session_id, cwd=it.cwd, title=it.title, updated_at=it.updated_at)
            for it in found[first : first + PAGE]
        ]
        following = str(first + PAGE) if len(found) > first + PAGE else None
        return ListSessionsResponse(sessions=page, next_cursor=following)

    async def close_session(self, session_id: str, **kwargs: object) -> CloseSessionResponse:
        self._sessions.get(session_id)
        await self.cancel(session_id)
        self._sessions.close(session_id)
        return CloseSessionResponse()

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: object) -> SetSessionModeResponse:
        session = self._sessions.get(session_id)
        if mode_id not in [mode.id for mode in MODES]:
            raise RequestError.invalid_params({"modeId": mode_id, "known": [mode.id for mode in MODES]})
        session.mode = mode_id
        self._sessions.save(session)
        update = CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode_id)
        await self._client.session_update(session_id=session_id, update=update)
        return SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: object
    ) -> SetSessionConfigOptionResponse:
        session = self._sessions.get(session_id)
        if config_id != "model":
            raise RequestError.invalid_params({"configId": config_id, "known": ["model"]})
        if not isinstance(value, str) or value not in [model.value for model in MODELS]:
            raise RequestError.invalid_params({"value": value, "known": [model.value for model in MODELS]})
        session.model = value
        self._sessions.save(session)
        options = _config_options(session)
        update = ConfigOptionUpdate(session_update="config_option_update", config_options=options)
        await self._client.session_update(session_id=session_id, update=update)
        return SetSessionConfigOptionResponse(config_options=options)

    async def prompt(self, session_id: str, prompt: list[ContentBlock], **kwargs: object) -> PromptResponse:
        # Nothing is awaited before the turn is in the table: a cancel that follows at once has to find it.
        session = self._sessions.get(session_id)
        if session_id in self._turns:
            raise RequestError(-32600, f"a turn is running in session {session_id}", {"sessionId": session_id})
        for block in prompt:
            session.record(update_user_message(block))
        self._sessions.save(session)
        turn = Turn(self._client, session, prompt, takes_forms=self._takes_forms)
        task = self._turns[session_id] = asyncio.create_task(self._play(turn))
        try:
            await task
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():  # the connection is closing, nobody waits for an answer
                raise
            return PromptResponse(stop_reason="cancelled")
        finally:
            del self._turns[session_id]
            self._sessions.save(session)
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **kwargs: object) -> None:
        if task := self._turns.get(session_id):
            task.cancel()

    async def ext_method(self, method: str, params: dict[str, object]) -> dict[str, object]:
        raise RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, object]) -> None:
        pass

    async def _play(self, turn: Turn) -> None:
        session = turn.session
        if session.title is None and (words := turn.text.split()):
            session.title = " ".join(words)[:TITLE_LENGTH]
            update = SessionInfoUpdate(
                session_update="session_info_update", title=session.title, updated_at=session.updated_at
            )
            await self._client.session_update(session_id=session.session_id, update=update)
        try:
            await play(turn)
        except RequestError as refusal:
            await turn.say(f"The client answered with an error: {refusal} ({refusal.code}).")
        except ValueError:  # the SDK could not make sense of it
            await turn.say("The client's answer is not what ACP says it should be.")
        except ConnectionError:
            pass  # stdin ended while we waited for an answer


def _modes(session: Session) -> SessionModeState:
    return SessionModeState(current_mode_id=session.mode, available_modes=MODES)


def _config_options(session: Session) -> list[SessionConfigOptionSelect | SessionConfigOptionBoolean]:
    return [
        SessionConfigOptionSelect(
            type="select", id="model", name="Model", category="model", current_value=session.model, options=MODELS
        )
    ]
