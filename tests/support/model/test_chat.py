"""The chat completions API as agents see it, on a running model server."""

import json
from collections.abc import Generator

import httpx
import pytest

from tests.support.model.script import Call, Fail, Json, Say, Script, Think, Turn
from tests.support.model.server import ModelServer
from tests.support.running import BOUND


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer() as running:
        yield running


def post(model: ModelServer, *messages: Json, **more: object) -> httpx.Response:
    body = {"model": "some", "messages": list(messages), "tools": [{"type": "function"}], **more}
    return httpx.post(f"{model.url}/v1/chat/completions", json=body, trust_env=False, verify=False, timeout=BOUND)


def user(script: Script) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": f"go {script.marker}"}]}


def deltas(response: httpx.Response) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]


def test_text_and_thought_stream_in_pieces(model: ModelServer) -> None:
    script = model.script([Think("hm"), Say("one two")])

    said = deltas(post(model, user(script), stream=True))

    assert [choice["delta"] for choice in said[1:]] == [
        {"reasoning_content": "hm"},
        {"content": "one "},
        {"content": "two"},
        {},
    ]
    assert said[-1]["finish_reason"] == "stop"


def test_tool_is_called_in_a_stream(model: ModelServer) -> None:
    said = deltas(post(model, user(model.script(Call("run", {"cmd": "ls"}))), stream=True))

    (call,) = [call for choice in said for call in choice["delta"].get("tool_calls", [])]
    assert call["function"] == {"name": "run", "arguments": '{"cmd": "ls"}'}
    assert said[-1]["finish_reason"] == "tool_calls"


def test_result_of_a_tool_is_the_next_step(model: ModelServer) -> None:
    script = model.script([Say("I look."), Call("run", {"cmd": "ls"})], Say("done"))

    called = post(model, user(script)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "a.txt"}
    answer = post(model, user(script), called, result).json()

    assert answer["choices"][0]["message"]["content"] == "done"
    assert script.requests[1].conversation is not None
    assert script.requests[1].conversation.turns[1:] == (Turn("model", "I look."), Turn("tool", "a.txt"))


def test_error_has_its_status_and_type(model: ModelServer) -> None:
    response = post(model, user(model.script(Fail(400, "invalid_request_error", "no"))))

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_request_for_a_title_does_not_play_the_script(model: ModelServer) -> None:
    script = model.script(Say("mine"))

    answer = post(model, user(script), tools=[]).json()

    assert "title" in answer["choices"][0]["message"]["content"]
    assert script.requests == []
