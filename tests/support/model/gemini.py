"""The Gemini API of Google: gemini."""

import re
from collections.abc import Iterator, Sequence

from tests.support.model.api import Request, frame
from tests.support.model.gate import Gate
from tests.support.model.script import Call, Conversation, Fail, Json, Part, Say, Think, Turn

_PATH = re.compile(r"/v1beta/models/([^/:]+):(streamGenerateContent|generateContent|countTokens)$")
_USAGE = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
_STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}


def serves(path: str) -> bool:
    return _PATH.search(path) is not None


def other(request: Request) -> Json | None:
    return {"totalTokens": 1234} if request.path.endswith(":countTokens") else None


def streams(request: Request) -> bool:
    return request.path.endswith(":streamGenerateContent")


def conversation(request: Request) -> Conversation:
    turns = tuple(turn for content in request.body["contents"] for turn in _turns(content))
    return Conversation(turns) if request.body.get("tools") else Conversation(turns, '{"title": "A scripted title"}')


def _turns(content: Json) -> Iterator[Turn]:
    """A content as turns: results of tools come in contents of the user, alone or with text."""
    results = [str(part["functionResponse"]["response"]) for part in content["parts"] if "functionResponse" in part]
    texts = [part["text"] for part in content["parts"] if "text" in part]
    if results:
        yield Turn("tool", "\n".join(results))
    if texts or not results:
        yield Turn("model" if content.get("role") == "model" else "user", "\n".join(texts))


def frames(request: Request, parts: Sequence[Part]) -> Iterator[str | Gate]:
    for index, part in enumerate(parts):
        for piece in part.pieces if isinstance(part, Say) else [part]:
            yield piece if isinstance(piece, Gate) else frame(_chunk(request, [_part(request, index, part, piece)]))
    yield frame(_chunk(request, [{"text": ""}], "STOP"))


def whole(request: Request, parts: Sequence[Part]) -> Json:
    contents = [_part(request, index, part, part.text) for index, part in enumerate(parts)]
    return _chunk(request, contents, "STOP")


def failure(fail: Fail) -> Json:
    return {"error": {"code": fail.status, "message": fail.message, "status": _STATUSES.get(fail.status, "INTERNAL")}}


def _chunk(request: Request, parts: list[Json], reason: str | None = None) -> Json:
    candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
    if reason is not None:
        candidate["finishReason"] = reason
    found = _PATH.search(request.path)
    model = found[1] if found else None
    answer = {"candidates": [candidate], "modelVersion": model, "responseId": f"response-{request.number}"}
    return answer if reason is None else {**answer, "usageMetadata": _USAGE}


def _part(request: Request, index: int, part: Part, piece: str | Call) -> Json:
    match part:
        case Call():
            call = {"name": part.tool, "args": part.arguments, "id": f"call_{request.number}_{index}"}
            return {"functionCall": call, "thoughtSignature": "c2lnbmVk"}
        case Think():
            return {"text": piece, "thought": True}
        case Say():
            return {"text": piece}
