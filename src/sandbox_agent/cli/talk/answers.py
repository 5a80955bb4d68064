"""Answers that need no person: those of `--yes` and `--no`, and of a run that has no terminal to ask at."""

from sandbox_agent.cli.output import one_line
from sandbox_agent.cli.talk.pieces import Span, note
from sandbox_agent.cli.talk.screen import Screen
from sandbox_agent.cli.talk.showing import Marks, Showing
from sandbox_agent.client import Answer, ElicitationRequest, PermissionRequest, QuestionRequest
from sandbox_agent.envelope import text_at


class Answers:
    """Handlers that decide by themselves, and say so."""

    def __init__(self, screen: Screen, showing: Showing, marks: Marks, why: str) -> None:
        self._screen = screen
        self._showing = showing
        self._marks = marks
        self._why = why

    def allow(self, request: PermissionRequest) -> Answer:
        """Allow it once, if the agent offers just that."""
        answer = request.allow()
        chosen = text_at(answer.result, "outcome", "optionId")
        kinds = {option.option_id: option.kind for option in request.options}
        allowed = kinds.get(chosen or "") == "allow_once"
        self._tell(
            request, "allowed" if allowed else "rejected: the agent offers no way to allow it once", good=allowed
        )
        return answer

    def reject(self, request: PermissionRequest) -> Answer:
        """Do not allow it."""
        self._tell(request, "rejected")
        return request.reject()

    def reject_question(self, request: QuestionRequest) -> Answer:
        """Leave it unanswered."""
        self._say(f"{one_line(request.prompt) or 'a question'}: rejected", good=False)
        return request.reject()

    def decline(self, request: ElicitationRequest) -> Answer:
        """Leave a form as it is."""
        self._say(f"{one_line(request.message) or 'a form'}: declined", good=False)
        return request.decline()

    def _tell(self, request: PermissionRequest, word: str, *, good: bool = False) -> None:
        call = request.tool_call
        self._say(f"{one_line(call.title or call.kind or 'a tool call')}: {word}", good=good)

    def _say(self, text: str, *, good: bool) -> None:
        self._showing.answered_here += 1
        mark = Span(self._marks.completed, "green") if good else Span(self._marks.failed, "red")
        self._screen.show([note(f"{text} ({self._why})", "", mark)])
