"""Questions in the form that clients know (`_sandboxagent/session/request_question`), from what agents have. Pure."""

from sandbox_agent.envelope import Object, list_at, objects_at, text_at
from sandbox_agent.wire import methods

METHOD = methods.REQUEST_QUESTION


def question_params(
    session_id: str | None, question_id: str, questions: list[Object], call_id: str | None, several: str
) -> Object:
    """The params of a request; `several` is what the agent calls a question that takes more than one answer."""
    asked = [_question(each, several) for each in questions]
    first = objects_at(asked[0], "options") if asked else []
    params: Object = {
        "sessionId": session_id,
        "questionId": question_id,
        "prompt": "\n".join(str(each["question"]) for each in asked),
        "options": [[option["id"], option["label"]] for option in first],
        "questions": asked,
    }
    return params if call_id is None else params | {"toolCallId": call_id}


def _question(question: Object, several: str) -> Object:
    return {
        "header": text_at(question, "header") or "",
        "question": text_at(question, "question") or "",
        "options": [_option(option) for option in objects_at(question, "options")],
        "multiSelect": question.get(several) is True,
    }


def _option(option: Object) -> Object:
    # These agents know their options by what they show.
    label = text_at(option, "label") or ""
    return {"id": label, "label": label, "description": text_at(option, "description") or ""}


def answers_in(result: Object) -> list[list[str]] | None:
    """One list of texts for each question; None when they were not answered."""
    if result.get("status") != "answered":
        return None
    return [
        [text for text in list_at({"list": each}, "list") if isinstance(text, str)]
        for each in list_at(result, "answers")
    ]
