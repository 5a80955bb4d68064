"""What Amp asks of its own server besides the model: who the user is, and to keep threads.

The model is asked by Anthropic's API below a path of Amp's; `anthropic.py` answers that. A thread that is not on the
machine is not found.
"""

from collections.abc import Iterator, Sequence

from tests.support.model.api import Request
from tests.support.model.gate import Gate
from tests.support.model.script import Conversation, Fail, Json, Part

_RESULTS: dict[str, Json] = {
    "getUserInfo": {
        "id": "user_1",
        "username": "someone",
        "email": "someone@example.com",
        "emailVerified": True,
        "siteAdmin": False,
        "features": [],
        "team": None,
        "mysteriousMessage": None,
    },
    "getUserFreeTierStatus": {"canUseAmpFree": False, "isDailyGrantEnabled": False},
}


def serves(path: str) -> bool:
    return path == "/api/internal" or path.startswith("/api/telemetry")


def other(request: Request) -> Json | None:
    if request.path != "/api/internal":
        return {"ok": True}
    return {"ok": True, "result": _RESULTS.get(request.body["method"], {})}


def conversation(request: Request) -> Conversation:
    raise AssertionError("Amp's own API is no model")


def streams(request: Request) -> bool:
    return False


def frames(request: Request, parts: Sequence[Part]) -> Iterator[str | Gate]:
    raise AssertionError("Amp's own API is no model")


def whole(request: Request, parts: Sequence[Part]) -> Json:
    raise AssertionError("Amp's own API is no model")


def failure(fail: Fail) -> Json:
    raise AssertionError("Amp's own API is no model")
