"""The routes of sessions: `/session` and what is beneath it."""

from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from sandbox_agent.opencode.conversations import Conversations
from sandbox_agent.opencode.objects import (
    CommandBody,
    ForkBody,
    InitBody,
    NewSession,
    PermissionResponse,
    PromptBody,
    SessionChange,
    ShellBody,
)
from sandbox_agent.opencode.reading import Reading, answer, query, read_number
from sandbox_agent.opencode.refusals import refuse_unsupported
from sandbox_agent.opencode.requests import Requests
from sandbox_agent.opencode.routing import Routes, Table
from sandbox_agent.opencode.shells import Shells


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """The handlers."""

    reading: Reading
    conversations: Conversations
    requests: Requests
    shells: Shells

    def table(self) -> Table:
        routes = Routes()
        routes.add("GET", "/session", self.list)
        routes.add("POST", "/session", self.create)
        routes.add("GET", "/session/status", self.status)
        one = "/session/{id}"
        routes.add("GET", one, self.get)
        routes.add("PATCH", one, self.change)
        routes.add("DELETE", one, self.delete)
        routes.add("GET", f"{one}/children", self.children)
        routes.add("GET", f"{one}/todo", self.todo)
        routes.add("GET", f"{one}/diff", self.diff)
        routes.add("GET", f"{one}/message", self.messages)
        routes.add("POST", f"{one}/message", self.prompt)
        routes.add("GET", f"{one}/message/{{message}}", self.message)
        routes.add("POST", f"{one}/prompt_async", self.prompt_async)
        routes.add("POST", f"{one}/command", self.command)
        routes.add("POST", f"{one}/shell", self.shell)
        routes.add("POST", f"{one}/init", self.init)
        routes.add("POST", f"{one}/summarize", self.summarize)
        routes.add("POST", f"{one}/fork", self.fork)
        routes.add("POST", f"{one}/abort", self.abort)
        routes.add("POST", f"{one}/permissions/{{permission}}", self.permit)
        for name in ("revert", "unrevert"):
            routes.add("POST", f"{one}/{name}", self.refuse_revert)
        for method in ("POST", "DELETE"):
            routes.add(method, f"{one}/share", self.refuse_share)
        return routes.table

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
