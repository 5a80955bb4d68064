"""Amp's own API as Amp sees it, on a running model server."""

import httpx

from tests.support.model.script import Say
from tests.support.model.server import ModelServer
from tests.support.running import BOUND


def test_amp_is_told_who_the_user_is_and_that_its_thread_is_kept() -> None:
    with ModelServer() as model:
        url = f"{model.url}/api/internal"
        user = httpx.post(
            url, json={"method": "getUserInfo", "params": {}}, trust_env=False, verify=False, timeout=BOUND
        ).json()
        kept = httpx.post(
            url, json={"method": "uploadThread", "params": {}}, trust_env=False, verify=False, timeout=BOUND
        ).json()
        told = httpx.post(
            f"{model.url}/api/telemetry", json=[{"any": "thing"}], trust_env=False, verify=False, timeout=BOUND
        )
        missing = httpx.get(f"{model.url}/api/threads/T-1", trust_env=False, verify=False, timeout=BOUND)

    assert user["result"]["username"]
    assert kept == {"ok": True, "result": {}}
    assert (told.status_code, missing.status_code) == (200, 404)


def test_title_that_a_tool_must_make_does_not_play_the_script() -> None:
    with ModelServer() as model:
        script = model.script(Say("mine"))
        body = {
            "messages": [{"role": "user", "content": f"<message>{script.marker}</message>"}],
            "tools": [{"name": "set_title"}],
            "tool_choice": {"type": "tool", "name": "set_title"},
        }
        httpx.post(
            f"{model.url}/api/provider/anthropic/v1/messages", json=body, trust_env=False, verify=False, timeout=BOUND
        )

    assert script.requests == []
