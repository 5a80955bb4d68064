"""Asking a human: one request of an agent, in the form that each client understands, and its answer back.

Pure. An agent asks by `elicitation/create` or by our question extension; a client may speak one, the other, or both.
"""

from msgspec import Struct

from sandbox_agent.envelope import META, Envelope, Object, at, object_at, objects_at, request, success
from sandbox_agent.errors import WrongAnswer
from sandbox_agent.hub import question
from sandbox_agent.hub.question import is_url
from sandbox_agent.wire import methods

QUESTION = methods.REQUEST_QUESTION
PERMISSION = methods.REQUEST_PERMISSION
ELICITATION = methods.ELICITATION


class Speech(Struct, frozen=True):
    """The ways of asking that a client has declared to understand."""

    form: bool = False
    url: bool = False
    questions: bool = False

    @classmethod
    def of(cls, capabilities: Object, meta: Object) -> "Speech":
        """What `initialize` says: `elicitation.form`, `.url`, and our `questions`, here or in its `_meta`."""

        def offered(*path: str) -> bool:
            return at(capabilities, *path) not in (None, False)

        ours = offered("_meta", META, "questions") or at(meta, META, "questions") is True
        return cls(offered("elicitation", "form"), offered("elicitation", "url"), ours)

    def method(self, asked: Envelope) -> str:
        """The method that carries an agent's request to this client."""
        if asked.method == QUESTION:
            return ELICITATION if self.form and not self.questions else QUESTION
        if asked.method == ELICITATION:
            known = self.url if is_url(asked.params()) else self.form
            return ELICITATION if known or ((self.form or self.url) and not self.questions) else QUESTION
        return asked.method


def render(asked: Envelope, speech: Speech, key: int) -> bytes:
    """Render an agent's request for a client; unchanged when the client understands it as it is."""
    assert asked.id is not None
    params = asked.params()
    method = speech.method(asked)
    if method == asked.method:
        if method == ELICITATION and is_url(params) and not speech.url:
            return request(asked.id, ELICITATION, question.url_as_form(params))
        return asked.line
    if method == QUESTION:
        return request(asked.id, QUESTION, question.make_question(params, key))
    return request(asked.id, ELICITATION, question.make_form(params))


def translate_answer(asked: Envelope, speech: Speech, answer: Envelope) -> bytes:
    """Translate a client's answer into the one for the agent, under the agent's id.

    Raises WrongAnswer, which says what is wrong with it; the request stays open then.
    """
    assert asked.id is not None
    if not answer.succeeded:
        return answer.line
    params, result = asked.params(), answer.result()
    if asked.method == PERMISSION:
        _check_permission(params, result)
        return answer.line
    method = speech.method(asked)
    if method == ELICITATION:
        question.check_form(question.make_form(params) if asked.method == QUESTION else params, result)
        return success(asked.id, question.question_answer(params, result)) if asked.method == QUESTION else answer.line
    if method == QUESTION:
        if asked.method == QUESTION:
            question.check_question(params, result)
            return answer.line
        return success(asked.id, question.form_answer(params, result))
    return answer.line


def _check_permission(params: Object, result: Object) -> None:
    outcome = object_at(result, "outcome")
    match outcome.get("outcome"):
        case "cancelled":
            return
        case "selected":
            offered = [option.get("optionId") for option in objects_at(params, "options")]
            if outcome.get("optionId") not in offered:
                raise WrongAnswer(f"optionId must be one of: {', '.join(map(str, offered))}")
        case _:
            raise WrongAnswer('a permission is answered by {"outcome": {"outcome": "selected", "optionId": …}}')
