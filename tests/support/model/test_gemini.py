"""The Gemini API as its agent sees it, on a running model server."""

import json
from collections.abc import Generator

import httpx
import pytest

from tests.support.model.script import Call, Fail, Json, Say, Script, Think
from tests.support.model.server import ModelServer
from tests.support.running import BOUND


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer() as running:
        yield running


def post(model: ModelServer, method: str, *contents: Json, **more: object) -> httpx.Response:
    body = {"contents": list(contents), "tools": [{"functionDeclarations": []}], **more}
    return httpx.post(
        f"{model.url}/v1beta/models/some-model:{method}", json=body, trust_env=False, verify=False, timeout=BOUND
    )


def user(script: Script) -> Json:
    return {"role": "user", "parts": [{"text": f"go {script.marker}"}]}


def candidates(response: httpx.Response) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line)["candidates"][0] for line in lines]


def test_text_and_thought_stream_in_pieces(model: ModelServer) -> None:
    script = model.script([Think("hm"), Say("one two")])

    said = candidates(post(model, "streamGenerateContent?alt=sse", user(script)))

    parts = [part for one in said for part in one["content"]["parts"]]
    assert parts == [{"text": "hm", "thought": True}, {"text": "one "}, {"text": "two"}, {"text": ""}]
    assert said[-1]["finishReason"] == "STOP"


def test_tool_is_called_and_its_result_is_the_next_step(model: ModelServer) -> None:
    script = model.script([Say("I look."), Call("run", {"cmd": "ls"})], Say("done"))

    called = post(model, "generateContent", user(script)).json()["candidates"][0]["content"]
    result = {"functionResponse": {"name": "run", "response": {"output": "a.txt"}}}
    contents = [user(script), called, {"role": "user", "parts": [result]}]
    answer = post(model, "generateContent", *contents).json()

    assert called["parts"][1]["functionCall"]["args"] == {"cmd": "ls"}
    assert answer["candidates"][0]["content"]["parts"] == [{"text": "done"}]
    assert script.requests[1].conversation is not None
    turn = script.requests[1].conversation.turns[-1]
    assert turn.role == "tool"
    assert "a.txt" in turn.text


def test_error_has_its_status(model: ModelServer) -> None:
    response = post(model, "generateContent", user(model.script(Fail(400, "invalid_request_error", "no"))))

    assert response.status_code == 400
    assert response.json()["error"] == {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}


def test_request_on_the_side_does_not_play_the_script(model: ModelServer) -> None:
    script = model.script(Say("mine"))

    answer = post(model, "generateContent", user(script), tools=[]).json()

    assert "title" in answer["candidates"][0]["content"]["parts"][0]["text"]
    assert script.requests == []


def test_tokens_are_counted(model: ModelServer) -> None:
    assert post(model, "countTokens").json()["totalTokens"] > 0
