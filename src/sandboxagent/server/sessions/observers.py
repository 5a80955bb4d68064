"""Call observers of sessions and agent processes, so that one that fails does not affect the others."""

import logging
from collections.abc import Callable
from typing import ParamSpec

from sandboxagent.protocol.envelope import Object
from sandboxagent.server.agents.process import AgentProcess, Exit
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.pending import PendingRequest
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class Observer:
    """An observer of sessions and agent processes. Override the methods that you need: only those are called.

    Every method must return at once.
    """

    def session_opened(self, session: Session) -> None:
        """Handle that a process holds the session from here on: it is new, or was resumed."""

    def session_ended(self, session: Session) -> None:
        """Handle that no process holds the session any more."""

    def session_deleted(self, session: Session) -> None: ...

    def turn_started(self, session: Session, turn_id: str) -> None: ...

    def turn_ended(self, session: Session, turn_id: str, end: Object) -> None:
        """Handle the end of a turn; `end` has `stopReason` or `error`."""

    def request_opened(self, pending: PendingRequest) -> None:
        """Handle a request that people may answer from here on."""

    def request_settled(self, pending: PendingRequest, decision: bytes | None) -> None:
        """Handle a request that has its outcome; `decision` is the notification for attached clients, if any."""

    def connection_closed(self, connection: Connection) -> None: ...

    def process_started(self, process: AgentProcess) -> None:
        """Handle the start of an agent's process, also of one that only tells the server about its agent."""

    def process_exited(self, process: AgentProcess, exit: Exit) -> None:
        """Handle the end of an agent's process. Its turns and sessions may end later."""


class Observers:
    """The methods to call for each event. A method that no observer overrides costs nothing."""

    def __init__(self) -> None:
        self.session_opened: list[Callable[[Session], None]] = []
        self.session_ended: list[Callable[[Session], None]] = []
        self.session_deleted: list[Callable[[Session], None]] = []
        self.turn_started: list[Callable[[Session, str], None]] = []
        self.turn_ended: list[Callable[[Session, str, Object], None]] = []
        self.request_opened: list[Callable[[PendingRequest], None]] = []
        self.request_settled: list[Callable[[PendingRequest, bytes | None], None]] = []
        self.connection_closed: list[Callable[[Connection], None]] = []
        self.process_started: list[Callable[[AgentProcess], None]] = []
        self.process_exited: list[Callable[[AgentProcess, Exit], None]] = []

    def add(self, observer: Observer) -> None:
        kind = type(observer)
        if kind.session_opened is not Observer.session_opened:
            self.session_opened.append(_contained(observer.session_opened))
        if kind.session_ended is not Observer.session_ended:
            self.session_ended.append(_contained(observer.session_ended))
        if kind.session_deleted is not Observer.session_deleted:
            self.session_deleted.append(_contained(observer.session_deleted))
        if kind.turn_started is not Observer.turn_started:
            self.turn_started.append(_contained(observer.turn_started))
        if kind.turn_ended is not Observer.turn_ended:
            self.turn_ended.append(_contained(observer.turn_ended))
        if kind.request_opened is not Observer.request_opened:
            self.request_opened.append(_contained(observer.request_opened))
        if kind.request_settled is not Observer.request_settled:
            self.request_settled.append(_contained(observer.request_settled))
        if kind.connection_closed is not Observer.connection_closed:
            self.connection_closed.append(_contained(observer.connection_closed))
        if kind.process_started is not Observer.process_started:
            self.process_started.append(_contained(observer.process_started))
        if kind.process_exited is not Observer.process_exited:
            self.process_exited.append(_contained(observer.process_exited))


def _contained(notify: Callable[P, None]) -> Callable[P, None]:
    def contained(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            notify(*args, **kwargs)
        except Exception:
            logger.exception("observer failed event=%s", getattr(notify, "__qualname__", notify))

    return contained
