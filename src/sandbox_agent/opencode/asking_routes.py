"""The routes of what waits for people: `/permission` and `/question`."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from sandbox_agent.opencode.objects import PermissionReply, QuestionReply
from sandbox_agent.opencode.reading import Reading, answer
from sandbox_agent.opencode.requests import Requests
from sandbox_agent.opencode.routing import Routes, Table


@dataclass(frozen=True, slots=True)
class AskingRoutes:
    """The handlers."""

    reading: Reading
    requests: Requests

    def table(self) -> Table:
        routes = Routes()
        routes.add("GET", "/permission", self.permissions)
        routes.add("POST", "/permission/{id}/reply", self.permit)
        routes.add("GET", "/question", self.questions)
        routes.add("POST", "/question/{id}/reply", self.reply)
        routes.add("POST", "/question/{id}/reject", self.reject)
        return routes.table

    async def permissions(self, request: Request) -> Response:
        return answer(self.requests.permissions(self.reading.named_directory(request)))

    async def permit(self, request: Request) -> Response:
        body = await self.reading.body(request, PermissionReply)
        await self.requests.reply_permission(request.path_params["id"], body.reply, body.message or None)
        return answer(True)

    async def questions(self, request: Request) -> Response:
        return answer(self.requests.questions(self.reading.named_directory(request)))

    async def reply(self, request: Request) -> Response:
        body = await self.reading.body(request, QuestionReply)
        await self.requests.reply_question(request.path_params["id"], body.answers)
        return answer(True)

    async def reject(self, request: Request) -> Response:
        await self.requests.reject_question(request.path_params["id"])
        return answer(True)
