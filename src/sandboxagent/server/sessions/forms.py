"""Translate questions to forms and forms to questions, and the answers back.

A form is the `params` of `elicitation/create`; a question is the `params` of the server's question extension. Pure.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, cast

from msgspec import Struct

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, list_at, object_at, objects_at, text_at
from sandboxagent.protocol.errors import WrongAnswer

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices", "other"]

OTHER = "_other"
"""Suffix of the name of the field for a free answer to a question that also offers choices."""
ACCEPT, DECLINE = "accept", "decline"
_TYPED = ("text", "number", "integer", "other")
"""Kinds of fields without choices: a person types the answer."""
_NONE_OF_THEM = ("none of the above", "other")


class Choice(Struct, frozen=True):
    """One of the values that a field accepts."""

    value: str
    label: str
    description: str = ""


class Field(Struct, frozen=True):
    """One field of a form."""

    name: str
    kind: Kind
    title: str
    description: str
    required: bool
    choices: tuple[Choice, ...]
    schema: Object

    @property
    def values(self) -> list[str]:
        return [choice.value for choice in self.choices]


def fields(params: Object) -> list[Field]:
    """Return the fields of an `elicitation/create`, in their order."""
    schema = object_at(params, "requestedSchema")
    required = list_at(schema, "required")
    properties = object_at(schema, "properties")
    return [_field(name, object_at(properties, name), name in required) for name in properties]


def complaint(form: Sequence[Field], content: Object) -> str | None:
    """Return the first error in the content that a client sent; None if it is valid."""
    for field in form:
        value = content.get(field.name)
        if value is None:
            if field.required:
                return f"{field.name} is required"
        elif (wrong := _wrong(field, value)) is not None:
            return f"{field.name} {wrong}"
    return None


def _field(name: str, schema: Object, required: bool) -> Field:
    items = object_at(schema, "items")
    choices = _choices(schema) or _choices(items)
    kind: Kind = "other"
    match schema.get("type"):
        case "string":
            kind = "choice" if choices else "text"
        case "number":
            kind = "number"
        case "integer":
            kind = "integer"
        case "boolean":
            kind = "boolean"
        case "array" if choices:
            kind = "choices"
        case _:
            pass
    title, description = text_at(schema, "title") or "", text_at(schema, "description") or ""
    return Field(name, kind, title, description, required, choices, schema)


def _choices(schema: Object) -> tuple[Choice, ...]:
    titled = objects_at(schema, "oneOf") or objects_at(schema, "anyOf")
    found = [
        Choice(const, text_at(each, "title") or const, text_at(each, "description") or "")
        for each in titled
        if (const := text_at(each, "const")) is not None
    ]
    if not found:
        values, labels = list_at(schema, "enum"), list_at(schema, "enumNames")
        pairs = zip_longest(values, labels[: len(values)])
        found = [
            Choice(value, label if isinstance(label, str) else value)
            for value, label in pairs
            if isinstance(value, str)
        ]
    return tuple(found)


def _wrong(field: Field, value: object) -> str | None:
    match field.kind:
        case "text":
            return _wrong_text(field, value)
        case "choice":
            return None if value in field.values else f"is none of {_list_values(field)}"
        case "choices":
            return _wrong_choices(field, value)
        case "boolean":
            return None if isinstance(value, bool) else "is not true or false"
        case "number" | "integer":
            return _wrong_number(field, value)
        case "other":
            return None


def _wrong_text(field: Field, value: object) -> str | None:
    if not isinstance(value, str):
        return "is not a text"
    least, most = field.schema.get("minLength"), field.schema.get("maxLength")
    if isinstance(least, int) and len(value) < least:
        return f"is shorter than {least}"
    if isinstance(most, int) and len(value) > most:
        return f"is longer than {most}"
    return None


def _wrong_choices(field: Field, value: object) -> str | None:
    if not isinstance(value, list):
        return "is not a list"
    chosen = cast("list[object]", value)
    if any(each not in field.values for each in chosen):
        return f"has values that are none of {_list_values(field)}"
    least, most = field.schema.get("minItems"), field.schema.get("maxItems")
    if isinstance(least, int) and len(chosen) < least:
        return f"has fewer than {least} values"
    if isinstance(most, int) and len(chosen) > most:
        return f"has more than {most} values"
    return None


def _wrong_number(field: Field, value: object) -> str | None:
    # In Python True is an int; in JSON it is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is not a number"
    if field.kind == "integer" and value != int(value):
        return "is not a whole number"
    least, most = field.schema.get("minimum"), field.schema.get("maximum")
    if isinstance(least, int | float) and value < least:
        return f"is less than {least}"
    if isinstance(most, int | float) and value > most:
        return f"is more than {most}"
    return None


def _list_values(field: Field) -> str:
    return ", ".join(field.values[:20])


_YES_NO = (Choice("true", "Yes"), Choice("false", "No"))
_YES_NO_OPTIONS: list[Object] = [{"id": each.value, "label": each.label} for each in _YES_NO]


# Questions as forms


def _questions(params: Object) -> list[Object]:
    """Return the questions of a `request_question`; the short form counts as one question."""
    several = objects_at(params, "questions")
    if several:
        return several
    pairs = [texts(option) for option in list_at(params, "options")]
    options: list[Object] = [{"id": pair[0], "label": pair[-1]} for pair in pairs if pair]
    return [{"question": text_at(params, "prompt") or "", "options": options, "multiSelect": False}]


def make_form(params: Object) -> Object:
    """Translate a question to a form: one field for each question, and a second one for a free answer."""
    properties: Object = {}
    for number, question in enumerate(_questions(params)):
        name = f"question_{number}"
        text = {"title": text_at(question, "header") or text_at(question, "question") or "Question"}
        if text_at(question, "question"):
            text["description"] = text_at(question, "question") or ""
        choices = [_const(option) for option in objects_at(question, "options")]
        if not choices:
            properties[name] = {"type": "string", **text}
            continue
        if question.get("multiSelect") is True:
            properties[name] = {"type": "array", **text, "items": {"anyOf": choices}}
        else:
            properties[name] = {"type": "string", **text, "oneOf": choices}
        properties[name + OTHER] = {"type": "string", "title": "Other"}
    form: Object = {"mode": "form", "message": text_at(params, "prompt") or "The agent has a question."}
    form["requestedSchema"] = {"type": "object", "properties": properties}
    return _with_scope(params, form)


def _const(option: Object) -> Object:
    id = text_at(option, "id") or ""
    const: Object = {"const": id, "title": text_at(option, "label") or id}
    description = text_at(option, "description")
    return const if description is None else const | {"description": description}


def question_answer(params: Object, result: Object) -> Object:
    """Translate the answer to a form back into the answer to its question."""
    if result.get("action") != ACCEPT:
        return {"status": "rejected" if result.get("action") == DECLINE else "cancelled"}
    content = object_at(result, "content")
    answers: list[list[str]] = []
    for number, _ in enumerate(_questions(params)):
        chosen = content.get(f"question_{number}")
        picked = [chosen] if isinstance(chosen, str) else texts(chosen)
        other = content.get(f"question_{number}{OTHER}")
        answers.append([*picked, other] if isinstance(other, str) and other else picked)
    return {"status": "answered", "answers": answers}


# Forms as questions


class _Asked(Struct, frozen=True):
    """A field that becomes a question, and the field for a free answer to it, if there is one."""

    field: Field
    other: Field | None


def _parse_questions(params: Object) -> list[_Asked]:
    form = fields(params)
    free = [field for field in form if field.kind == "text"]
    asked: list[_Asked] = []
    taken: set[str] = set()
    for field in form:
        if field.name in taken:
            continue
        other = None
        if field.kind in ("choice", "choices"):
            other = next((each for each in free if each.name.startswith(f"{field.name}_")), None)
        taken |= {other.name} if other else set()
        asked.append(_Asked(field, other))
    return [each for each in asked if each.field.name not in taken]


def make_question(params: Object, key: int) -> Object:
    """Translate a form to questions, one for each field. `key` makes the question's id unique."""
    if is_url(params):
        return _with_scope(params, _url_as_question(params, key))
    asked_of = _parse_questions(params)
    message = text_at(params, "message") or ""
    # The question of a form's only field may be in the message, with just a label in the field's title.
    alone = message if len(asked_of) == 1 and not asked_of[0].field.description else ""
    questions = [_question(each.field, alone) for each in asked_of]
    first = questions[0] if questions else {"options": _YES_NO_OPTIONS}
    message = message or text_at(first, "question") or ""
    asked: Object = {
        "questionId": question_id(key),
        "prompt": message,
        "options": [[option["id"], option["label"]] for option in objects_at(first, "options")],
    }
    if questions:
        asked["questions"] = questions
    return _with_scope(params, asked)


