"""Read Qwen Code's questions from its requests for permission, and answer in the same form.

Pure.
"""

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, objects_at, parse, request, success, text_at
from sandboxagent.server.agents.dialects.dialect import METHOD, answers_in, question_params

_PERMISSION = methods.REQUEST_PERMISSION


class Qwen:
    """The dialect of Qwen Code, whose questions are requests for permission."""

    def translate_request(self, request: Envelope) -> Envelope:
        if request.method != _PERMISSION or request.id is None:
            return request
        params = request.params()
        questions = objects_at(params, "toolCall", "_meta", "qwenQuestions")
        kind = text_at(params, "toolCall", "_meta", "qwenInteractionKind")
        if kind != "user_question" or not questions or _option(params, "allow_once") is None:
            return request
        return parse(_question(request.id, params, questions))

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        answered = parse(answer)
        if request.id is None or not answered.succeeded or self.translate_request(request) is request:
            return answer
        params, result = request.params(), answered.result()
        answers = answers_in(result)
        if answers is not None:
            # Texts by the number of the question. Questions that were not answered are left out.
            given = {str(number): ", ".join(texts) for number, texts in enumerate(answers) if texts}
            return success(request.id, _selected(_option(params, "allow_once")) | {"answers": given})
        rejects = result.get("status") == "rejected"
        return success(request.id, _selected(_option(params, "reject_once") if rejects else None))


def _question(id: bytes, params: Object, questions: list[Object]) -> bytes:
    call = text_at(params, "toolCall", "toolCallId")
    session = text_at(params, "sessionId")
    return request(id, METHOD, question_params(session, call or id.decode(), questions, call, "multiSelect"))


def _selected(option: str | None) -> Object:
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    return {"outcome": outcome}


def _option(params: Object, kind: str) -> str | None:
    ids = [text_at(option, "optionId") for option in objects_at(params, "options") if option.get("kind") == kind]
    return next((id for id in ids if id), None)
