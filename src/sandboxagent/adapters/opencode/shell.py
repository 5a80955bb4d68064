"""Run a person's command on the host (`!command`), unless that is turned off.

The command runs in the directory of a session, within the roots, and only if no rule rejects it. It ends when it is
aborted, with the session, with the server, or after ten minutes. The agent does not see it.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.hub_client import HubClient
from sandboxagent.adapters.opencode.objects import (
    Message,
    ShellBody,
)
from sandboxagent.adapters.opencode.pending import OpenRequests
from sandboxagent.adapters.opencode.session_ids import is_busy
from sandboxagent.adapters.opencode.sessions import BridgeSessions
from sandboxagent.adapters.opencode.tools import Shell
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.protocol.errors import UnknownTerminal
from sandboxagent.server.files.roots import Roots
from sandboxagent.server.log.event import Direction
from sandboxagent.server.sessions.policy import PERSONS_TOOL, PolicyCheck
from sandboxagent.server.sessions.session import Session
from sandboxagent.server.sessions.terminals import TerminalCommand, TerminalOwners, Terminals

logger = logging.getLogger(__name__)


COMMAND_TIMEOUT = 600.0
"""Maximum seconds of a command."""
OWNER = "opencode"
OFF = (
    "shell commands (!command) are off on this server, as by default with --fs-root; "
    "start it with --opencode-shell on to allow them"
)


@dataclass(frozen=True, slots=True)
class Shells:
    """Runs people's commands."""

    client: HubClient
    bridge_sessions: BridgeSessions
    requests: OpenRequests
    transcripts: Transcripts
    terminals: Terminals
    policy_check: PolicyCheck
    roots: Roots
    environment: Mapping[str, str]
    is_on: bool
    """Whether people may run commands."""
    _running: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Session id → ids of its terminals."""

    async def run(self, id: str, body: ShellBody) -> Message:
        """Run a command to its end, record its output in the session's log, and return the message about it.

        Raises BridgeError.
        """
        self.bridge_sessions.find(id)
        if not self.is_on:
            raise BridgeError(400, OFF)
        session = await self.bridge_sessions.bound(id)
        await self._judge(session, body.command)
        if is_busy(session):
            raise BridgeError(409, f"Session is busy: {id}")
        shell = Shell(
            id=secrets.token_hex(8),
            command=body.command,
            agent=body.agent or None,
            message_id=body.message_id or None,
        )
        self._log(session, shell)
        try:
            output, code = await self._run(session, body.command)
        except BaseException:
            self._log(session, replace(shell, output="the command did not run to its end", exit_code=-1))
            raise
        position = self._log(session, replace(shell, output=output, exit_code=code))
        await self.client.hub.log.committed(position)
        transcript = await self.transcripts.get(session)
        message = transcript.find_reply(f"shell-{shell.id}")
        if message is None:
            raise BridgeError(500, "the answer is no longer kept")
        return message

    async def _judge(self, session: Session, command: str) -> None:
        """Raise BridgeError if a rule rejects the command, or may reject it."""
        decision = await self.policy_check.judge(session, command)
        if decision.action == "reject":
            logger.info("command of a person refused session=%s", session.id)
            rule = decision.rule
            reason = f" {rule.reason}" if rule is not None and rule.reason else ""
            raise BridgeError(400, f"the rules do not allow this command: {decision.why}.{reason}")
        if self.requests.denies(session, PERSONS_TOOL, command):
            raise BridgeError(400, "the permissions that this session has in OpenCode deny this command")

    async def abort(self, id: str) -> None:
        """End the commands of a session. Their output stays."""
        session = self.bridge_sessions.find(id)
        if isinstance(session, Session):
            for terminal_id in list(self._running.get(session.id, ())):
                # The command may have ended by itself.
                with suppress(UnknownTerminal):
                    await self.terminals.kill(TerminalOwners(OWNER, session.id), terminal_id)

    def _log(self, session: Session, shell: Shell) -> int:
        return self.client.hub.tell(session, shell.write(session.id), Direction.FROM_SERVER).last

    async def _run(self, session: Session, line: str) -> tuple[str, int | None]:
        asker = TerminalOwners(OWNER, session.id)
        command = TerminalCommand(
            program="/bin/sh",
            arguments=("-c", line),
            environment=self.environment,
            directory=session.facts.cwd,
            directories=session.directories,
            within=self.roots.within,
        )
        terminal_id = await self.terminals.create(asker, command)
        running = self._running.setdefault(session.id, [])
        running.append(terminal_id)
        try:
            terminal = self.terminals.get(asker, terminal_id)
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT):
                    status = await terminal.exited()
            except TimeoutError:
                raise BridgeError(400, f"the command took longer than {COMMAND_TIMEOUT:g} s") from None
            return terminal.output()[0], status.code
        finally:
            running.remove(terminal_id)
            if not running:
                self._running.pop(session.id, None)
            await self.terminals.release(asker, terminal_id)
