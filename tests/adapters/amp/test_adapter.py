"""The Amp adapter over stdio, with a fake Amp: sessions, turns, cancels and what is handed to Amp."""

import base64
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.adapter import Adapter, Json, prompt, selected
from tests.support.fake_amp import THREAD
from tests.support.pictures import png
from tests.support.running import alive, eventually

NOT_FOUND, INVALID, REFUSED, FAILED, NO_KEY = -32002, -32602, -32600, -32603, -32000
UNKNOWN_THREAD = "T-ffffffff-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Generator[Adapter]:
    with Adapter(tmp_path_factory.mktemp("amp")) as running:
        yield running


def called(directory: Path) -> Json:
    """What Amp was called with in its last turn."""
    return json.loads((directory / "called.json").read_text())


def test_handshake_tells_the_version_of_amp_and_what_can_be_done(adapter: Adapter) -> None:
    result = adapter.result("initialize", protocolVersion=1)

    assert result["agentInfo"] == {"name": "amp", "title": "Amp", "version": "1.2.3"}
    assert result["agentCapabilities"]["loadSession"] is True
    assert set(result["agentCapabilities"]["sessionCapabilities"]) == {"resume", "close"}


def test_session_is_a_thread_of_amp(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    answer = adapter.prompt(session, ["say", "hello"])

    assert session.startswith(THREAD[:20])
    assert answer["result"]["stopReason"] == "end_turn"
    assert called(tmp_path)["arguments"][:3] == ["threads", "continue", session]


def test_text_thoughts_tools_and_usage_are_told(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old\n")
    edit = {"path": str(tmp_path / "a.txt"), "old_str": "one", "new_str": "two"}
    create = {"path": str(tmp_path / "old.txt"), "content": "new\n"}
    session = adapter.session(tmp_path)
    adapter.answer = lambda _: selected("allow")

    answer = adapter.prompt(
        session,
        ["think", "hm"],
        ["use", "t1", "edit_file", edit],
        ["use", "t2", "create_file", create],
        ["use", "t3", "Bash", {"cmd": "make"}],
        ["say", "done"],
    )

    assert [each["content"]["text"] for each in adapter.updates(session, "agent_thought_chunk")] == ["hm"]
    assert [each["content"]["text"] for each in adapter.updates(session, "agent_message_chunk")] == ["done"]
    calls = adapter.updates(session, "tool_call")
    assert [(each["toolCallId"], each["kind"]) for each in calls] == [("t1", "edit"), ("t2", "edit"), ("t3", "execute")]
    assert calls[0]["content"] == [{"type": "diff", "path": edit["path"], "oldText": "one", "newText": "two"}]
    assert calls[1]["content"] == [{"type": "diff", "path": create["path"], "oldText": "old\n", "newText": "new\n"}]
    assert calls[2]["title"] == "make"
    told = [(each["toolCallId"], each["status"]) for each in adapter.updates(session, "tool_call_update")]
    assert [status for id, status in told if id == "t1"] == ["in_progress", "completed"]
    assert adapter.updates(session, "usage_update")[0] == {
        "sessionUpdate": "usage_update",
        "used": 115,
        "size": 300000,
    }
    assert answer["result"]["usage"]["totalTokens"] == 115 * 5


def test_error_of_amp_is_an_error_and_the_session_goes_on(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    failed = adapter.prompt(session, ["fail", "the model is out of order"])
    after = adapter.prompt(session, ["say", "better now"])

    assert failed["error"]["code"] == FAILED
    assert "the model is out of order" in failed["error"]["message"]
    assert after["result"]["stopReason"] == "end_turn"
    assert [each["content"]["text"] for each in adapter.updates(session, "agent_message_chunk")] == ["better now"]


def test_end_of_amp_before_the_turn_is_an_error_with_what_it_complained_of(adapter: Adapter, tmp_path: Path) -> None:
    answer = adapter.prompt(adapter.session(tmp_path), ["complain", "out of memory"], ["exit", 7])

    assert answer["error"]["message"] == "Amp ended with code 7 before the turn did: out of memory"


def test_nonsense_on_the_stream_is_skipped(adapter: Adapter, tmp_path: Path) -> None:
    odd = ["not json", "[1]", '{"type": "assistant"}', '{"type": "user", "message": {"content": 3}}', "{}"]
    session = adapter.session(tmp_path)
    answer = adapter.prompt(session, *(["raw", line] for line in odd), ["say", "still here"])

    assert answer["result"]["stopReason"] == "end_turn"
    assert [each["content"]["text"] for each in adapter.updates(session, "agent_message_chunk")] == ["still here"]


def test_cancel_ends_the_turn_with_all_that_it_started(adapter: Adapter, tmp_path: Path) -> None:
    session, left = adapter.session(tmp_path), tmp_path / "left"
    running = adapter.send("session/prompt", **prompt(session, ["leave", str(left)], ["say", "first"], ["hold"]))
    adapter.until(lambda each: each["params"].get("update", {}).get("sessionUpdate") == "agent_message_chunk")
    adapter.until(lambda each: each["params"]["sessionId"] == session and "first" in json.dumps(each))
    adapter.notify("session/cancel", sessionId=session)
    answer = adapter.wait(running)
    after = adapter.prompt(session, ["say", "again"])

    assert answer["result"] == {"stopReason": "cancelled"}
    assert not alive(int(left.read_text()))
    assert after["result"]["stopReason"] == "end_turn"


def test_end_of_a_turn_is_the_end_of_what_it_left_running(adapter: Adapter, tmp_path: Path) -> None:
    left = tmp_path / "left"
    adapter.prompt(adapter.session(tmp_path), ["leave", str(left)], ["say", "done"])

    eventually(lambda: not alive(int(left.read_text())), "the end of what the turn left running")


def test_end_of_input_ends_the_adapter_and_a_turn_with_it(tmp_path: Path) -> None:
    adapter, left = Adapter(tmp_path), tmp_path / "left"
    session = adapter.session(tmp_path)
    adapter.send("session/prompt", **prompt(session, ["leave", str(left)], ["say", "first"], ["hold"]))
    adapter.until(lambda each: "first" in json.dumps(each))
    code = adapter.end()

    assert code == 0
    eventually(lambda: not alive(int(left.read_text())), "the end of what the turn left running")
    assert not adapter.temporary.exists(), "it has cleaned up"


def test_second_prompt_of_a_running_turn_is_refused(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    running = adapter.send("session/prompt", **prompt(session, ["say", "first"], ["hold"]))
    error = adapter.error("session/prompt", **prompt(session, ["say", "second"]))
    adapter.result("session/close", sessionId=session)

    assert error["code"] == REFUSED
    assert adapter.wait(running)["result"]["stopReason"] == "cancelled"
    assert adapter.error("session/prompt", **prompt(session, ["say", "third"]))["code"] == NOT_FOUND


def test_mode_is_chosen_before_the_first_prompt_and_stays(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    adapter.result("session/set_mode", sessionId=session, modeId="rush")
    adapter.prompt(session, ["say", "one"])
    first = called(tmp_path)["arguments"]
    adapter.prompt(session, ["say", "two"])

    assert first[first.index("--mode") + 1] == "rush"
    assert "--mode" not in called(tmp_path)["arguments"]
    assert adapter.error("session/set_mode", sessionId=session, modeId="smart")["code"] == REFUSED
    assert adapter.error("session/set_mode", sessionId=session, modeId="bogus")["code"] == INVALID


def test_links_are_mentions_and_images_are_passed_on(adapter: Adapter, tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain.txt", tmp_path / "déjà vu.txt"
    picture = base64.b64encode(png()).decode()
    blocks: list[Json] = [
        {"type": "resource_link", "name": "plain", "uri": plain.as_uri()},
        {"type": "resource_link", "name": "odd", "uri": odd.as_uri()},
        {"type": "resource_link", "name": "page", "uri": "https://example.com/a%20b"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "what it says"}},
        {"type": "image", "mimeType": "image/png", "data": picture},
        {"type": "text", "text": "[]"},
    ]
    session = adapter.session(tmp_path)
    adapter.result("session/prompt", sessionId=session, prompt=blocks)
    content = called(tmp_path)["content"]
    audio = {"type": "audio", "mimeType": "audio/wav", "data": ""}
    refused = adapter.error("session/prompt", sessionId=session, prompt=[audio])

    assert [block.get("text") for block in content[:4]] == [
        f"@{plain}",
        f"@{tmp_path}/déjà\\ vu.txt ({odd})",
        "https://example.com/a%20b",
        '<context ref="file:///a">\nwhat it says\n</context>',
    ]
    assert content[4]["source"] == {"type": "base64", "media_type": "image/png", "data": picture}
    assert refused["code"] == INVALID


def test_mcp_servers_and_the_users_settings_are_handed_over_but_not_what_they_allow(tmp_path: Path) -> None:
    config = tmp_path / "home/.config/amp"
    config.mkdir(parents=True)
    rejecting = {"tool": "web_search", "action": "reject", "message": "no"}
    own = {
        "amp.dangerouslyAllowAll": True,
        "amp.permissions": [{"tool": "*", "action": "allow"}, rejecting],
        "amp.showCosts": False,
        "amp.mcpServers": {"mine": {"command": "mine"}},
    }
    (config / "settings.json").write_text(json.dumps(own))
    servers = [
        {"name": "local", "command": "serve", "args": ["-v"], "env": [{"name": "KEY", "value": "secret"}]},
        {"type": "http", "name": "far", "url": "https://example.com", "headers": [{"name": "A", "value": "b"}]},
    ]
    with Adapter(tmp_path) as adapter:
        adapter.prompt(adapter.session(tmp_path, mcpServers=servers), ["say", "done"])
    handed = called(tmp_path)

    settings = handed["settings"]
    assert handed["mode"] == "0o600"
    assert settings["amp.dangerouslyAllowAll"] is False
    assert settings["amp.showCosts"] is False
    assert [rule["action"] for rule in settings["amp.permissions"]] == ["reject", "delegate"]
    assert settings["amp.permissions"][1]["tool"] == "*"
    assert settings["amp.mcpServers"] == {
        "mine": {"command": "mine"},
        "local": {"command": "serve", "args": ["-v"], "env": {"KEY": "secret"}},
        "far": {"url": "https://example.com", "headers": {"A": "b"}},
    }
    assert not Path(settings["amp.permissions"][1]["to"]).exists()


def test_without_a_key_amp_is_not_started_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with Adapter(tmp_path, AMP_API_KEY=None) as adapter:
        error = adapter.error("session/new", cwd=str(tmp_path), mcpServers=[])

    assert error["code"] == NO_KEY
    assert "AMP_API_KEY" in error["message"]
    assert not (tmp_path / "threads").exists()


def test_thread_that_cannot_be_made_is_an_error_with_what_amp_says(tmp_path: Path) -> None:
    with Adapter(tmp_path, FAKE_AMP_FAILS="1") as adapter:
        error = adapter.error("session/new", cwd=str(tmp_path), mcpServers=[])

    assert error == {"code": FAILED, "message": "Amp has made no thread: Error creating thread: fetch failed"}


def test_amp_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with Adapter(tmp_path, AMP_CLI="/nowhere/amp") as adapter:
        error = adapter.error("session/new", cwd=str(tmp_path), mcpServers=[])

    assert error["message"] == "Amp cannot be started: /nowhere/amp: No such file or directory"


def test_thread_is_loaded_with_its_history_and_gone_on_with(tmp_path: Path) -> None:
    thread = THREAD.format(7)
    folder = tmp_path / "home/.local/share/amp/threads"
    folder.mkdir(parents=True)
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"cmd": "make"}}
    result = {"type": "tool_result", "toolUseID": "t1", "run": {"status": "done", "result": {"output": "made"}}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "remember blue"}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I do"}, use],
        },
        {"role": "user", "content": [result]},
    ]
    (folder / f"{thread}.json").write_text(json.dumps({"id": thread, "agentMode": "rush", "messages": messages}))
    with Adapter(tmp_path) as adapter:
        loaded = adapter.result("session/load", sessionId=thread, cwd=str(tmp_path), mcpServers=[])
        told = [each["sessionUpdate"] for each in adapter.updates(thread)]
        after = adapter.prompt(thread, ["say", "blue"])

    assert loaded["modes"]["currentModeId"] == "rush"
    assert told == [
        *("user_message_chunk", "agent_thought_chunk", "agent_message_chunk"),
        *("tool_call", "tool_call_update"),
    ]
    assert after["result"]["stopReason"] == "end_turn"
    assert called(tmp_path)["arguments"][:3] == ["threads", "continue", thread]


def test_thread_of_another_machine_can_be_resumed_but_not_loaded(adapter: Adapter, tmp_path: Path) -> None:
    params: Json = {"sessionId": UNKNOWN_THREAD, "cwd": str(tmp_path), "mcpServers": []}

    assert adapter.error("session/load", **params)["code"] == NOT_FOUND
    adapter.result("session/resume", **params)
    assert adapter.prompt(UNKNOWN_THREAD, ["say", "here"])["result"]["stopReason"] == "end_turn"


@pytest.mark.parametrize("id", ["../../etc/passwd", "--settings-file=x", "T-1", ""])
def test_malformed_thread_id_is_not_found(adapter: Adapter, tmp_path: Path, id: str) -> None:
    for method in ("session/load", "session/resume"):
        assert adapter.error(method, sessionId=id, cwd=str(tmp_path), mcpServers=[])["code"] == NOT_FOUND
