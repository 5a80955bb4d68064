"""The chat completions API of OpenAI: opencode, qwen, goose."""

from collections.abc import Iterator, Sequence
from typing import Literal

from tests.support.model.api import Request, frame
from tests.support.model.gate import Gate
from tests.support.model.script import Call, Conversation, Fail, Json, Part, Say, Think, Turn

_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
_ROLES: dict[str, Literal["model", "user", "tool"]] = {"assistant": "model", "user": "user", "tool": "tool"}


def serves(path: str) -> bool:
    return path.endswith("/v1/chat/completions")


def other(request: Request) -> Json | None:
    return None


def streams(request: Request) -> bool:
    return bool(request.body.get("stream"))


def conversation(request: Request) -> Conversation:
    turns = tuple(_turn(message) for message in request.body["messages"])
    return Conversation(turns) if request.body.get("tools") else Conversation(turns, "A scripted title")


def _turn(message: Json) -> Turn:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    return Turn(_ROLES.get(message["role"], "system"), text)


def frames(request: Request, parts: Sequence[Part]) -> Iterator[str | Gate]:
    def chunk(delta: Json, reason: str | None = None) -> str:
        return frame({**_head(request, "chat.completion.chunk"), "choices": [_choice("delta", delta, reason)]})

    yield chunk({"role": "assistant", "content": ""})
    for delta in _deltas(request, parts):
        yield delta if isinstance(delta, Gate) else chunk(delta)
    yield chunk({}, _reason(parts))
    yield frame({**_head(request, "chat.completion.chunk"), "choices": [], "usage": _USAGE})
    yield frame("[DONE]")


def _deltas(request: Request, parts: Sequence[Part]) -> Iterator[Json | Gate]:
    for part in parts:
        match part:
            case Think():
                yield from (_piece("reasoning_content", piece) for piece in part.pieces)
            case Say():
                yield from (_piece("content", piece) for piece in part.pieces)
            case Call():
                pass
    for index, call in enumerate(_calls(request, parts)):
        yield {"tool_calls": [{"index": index, **call}]}


def _piece(name: str, piece: str | Gate) -> Json | Gate:
    return {name: piece} if isinstance(piece, str) else piece


def whole(request: Request, parts: Sequence[Part]) -> Json:
    text = "".join(part.text for part in parts if isinstance(part, Say) and not isinstance(part, Think))
    message = {"role": "assistant", "content": text, "tool_calls": _calls(request, parts) or None}
    choice = _choice("message", message, _reason(parts))
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": _USAGE}


def failure(fail: Fail) -> Json:
    return {"error": {"type": fail.type, "message": fail.message, "code": None, "param": None}}


def _head(request: Request, object: str) -> Json:
    model = request.body.get("model")
    return {"id": f"chatcmpl-{request.number}", "object": object, "created": 1_700_000_000, "model": model}


def _choice(name: str, value: Json, reason: str | None) -> Json:
    return {"index": 0, name: value, "finish_reason": reason}


def _calls(request: Request, parts: Sequence[Part]) -> list[Json]:
    calls = [part for part in parts if isinstance(part, Call)]
    return [
        {
            "id": f"call_{request.number}_{index}",
            "type": "function",
            "function": {"name": call.tool, "arguments": call.text},
        }
        for index, call in enumerate(calls)
    ]


def _reason(parts: Sequence[Part]) -> str:
    return "tool_calls" if any(isinstance(part, Call) for part in parts) else "stop"
