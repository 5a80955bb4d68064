"""The Responses API of OpenAI: codex."""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal

from tests.support.model.api import Request, frame
from tests.support.model.gate import Gate
from tests.support.model.script import Call, Conversation, Fail, Json, Part, Say, Think, Turn

_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 110,
}
_ROLES: dict[str, Literal["model", "user"]] = {"assistant": "model", "user": "user"}
_ON_THE_SIDE = {"title": "A scripted title", "outcome": "allow", "risk_level": "low", "user_authorization": "high"}
"""Answers to what codex asks besides: a title for a session, and in the mode `agent` whether a command is harmless."""


def serves(path: str) -> bool:
    return path.endswith("/v1/responses")


def other(request: Request) -> Json | None:
    return None


def streams(request: Request) -> bool:
    return bool(request.body.get("stream"))


def conversation(request: Request) -> Conversation:
    turns = tuple(turn for item in request.body["input"] for turn in _turns(item))
    format = request.body.get("text", {}).get("format", {})
    if format.get("type") == "json_schema":
        wanted = format["schema"]["properties"]
        return Conversation(turns, json.dumps({name: _ON_THE_SIDE.get(name, "") for name in wanted}))
    return Conversation(turns)


def _turns(item: Json) -> Iterator[Turn]:
    """An item as turns: calls and thoughts are items of their own, without a role."""
    kind = item.get("type", "message")
    if kind == "message":
        yield Turn(_ROLES.get(item["role"], "system"), _text(item["content"]))
    elif kind.endswith("_output"):
        yield Turn("tool", _text(item["output"]))
    elif kind in {"function_call", "custom_tool_call", "reasoning"}:
        yield Turn("model", "")


def _text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def frames(request: Request, parts: Sequence[Part]) -> Iterator[str | Gate]:
    numbers = count()

    def event(type: str, **members: object) -> str:
        return frame({"type": type, "sequence_number": next(numbers), **members}, type)

    yield event("response.created", response=_response(request, "in_progress", []))
    for index, part in enumerate(parts):
        item = _item(request, index, part)
        place = {"output_index": index, "item_id": item["id"]}
        yield event("response.output_item.added", output_index=index, item=_begun(item))
        for type, members in _deltas(part):
            yield members if isinstance(members, Gate) else event(type, **place, **members)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=_response(request, "completed", _items(request, parts)))


def _deltas(part: Part) -> Iterator[tuple[str, Json | Gate]]:
    match part:
        case Call(arguments=str()):
            return
        case Call():
            yield "response.function_call_arguments.delta", {"delta": part.text}
        case Think():
            yield "response.reasoning_summary_part.added", {"summary_index": 0, "part": _summary("")}
            for piece in part.pieces:
                delta = piece if isinstance(piece, Gate) else {"summary_index": 0, "delta": piece}
                yield "response.reasoning_summary_text.delta", delta
        case Say():
            for piece in part.pieces:
                delta = piece if isinstance(piece, Gate) else {"content_index": 0, "delta": piece}
                yield "response.output_text.delta", delta


def whole(request: Request, parts: Sequence[Part]) -> Json:
    return _response(request, "completed", _items(request, parts))


def failure(fail: Fail) -> Json:
    return {"error": {"type": fail.type, "message": fail.message, "code": None, "param": None}}


def _response(request: Request, status: str, output: list[Json]) -> Json:
    model = request.body.get("model")
    usage = _USAGE if status == "completed" else None
    head = {"id": f"resp_{request.number}", "object": "response", "created_at": 1_700_000_000, "model": model}
    return {**head, "status": status, "output": output, "usage": usage}


def _items(request: Request, parts: Sequence[Part]) -> list[Json]:
    return [_item(request, index, part) for index, part in enumerate(parts)]


def _item(request: Request, index: int, part: Part) -> Json:
    own = f"{request.number}_{index}"
    match part:
        case Call(arguments=str()):
            call = {"type": "custom_tool_call", "id": f"ctc_{own}", "call_id": f"call_{own}", "status": "completed"}
            return {**call, "name": part.tool, "input": part.text}
        case Call():
            call = {"type": "function_call", "id": f"fc_{own}", "call_id": f"call_{own}", "status": "completed"}
            return {**call, "name": part.tool, "arguments": part.text}
        case Think():
            return {"type": "reasoning", "id": f"rs_{own}", "summary": [_summary(part.text)], "encrypted_content": "x"}
        case Say():
            content: Json = {"type": "output_text", "text": part.text, "annotations": []}
            message = {"type": "message", "id": f"msg_{own}", "role": "assistant", "status": "completed"}
            return {**message, "content": [content]}


def _summary(text: str) -> Json:
    return {"type": "summary_text", "text": text}


def _begun(item: Json) -> Json:
    """An item as it is announced: what is still to come is empty."""
    empty: Json = {"content": [], "summary": [], "arguments": "", "input": ""}
    begun = {name: empty.get(name, value) for name, value in item.items()}
    return begun | ({"status": "in_progress"} if "status" in item else {})
