"""The routes of sessions: `/session` and what is beneath it, `/permission` and `/question`.

People can run a command on the host (`!command`), unless that is turned off: in the directory of a session, within the
roots, and if no rule rejects it. It ends when it is aborted, with the session and with the server, and after ten
minutes at the latest. The agent does not learn of it.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from sandbox_agent.host.paths.roots import Roots
from sandbox_agent.host.terminals import Asker, TerminalCommand, Terminals
from sandbox_agent.hub.ruling import PERSONS_TOOL, Ruling
from sandbox_agent.hub.session import Session
from sandbox_agent.log.event import Direction
from sandbox_agent.opencode.conversations import Conversations
from sandbox_agent.opencode.hub_client import HubClient
from sandbox_agent.opencode.naming import is_busy
from sandbox_agent.opencode.objects import (
    CommandBody,
    ForkBody,
    InitBody,
    Message,
    NewSession,
    PermissionReply,
    PermissionResponse,
    PromptBody,
    QuestionReply,
    SessionChange,
    ShellBody,
)
from sandbox_agent.opencode.reading import Reading, Table, answer, query, read_number
from sandbox_agent.opencode.refusals import Refused, refuse_unsupported
from sandbox_agent.opencode.requests import Requests
from sandbox_agent.opencode.tools import Shell
from sandbox_agent.opencode.transcripts import Transcripts
from sandbox_agent.protocol.errors import UnknownTerminal

logger = logging.getLogger(__name__)

LONGEST = 600.0
"""Seconds that a command may take."""
OWNER = "opencode"
OFF = (
    "commands of people (!command) are off on this server, as they are by default where --fs-root is set; "
    "start it with --opencode-shell on to run them"
)


@dataclass(frozen=True, slots=True)
class Shells:
    """Runs commands."""

    client: HubClient
    conversations: Conversations
    requests: Requests
    transcripts: Transcripts
    terminals: Terminals
    ruling: Ruling
    roots: Roots
    environment: Mapping[str, str]
    is_on: bool
    """Whether people may run any."""
    _running: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Session → its terminals."""

    async def run(self, id: str, body: ShellBody) -> Message:
        """Run a command to its end; what it wrote is in the session's log then. Raises Refused."""
        self.conversations.find(id)
        if not self.is_on:
            raise Refused(400, OFF)
        session = await self.conversations.bound(id)
        await self._judge(session, body.command)
        if is_busy(session):
            raise Refused(409, f"Session is busy: {id}")
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
            self._log(session, replace(shell, output="the command was not run to its end", exit_code=-1))
            raise
        position = self._log(session, replace(shell, output=output, exit_code=code))
        await self.client.hub.log.committed(position)
        transcript = await self.transcripts.get(session)
        message = transcript.find_reply(f"shell-{shell.id}")
        if message is None:
            raise Refused(500, "the answer is no longer kept")
        return message

    async def _judge(self, session: Session, command: str) -> None:
        """Raises Refused for what a rule rejects, or may."""
        decision = await self.ruling.judge(session, command)
        if decision.action == "reject":
            logger.info("command of a person refused session=%s", session.id)
            rule = decision.rule
            reason = f" {rule.reason}" if rule is not None and rule.reason else ""
            raise Refused(400, f"the rules do not allow this command: {decision.why}.{reason}")
        if self.requests.denies(session, PERSONS_TOOL, command):
            raise Refused(400, "the permissions that this session has in OpenCode deny this command")

    async def abort(self, id: str) -> None:
        """End the commands of a session; what they wrote stays."""
        session = self.conversations.find(id)
        if isinstance(session, Session):
            for terminal_id in list(self._running.get(session.id, ())):
                # It may have come to its end by itself.
                with suppress(UnknownTerminal):
                    await self.terminals.kill(Asker(OWNER, session.id), terminal_id)

    def _log(self, session: Session, shell: Shell) -> int:
        return self.client.hub.tell(session, shell.write(session.id), Direction.FROM_SERVER).last

    async def _run(self, session: Session, line: str) -> tuple[str, int | None]:
        asker = Asker(OWNER, session.id)
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
                async with asyncio.timeout(LONGEST):
                    status = await terminal.exited()
            except TimeoutError:
                raise Refused(400, f"the command took longer than {LONGEST:g} s") from None
            return terminal.output()[0], status.code
        finally:
            running.remove(terminal_id)
            if not running:
                self._running.pop(session.id, None)
            await self.terminals.release(asker, terminal_id)


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """The handlers."""

    reading: Reading
    conversations: Conversations
    requests: Requests
    shells: Shells

    def table(self) -> Table:
        one = "/session/{id}"
        return [
            ("GET", "/session", self.list),
            ("POST", "/session", self.create),
            ("GET", "/session/status", self.status),
            ("GET", one, self.get),
            ("PATCH", one, self.change),
            ("DELETE", one, self.delete),
            ("GET", f"{one}/children", self.children),
            ("GET", f"{one}/todo", self.todo),
            ("GET", f"{one}/diff", self.diff),
            ("GET", f"{one}/message", self.messages),
            ("POST", f"{one}/message", self.prompt),
            ("GET", f"{one}/message/{{message}}", self.message),
            ("POST", f"{one}/prompt_async", self.prompt_async),
            ("POST", f"{one}/command", self.command),
            ("POST", f"{one}/shell", self.shell),
            ("POST", f"{one}/init", self.init),
            ("POST", f"{one}/summarize", self.summarize),
            ("POST", f"{one}/fork", self.fork),
            ("POST", f"{one}/abort", self.abort),
            ("POST", f"{one}/permissions/{{permission}}", self.permit),
            ("POST", f"{one}/revert", self.refuse_revert),
            ("POST", f"{one}/unrevert", self.refuse_revert),
            ("POST", f"{one}/share", self.refuse_share),
            ("DELETE", f"{one}/share", self.refuse_share),
        ]

    async def list(self, request: Request) -> Response:
        asked = query(request)
        found = self.conversations.find_all(
            self.reading.named_directory(request),
            roots=asked.get("roots") == "true",
            start=read_number(request, "start"),
            search=asked.get("search") or None,
            limit=read_number(request, "limit"),
        )
        return answer(found)

    async def create(self, request: Request) -> Response:
        body = await self.reading.body(request, NewSession)
        return answer(self.conversations.create(self.reading.directory(request), body))

    async def status(self, request: Request) -> Response:
        return answer(self.conversations.statuses(self.reading.named_directory(request)))

    async def get(self, request: Request) -> Response:
        return answer(self.conversations.describe(self.conversations.find(_id(request))))

    async def change(self, request: Request) -> Response:
        body = await self.reading.body(request, SessionChange)
        return answer(await self.conversations.change(_id(request), body))

    async def delete(self, request: Request) -> Response:
        await self.conversations.delete(_id(request))
        return answer(True)

    async def children(self, request: Request) -> Response:
        return answer(self.conversations.children(_id(request)))

    async def todo(self, request: Request) -> Response:
        transcript = await self.conversations.transcript(_id(request))
        return answer(transcript.todos if transcript else [])

    async def diff(self, request: Request) -> Response:
        self.conversations.find(_id(request))
        return answer([])

    async def messages(self, request: Request) -> Response:
        transcript = await self.conversations.transcript(_id(request))
        messages = transcript.messages() if transcript else []
        before, limit = query(request).get("before"), read_number(request, "limit")
        if before:
            ids = [each.info.id for each in messages]
            messages = messages[: ids.index(before)] if before in ids else messages
        return answer(messages[-limit:] if limit else messages)

    async def message(self, request: Request) -> Response:
        return answer(await self.conversations.message(_id(request), request.path_params["message"]))

    async def prompt(self, request: Request) -> Response:
        body = await self.reading.body(request, PromptBody)
        return answer(await self.conversations.finish(*await self.conversations.prompt(_id(request), body)))

    async def prompt_async(self, request: Request) -> Response:
        body = await self.reading.body(request, PromptBody)
        await self.conversations.prompt(_id(request), body)
        return Response(status_code=204)

    async def command(self, request: Request) -> Response:
        body = await self.reading.body(request, CommandBody)
        return answer(await self.conversations.finish(*await self.conversations.command(_id(request), body)))

    async def shell(self, request: Request) -> Response:
        body = await self.reading.body(request, ShellBody)
        return answer(await self.shells.run(_id(request), body))

    async def init(self, request: Request) -> Response:
        body = await self.reading.body(request, InitBody)
        await self.conversations.init(_id(request), body.provider_id, body.model_id)
        return answer(True)

    async def summarize(self, request: Request) -> Response:
        await self.conversations.finish(*await self.conversations.compact(_id(request)))
        return answer(True)

    async def fork(self, request: Request) -> Response:
        body = await self.reading.body(request, ForkBody)
        message_id = None if body.message_id is UNSET else body.message_id
        return answer(await self.conversations.fork(_id(request), message_id))

    async def abort(self, request: Request) -> Response:
        await self.conversations.abort(_id(request))
        await self.shells.abort(_id(request))
        return answer(True)

    async def permit(self, request: Request) -> Response:
        body = await self.reading.body(request, PermissionResponse)
        self.conversations.find(_id(request))
        await self.requests.reply_permission(request.path_params["permission"], body.response, None)
        return answer(True)

    async def refuse_revert(self, request: Request) -> Response:
        self.conversations.find(_id(request))
        refuse_unsupported("undoing and redoing messages")

    async def refuse_share(self, request: Request) -> Response:
        self.conversations.find(_id(request))
        refuse_unsupported("sharing a session")


def _id(request: Request) -> str:
    return request.path_params["id"]


@dataclass(frozen=True, slots=True)
class AskingRoutes:
    """The handlers."""

    reading: Reading
    requests: Requests

    def table(self) -> Table:
        return [
            ("GET", "/permission", self.permissions),
            ("POST", "/permission/{id}/reply", self.permit),
            ("GET", "/question", self.questions),
            ("POST", "/question/{id}/reply", self.reply),
            ("POST", "/question/{id}/reject", self.reject),
        ]

    async def permissions(self, request: Request) -> Response:
        return answer(await self.requests.permissions(self.reading.named_directory(request)))

    async def permit(self, request: Request) -> Response:
        body = await self.reading.body(request, PermissionReply)
        await self.requests.reply_permission(request.path_params["id"], body.reply, body.message or None)
        return answer(True)

    async def questions(self, request: Request) -> Response:
        return answer(await self.requests.questions(self.reading.named_directory(request)))

    async def reply(self, request: Request) -> Response:
        body = await self.reading.body(request, QuestionReply)
        await self.requests.reply_question(request.path_params["id"], body.answers)
        return answer(True)

    async def reject(self, request: Request) -> Response:
        await self.requests.reject_question(request.path_params["id"])
        return answer(True)
