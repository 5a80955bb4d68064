"""One prompt and its turn: shown as it comes, or as JSON lines; Ctrl-C ends it."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress

from sandbox_agent.cli.failures import exit_code, tell
from sandbox_agent.cli.output import EXIT_FAILED
from sandbox_agent.cli.talk import FAILURES
from sandbox_agent.cli.talk.interrupts import Interrupts
from sandbox_agent.cli.talk.json_lines import JsonLines
from sandbox_agent.cli.talk.log import OwnPrompts
from sandbox_agent.cli.talk.pieces import joined
from sandbox_agent.cli.talk.showing import spent
from sandbox_agent.cli.talk.view import View
from sandbox_agent.client import SandboxAgent, Session, Turn, TurnEnded

CANCEL_PATIENCE = 5.0
"""Seconds that an agent has to end a turn that is cancelled."""


class OneShot:
    """A prompt under way."""

    def __init__(
        self, client: SandboxAgent, session: Session, own: OwnPrompts, view: View, interrupts: Interrupts
    ) -> None:
        self._client = client
        self._own = own
        self._session = session
        self._view = view
        self._interrupts = interrupts
        self._cancelling: asyncio.Task[None] | None = None

    async def run(self, prompt: str, files: Sequence[str], *, as_json: bool) -> int:
        """Send it and show what comes; gives the exit code."""
        lines = JsonLines(self._client, self._session, self._own) if as_json else None
        if lines is not None:
            await lines.begin()
        turn = self._session.prompt(prompt, files)
        work = asyncio.create_task(self._shown(turn) if lines is None else lines.write(turn))
        self._interrupts.on = lambda number: self._cancel(number, turn, work)
        try:
            return await self._outcome(work, lines)
        finally:
            self._interrupts.on = lambda _: False
            work.cancel()
            if not self._is_over(work):
                # The output goes nowhere any more: whatever the agent does is of no use.
                with suppress(TimeoutError, *FAILURES):
                    async with asyncio.timeout(CANCEL_PATIENCE):
                        await turn.cancel()

    async def _outcome(self, work: "asyncio.Task[TurnEnded]", lines: "JsonLines | None") -> int:
        try:
            end = await asyncio.shield(work)
        except FAILURES as failure:
            self._view.screen.finish()
            if lines is not None:
                lines.fail(failure)
            tell(failure)
            return EXIT_FAILED
        except asyncio.CancelledError:
            if not work.cancelled():
                raise
            self._view.warn(f"the agent has not ended its turn within {CANCEL_PATIENCE:g} s")
            return self._code(None)
        if lines is not None:
            lines.end(end)
        self._view.screen.finish()
        return self._code(end.stop_reason)

    def _code(self, stop_reason: str | None) -> int:
        told = self._interrupts.told
        return exit_code(stop_reason) if told is None else 128 + told

    async def _shown(self, turn: Turn) -> TurnEnded:
        screen, showing = self._view.screen, self._view.showing
        screen.status(f"{self._session.agent} is at work …")
        end = None
        async for item in turn:
            screen.show(showing.pieces(item))
            end = item
        assert isinstance(end, TurnEnded)
        self._view.say(joined([spent(end.response, showing.usage), f"session {self._session.id}"], "\n"))
        return end

    def _cancel(self, number: signal.Signals, turn: Turn, work: "asyncio.Task[TurnEnded]") -> bool:
        """The first signal asks the agent to end; it has a few seconds."""
        self._interrupts.told = number
        self._view.say("cancelling; press Ctrl-C again to exit at once")
        self._cancelling = asyncio.create_task(self._ask_to_end(turn, work))
        return True

    async def _ask_to_end(self, turn: Turn, work: "asyncio.Task[TurnEnded]") -> None:
        try:
            async with asyncio.timeout(CANCEL_PATIENCE):
                with suppress(*FAILURES):
                    await turn.cancel()
                await asyncio.wait([work])
        except TimeoutError:
            work.cancel()

    @staticmethod
    def _is_over(work: "asyncio.Task[TurnEnded]") -> bool:
        if not work.done() or work.cancelled():
            return False
        return work.exception() is None or isinstance(work.exception(), (*FAILURES,))
