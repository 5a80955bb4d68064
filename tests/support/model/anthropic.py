"""The Messages API of Anthropic: claude, copilot, pi, amp."""

from collections.abc import Iterator, Sequence

from tests.support.model.api import Request, frame
from tests.support.model.gate import Gate
from tests.support.model.script import Call, Conversation, Fail, Json, Part, Say, Think, Turn

_USAGE = {"input_tokens": 100, "output_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
_PIECE = 40


def serves(path: str) -> bool:
    return path.endswith(("/v1/messages", "/v1/messages/count_tokens"))


def other(request: Request) -> Json | None:
    return {"input_tokens": 1234} if request.path.endswith("/count_tokens") else None


def streams(request: Request) -> bool:
    return bool(request.body.get("stream"))


def conversation(request: Request) -> Conversation:
    turns = tuple(turn for message in request.body["messages"] for turn in _turns(message))
    # Amp has a title made by a tool that must be called.
    if not request.body.get("tools") or request.body.get("tool_choice", {}).get("type") == "tool":
        return Conversation(turns, '{"title": "A scripted title"}')
    if turns and turns[-1].text.startswith("[SUGGESTION MODE"):
        return Conversation(turns, "run the tests")
    return Conversation(turns)


def _turns(message: Json) -> Iterator[Turn]:
    """A message as turns: results of tools come in messages of the user, alone or with text."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    results = [_text(block) for block in blocks if block["type"] == "tool_result"]
    texts = [_text(block) for block in blocks if block["type"] == "text"]
    if results:
        yield Turn("tool", "\n".join(results))
    if message["role"] == "assistant":
        yield Turn("model", "\n".join(texts))
    elif texts or not results:
        yield Turn("user" if message["role"] == "user" else "system", "\n".join(texts))


def _text(block: Json) -> str:
    content = block.get("text", block.get("content", ""))
    return content if isinstance(content, str) else "\n".join(_text(inner) for inner in content)


def frames(request: Request, parts: Sequence[Part]) -> Iterator[str | Gate]:
    head: Json = {**_head(request), "content": [], "stop_reason": None, "usage": _USAGE}
    yield _event("message_start", message=head)
    for index, part in enumerate(parts):
        yield _event("content_block_start", index=index, content_block=_block(request, index, part, empty=True))
        for delta in _deltas(part):
            yield delta if isinstance(delta, Gate) else _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta={"stop_reason": _reason(parts), "stop_sequence": None}, usage=_USAGE)
    yield _event("message_stop")


def _deltas(part: Part) -> Iterator[Json | Gate]:
    match part:
        case Call():
            for start in range(0, len(part.text), _PIECE):
                yield {"type": "input_json_delta", "partial_json": part.text[start : start + _PIECE]}
        case Think():
            for piece in part.pieces:
                yield piece if isinstance(piece, Gate) else {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": "c2lnbmVk"}
        case Say():
            for piece in part.pieces:
                yield piece if isinstance(piece, Gate) else {"type": "text_delta", "text": piece}


def whole(request: Request, parts: Sequence[Part]) -> Json:
    blocks = [_block(request, index, part, empty=False) for index, part in enumerate(parts)]
    return {**_head(request), "content": blocks, "stop_reason": _reason(parts), "usage": _USAGE}


def failure(fail: Fail) -> Json:
    return {"type": "error", "error": {"type": fail.type, "message": fail.message}}


def _head(request: Request) -> Json:
    model = request.body.get("model")
    return {
        "id": f"msg_{request.number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "stop_sequence": None,
    }


def _block(request: Request, index: int, part: Part, *, empty: bool) -> Json:
    match part:
        case Call():
            id = f"toolu_{request.number}_{index}"
            return {"type": "tool_use", "id": id, "name": part.tool, "input": {} if empty else part.arguments}
        case Think():
            thought = "" if empty else part.text
            return {"type": "thinking", "thinking": thought, "signature": "" if empty else "c2lnbmVk"}
        case Say():
            return {"type": "text", "text": "" if empty else part.text}


def _reason(parts: Sequence[Part]) -> str:
    return "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"


def _event(type: str, **members: object) -> str:
    return frame({"type": type, **members}, type)
