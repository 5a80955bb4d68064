"""Act by the clock: time out late calls, idle turns and sessions, and unanswered requests."""

import asyncio
import logging

from msgspec import Struct

from sandboxagent.protocol.errors import AgentTimeout
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.decision import TIMEOUT
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.pending import Outcome
from sandboxagent.server.sessions.reply import Reply

logger = logging.getLogger(__name__)

TICK_INTERVAL = 0.25
"""Seconds between two checks. One coarse loop replaces a timer for each call, turn and request."""
TELL_TIMEOUT = 0.5
"""Seconds that an agent has to report a change itself; some agents do so after their response."""


class TimeoutLoop(Struct, frozen=True):
    """The loop that checks all timeouts."""

    hub: Hub
    request_timeout: float
    turn_idle_timeout: float
    permission_timeout: float | None
    connection_ttl: float

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            try:
                self.tick()
            except Exception:
                logger.exception("timeout check failed")

    def tick(self) -> None:
        now = self.hub.monotonic()
        for call in self.hub.calls.find_overdue(now):
            self._give_up(call, f"{call.method} was not answered within {self.request_timeout:g} s")
        for call in self.hub.calls.find_turns():
            self._check_turn(call, now)
        self.hub.held_updates.release_overdue(now)
        self.hub.report_changes(now - TELL_TIMEOUT)
        self.hub.drop_idle()
        if self.permission_timeout is not None:
            self._reject_unanswered(now - self.permission_timeout)
        for connection in self.hub.connections.all():
            if connection.stream is None and not connection.busy and now - connection.used_at > self.connection_ttl:
                self.hub.close_connection(connection, "unused")

    def _check_turn(self, call: Call, now: float) -> None:
        session = call.session
        if session is None or call.late is not None or self.hub.pending.of_session(session):
            return
        if now - session.heard_at > self.turn_idle_timeout:
            self._give_up(call, f"the agent said nothing for {self.turn_idle_timeout:g} s; the turn is not cancelled")

    @staticmethod
    def _give_up(call: Call, reason: str) -> None:
        """Fail the client's reply with a timeout. The call stays open: a late response goes to the stream."""
        if call.reply.result is not None:
            return
        late = Reply()
        error = AgentTimeout(reason, agent=call.running.agent.id, method=call.method)
        call.late = late
        if call.connection is not None:
            # Only for a client's own call: a late response to a request of the server's own answers no client.
            error.late = late
        call.reply.set_exception(error)

    def _reject_unanswered(self, since: float) -> None:
        for pending in self.hub.pending.waiting_since(since):
            self.hub.answer_for_person(pending, Outcome.REJECTED, TIMEOUT, pending.rejection())
