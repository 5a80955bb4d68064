"""Serve the routes of sessions: `/session` and its subpaths, `/permission` and `/question`."""

from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from sandboxagent.adapters.opencode.errors import refuse_unsupported
from sandboxagent.adapters.opencode.objects import (
    CommandBody,
    ForkBody,
    InitBody,
    NewSession,
    PermissionReply,
    PermissionResponse,
    PromptBody,
    QuestionReply,
    SessionChange,
    ShellBody,
)
from sandboxagent.adapters.opencode.params import Reading, Table, answer, query, read_number
from sandboxagent.adapters.opencode.pending import OpenRequests
from sandboxagent.adapters.opencode.sessions import BridgeSessions
from sandboxagent.adapters.opencode.shell import Shells


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """Handlers of the routes below `/session`."""

    reading: Reading
    bridge_sessions: BridgeSessions
    requests: OpenRequests
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
        found = self.bridge_sessions.find_all(
            self.reading.named_directory(request),
            roots=asked.get("roots") == "true",
            start=read_number(request, "start"),
            search=asked.get("search") or None,
            limit=read_number(request, "limit"),
        )
        return answer(found)

    async def create(self, request: Request) -> Response:
        body = await self.reading.body(request, NewSession)
        return answer(self.bridge_sessions.create(self.reading.directory(request), body))

    async def status(self, request: Request) -> Response:
        return answer(self.bridge_sessions.statuses(self.reading.named_directory(request)))

    async def get(self, request: Request) -> Response:
        return answer(self.bridge_sessions.describe(self.bridge_sessions.find(_id(request))))

    async def change(self, request: Request) -> Response:
        body = await self.reading.body(request, SessionChange)
        return answer(await self.bridge_sessions.change(_id(request), body))

    async def delete(self, request: Request) -> Response:
        await self.bridge_sessions.delete(_id(request))
        return answer(True)

    async def children(self, request: Request) -> Response:
        return answer(self.bridge_sessions.children(_id(request)))

    async def todo(self, request: Request) -> Response:
        transcript = await self.bridge_sessions.transcript(_id(request))
        return answer(transcript.todos if transcript else [])

    async def diff(self, request: Request) -> Response:
        self.bridge_sessions.find(_id(request))
        return answer([])

    async def messages(self, request: Request) -> Response:
        transcript = await self.bridge_sessions.transcript(_id(request))
        messages = transcript.messages() if transcript else []
        before, limit = query(request).get("before"), read_number(request, "limit")
        if before:
            ids = [each.info.id for each in messages]
            messages = messages[: ids.index(before)] if before in ids else messages
        return answer(messages[-limit:] if limit else messages)

    async def message(self, request: Request) -> Response:
        return answer(await self.bridge_sessions.message(_id(request), request.path_params["message"]))

    async def prompt(self, request: Request) -> Response:
        body = await self.reading.body(request, PromptBody)
        return answer(await self.bridge_sessions.finish(*await self.bridge_sessions.prompt(_id(request), body)))

    async def prompt_async(self, request: Request) -> Response:
        body = await self.reading.body(request, PromptBody)
        await self.bridge_sessions.prompt(_id(request), body)
        return Response(status_code=204)

    async def command(self, request: Request) -> Response:
        body = await self.reading.body(request, CommandBody)
        return answer(await self.bridge_sessions.finish(*await self.bridge_sessions.command(_id(request), body)))

    async def shell(self, request: Request) -> Response:
        body = await self.reading.body(request, ShellBody)
        return answer(await self.shells.run(_id(request), body))

    async def init(self, request: Request) -> Response:
        body = await self.reading.body(request, InitBody)
        await self.bridge_sessions.init(_id(request), body.provider_id, body.model_id)
        return answer(True)

    async def summarize(self, request: Request) -> Response:
        await self.bridge_sessions.finish(*await self.bridge_sessions.compact(_id(request)))
        return answer(True)

    async def fork(self, request: Request) -> Response:
        body = await self.reading.body(request, ForkBody)
        message_id = None if body.message_id is UNSET else body.message_id
        return answer(await self.bridge_sessions.fork(_id(request), message_id))

    async def abort(self, request: Request) -> Response:
        await self.bridge_sessions.abort(_id(request))
        await self.shells.abort(_id(request))
        return answer(True)

    async def permit(self, request: Request) -> Response:
        body = await self.reading.body(request, PermissionResponse)
        self.bridge_sessions.find(_id(request))
        await self.requests.reply_permission(request.path_params["permission"], body.response, None)
        return answer(True)

    async def refuse_revert(self, request: Request) -> Response:
        self.bridge_sessions.find(_id(request))
        refuse_unsupported("undoing and redoing messages")

    async def refuse_share(self, request: Request) -> Response:
        self.bridge_sessions.find(_id(request))
        refuse_unsupported("sharing a session")


def _id(request: Request) -> str:
    return request.path_params["id"]


@dataclass(frozen=True, slots=True)
class AskingRoutes:
    """Handlers of the routes below `/permission` and `/question`."""

    reading: Reading
    requests: OpenRequests

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
