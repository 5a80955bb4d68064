"""The Messages API as agents see it, and gates, on a running model server."""

import json
from collections.abc import Generator

import httpx
import pytest

from tests.support.client import run
from tests.support.model.script import Call, Fail, Json, Say, Script, Think, Turn
from tests.support.model.server import ModelServer
from tests.support.running import BOUND


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer() as running:
        yield running


def body(*messages: Json, **more: object) -> Json:
    return {"model": "some", "messages": list(messages), "tools": [{"name": "Write"}], **more}


def user(script: Script) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": f"go {script.marker}"}]}


def post(model: ModelServer, content: Json, path: str = "/v1/messages?beta=true") -> httpx.Response:
    return httpx.post(model.url + path, json=content, trust_env=False, verify=False, timeout=BOUND)


def events(text: str) -> list[Json]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_text_streams_in_pieces(model: ModelServer) -> None:
    script = model.script([Think("hm"), Say("one two")])

    said = events(post(model, body(user(script), stream=True)).text)

    deltas = [event["delta"] for event in said if event["type"] == "content_block_delta"]
    assert [delta["text"] for delta in deltas if delta["type"] == "text_delta"] == ["one ", "two"]
    assert [delta["thinking"] for delta in deltas if delta["type"] == "thinking_delta"] == ["hm"]
    assert said[-2]["delta"]["stop_reason"] == "end_turn"


def test_tool_is_called_and_its_result_is_the_next_step(model: ModelServer) -> None:
    script = model.script([Say("I write."), Call("Write", {"path": "a"})], Say("done"))

    called = post(model, body(user(script))).json()
    result = {"type": "tool_result", "tool_use_id": called["content"][1]["id"], "content": "written"}
    answer = post(
        model,
        body(
            user(script),
            {"role": "assistant", "content": called["content"]},
            {"role": "user", "content": [result]},
            {"role": "system", "content": "be quick"},
        ),
    ).json()

    assert called["stop_reason"] == "tool_use"
    assert called["content"][1]["input"] == {"path": "a"}
    assert answer["content"] == [{"type": "text", "text": "done"}]
    assert script.requests[1].conversation is not None
    assert script.requests[1].conversation.turns[2:] == (Turn("tool", "written"), Turn("system", "be quick"))


def test_error_has_its_status_and_type(model: ModelServer) -> None:
    response = post(model, body(user(model.script(Fail(529, "overloaded_error", "later")))))

    assert response.status_code == 529
    assert response.json()["error"] == {"type": "overloaded_error", "message": "later"}


def test_request_for_a_title_does_not_play_the_script(model: ModelServer) -> None:
    script = model.script(Say("mine"))

    answer = post(model, body(user(script), tools=[])).json()

    assert "title" in answer["content"][0]["text"]
    assert script.requests == []


def test_tokens_are_counted(model: ModelServer) -> None:
    assert post(model, body(), "/v1/messages/count_tokens").json()["input_tokens"] > 0


def test_unknown_path_is_not_found(model: ModelServer) -> None:
    assert httpx.get(f"{model.url}/nowhere", trust_env=False, verify=False, timeout=BOUND).status_code == 404
    assert model.requests[-1].path == "/nowhere"


def test_what_is_meant_for_others_is_kept_apart() -> None:
    with ModelServer() as model:
        httpx.get(f"{model.url}/own", trust_env=False, verify=False, timeout=BOUND)
        httpx.get("http://elsewhere.test/", proxy=model.url, timeout=BOUND)
        with pytest.raises(httpx.ProxyError):
            httpx.get("https://elsewhere.test/", proxy=model.url, timeout=BOUND)

    assert model.strays == ["GET elsewhere.test", "CONNECT elsewhere.test:443"]


def test_gate_holds_a_stream_until_it_is_opened(model: ModelServer) -> None:
    gate = model.gate()
    script = model.script(Say("before", gate, "after"))

    async def scenario() -> None:
        request = body(user(script), stream=True)
        async with (
            httpx.AsyncClient(trust_env=False, verify=False, timeout=BOUND) as http,
            http.stream("POST", f"{model.url}/v1/messages", json=request) as response,
        ):
            lines = response.aiter_lines()
            async for line in lines:
                if "before" in line:
                    break
            await gate.reached()
            gate.open()
            assert any(["after" in line async for line in lines])
        await model.until(lambda: script.requests[0].state == "answered")

    run(scenario())


def test_agent_that_hangs_up_is_noticed(model: ModelServer) -> None:
    gate = model.gate()
    script = model.script(Say("before", gate, "after"))

    async def scenario() -> None:
        request = body(user(script), stream=True)
        async with (
            httpx.AsyncClient(trust_env=False, verify=False, timeout=BOUND) as http,
            http.stream("POST", f"{model.url}/v1/messages", json=request),
        ):
            await gate.reached()
        await model.until(lambda: script.requests[0].state == "abandoned")

    run(scenario())