def takes_own_answers(asked: Envelope) -> list[bool]:
    """Return, for each question of a request, whether it accepts answers that are not among its choices."""
    params = asked.params()
    if asked.method != methods.ELICITATION:
        return [True for _ in _questions(params)]
    if is_url(params):
        return [False]
    return [each.other is not None or each.field.kind in _TYPED for each in _parse_questions(params)] or [False]


def question_id(key: int) -> str:
    """Return the id of a question that was translated from a form."""
    return f"question-{key}"


def _question(field: Field, alone: str) -> Object:
    header, text = field.title, field.description or alone
    # Some agents put the question into the title and a label into the description.
    if not text or (header.endswith("?") and not text.endswith("?")):
        header, text = text, header
    choices = field.choices or (_YES_NO if field.kind == "boolean" else ())
    return {
        "header": header,
        "question": text or field.name,
        "options": [
            {"id": choice.value, "label": choice.label, "description": choice.description} for choice in choices
        ],
        "multiSelect": field.kind == "choices",
    }


def form_answer(params: Object, result: Object) -> Object:
    """Translate the answer to questions back into the answer to their form. Raises WrongAnswer."""
    status = result.get("status")
    if status in ("rejected", "cancelled"):
        return {"action": DECLINE if status == "rejected" else "cancel"}
    answers = _answers(result)
    if is_url(params):
        return {"action": ACCEPT if answers[:1] == [[ACCEPT]] else DECLINE}
    asked = _parse_questions(params)
    if not asked:
        return {"action": ACCEPT if answers[:1] in ([], [[]], [["true"]]) else DECLINE, "content": {}}
    if len(answers) != len(asked):
        raise WrongAnswer(f"there are {len(asked)} questions and {len(answers)} answers; send one list for each")
    content: Object = {}
    for each, answer in zip(asked, answers, strict=True):
        content |= _fill_in(each, answer)
    wrong = complaint(fields(params), content)
    if wrong is not None:
        raise WrongAnswer(wrong)
    return {"action": ACCEPT, "content": content}


