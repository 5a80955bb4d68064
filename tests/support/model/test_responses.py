"""The Responses API as codex sees it, on a running model server."""

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


def post(model: ModelServer, *input: Json, **more: object) -> httpx.Response:
    body = {"model": "some", "input": list(input), "tools": [{"type": "function", "name": "run"}], **more}
    return httpx.post(f"{model.url}/v1/responses", json=body, trust_env=False, verify=False, timeout=BOUND)


def user(script: Script) -> Json:
    return {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": f"go {script.marker}"}],
    }


def events(response: httpx.Response) -> list[Json]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data: ")]


def test_text_and_thought_stream_in_pieces(model: ModelServer) -> None:
    script = model.script([Think("hm"), Say("one two")])

    said = events(post(model, user(script), stream=True))

    deltas = [(event["type"], event["delta"]) for event in said if "delta" in event]
    assert deltas == [
        ("response.reasoning_summary_text.delta", "hm"),
        ("response.output_text.delta", "one "),
        ("response.output_text.delta", "two"),
    ]
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    assert said[-1]["response"]["output"][1]["content"][0]["text"] == "one two"


def test_tools_are_called_and_their_results_are_the_next_step(model: ModelServer) -> None:
    script = model.script([Call("run", {"cmd": "ls"}), Call("patch", "*** Begin")], Say("done"))

    called = post(model, user(script)).json()["output"]
    results = [
        {"type": "function_call_output", "call_id": called[0]["call_id"], "output": "a.txt"},
        {"type": "custom_tool_call_output", "call_id": called[1]["call_id"], "output": [{"text": "patched"}]},
    ]
    answer = post(model, user(script), *called, *results, {"role": "developer", "content": "be quick"}).json()

    assert json.loads(called[0]["arguments"]) == {"cmd": "ls"}
    assert called[1]["type"] == "custom_tool_call"
    assert called[1]["input"] == "*** Begin"
    assert answer["output"][0]["content"][0]["text"] == "done"
    assert script.requests[1].conversation is not None
    told = script.requests[1].conversation.turns[-3:]
    assert told == (Turn("tool", "a.txt"), Turn("tool", "patched"), Turn("system", "be quick"))


def test_error_has_its_status_and_type(model: ModelServer) -> None:
    response = post(model, user(model.script(Fail(400, "invalid_request_error", "no"))))

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_request_for_a_title_does_not_play_the_script(model: ModelServer) -> None:
    script = model.script(Say("mine"))
    wanted = {"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string"}}}}

    answer = post(model, user(script), text={"format": wanted}).json()

    assert json.loads(answer["output"][0]["content"][0]["text"]) == {"title": "A scripted title"}
    assert script.requests == []