def _fill_in(asked: _Asked, answer: Sequence[str]) -> Object:
    field, other = asked.field, asked.other
    own = [each for each in answer if field.choices and each not in field.values]
    content: Object = {}
    if own:
        if other is None:
            raise WrongAnswer(f"{field.name} is none of {', '.join(field.values)}")
        content[other.name] = "\n".join(own)
    chosen = [each for each in answer if each not in own]
    if own and not chosen and field.required:
        # The choice is required: select "none of the above", if the form has it.
        chosen = [each for each in field.values if each.casefold() in _NONE_OF_THEM][:1]
    if field.kind == "choices":
        return content | ({field.name: chosen} if chosen or not own else {})
    if not chosen:
        return content
    if len(chosen) > 1:
        raise WrongAnswer(f"{field.name} takes one answer")
    return content | {field.name: _value(field, chosen[0])}


def _value(field: Field, text: str) -> object:
    try:
        match field.kind:
            case "integer":
                return int(text)
            case "number":
                return _finite(text)
            case "boolean":
                return {"true": True, "false": False}[text]
            case _:
                return text
    except (ValueError, KeyError):
        article = "an" if field.kind == "integer" else "a"
        raise WrongAnswer(f"{field.name} is not {article} {field.kind}") from None


def _finite(text: str) -> float:
    """Read a number that JSON can hold. Raises ValueError."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


# Addresses to be opened


def is_url(params: Object) -> bool:
    """Return whether a form asks the person to open an address, instead of filling in fields."""
    return params.get("mode") == "url"


def _url_text(params: Object) -> str:
    return f"{text_at(params, 'message') or 'Open this address.'}\n{text_at(params, 'url') or ''}"


def url_as_form(params: Object) -> Object:
    """Translate an address to a form without fields, for a client that understands only forms."""
    schema: Object = {"type": "object", "properties": {}}
    return _with_scope(params, {"mode": "form", "message": _url_text(params), "requestedSchema": schema})


def _url_as_question(params: Object, key: int) -> Object:
    options = [[ACCEPT, "Done"], [DECLINE, "Decline"]]
    return {"questionId": question_id(key), "prompt": _url_text(params), "options": options}


# Answers


def _with_scope(params: Object, asked: Object) -> Object:
    """Copy the agent's session, tool call, request and `_meta` to a translated request."""
    names = ("sessionId", "toolCallId", "requestId", "_meta")
    return {name: params[name] for name in names if name in params} | asked


def check_form(params: Object, result: Object) -> None:
    """Raise WrongAnswer if an answer does not fit its form."""
    action = result.get("action")
    if action not in (ACCEPT, DECLINE, "cancel"):
        raise WrongAnswer("action must be accept, decline or cancel")
    if action == ACCEPT and not is_url(params):
        wrong = complaint(fields(params), object_at(result, "content"))
        if wrong is not None:
            raise WrongAnswer(wrong)


def check_question(params: Object, result: Object) -> None:
    """Raise WrongAnswer if an answer does not fit its question."""
    status = result.get("status")
    if status in ("rejected", "cancelled"):
        return
    answers, questions = _answers(result), _questions(params)
    if len(answers) != len(questions):
        raise WrongAnswer(f"there are {len(questions)} questions and {len(answers)} answers; send one list for each")
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1):
        if len(answer) > 1 and question.get("multiSelect") is not True:
            raise WrongAnswer(f"question {number} takes one answer")


def _answers(result: Object) -> list[list[str]]:
    given = list_at(result, "answers")
    answers = [texts(each) for each in given]
    right = [isinstance(each, list) and answer == each for each, answer in zip(given, answers, strict=True)]
    if result.get("status") != "answered" or not isinstance(result.get("answers"), list) or not all(right):
        raise WrongAnswer('a question is answered by {"status": "answered", "answers": [["id"], …]} or "rejected"')
    return answers


def texts(value: object) -> list[str]:
    """Return the strings in a list; an empty list for any other value."""
    return [each for each in list_at({"list": value}, "list") if isinstance(each, str)]
