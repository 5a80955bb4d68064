"""What Amp may do: asked at the gate, decided by the client; everything unclear is rejected."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.adapters.amp import delegate
from tests.support.adapter import Adapter, Json, prompt, selected
from tests.support.model.gate import BOUND

BASH = ["use", "t1", "Bash", {"cmd": "make"}]
REJECT = 2


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Generator[Adapter]:
    with Adapter(tmp_path_factory.mktemp("amp")) as running:
        yield running


def outcome(adapter: Adapter, session: str) -> Json:
    """The newest update of the tool call."""
    return adapter.updates(session, "tool_call_update")[-1]


def test_tool_is_used_when_the_client_allows_it(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    adapter.answer = lambda _: selected("allow")
    adapter.prompt(session, BASH)

    asked = next(each for each in adapter.asked if each["sessionId"] == session)
    assert asked["toolCall"]["rawInput"] == {"cmd": "make"}
    assert asked["toolCall"]["_meta"] == {"amp": {"toolName": "Bash"}}
    assert {option["kind"] for option in asked["options"]} == {"allow_once", "reject_once"}
    assert outcome(adapter, session)["status"] == "completed"


@pytest.mark.parametrize(
    "answer",
    [
        selected("reject"),
        selected("no such option"),
        {"outcome": {"outcome": "cancelled"}},
        {"outcome": "allow"},
        {},
        {"code": -32603, "message": "nobody is there"},
    ],
    ids=["rejected", "unknown-option", "cancelled", "odd", "empty", "error"],
)
def test_everything_but_an_allow_rejects_and_the_model_hears_why(
    adapter: Adapter, tmp_path: Path, answer: Json
) -> None:
    session = adapter.session(tmp_path)
    adapter.answer = lambda _: answer
    result = adapter.prompt(session, BASH, ["say", "as you like"])

    told = outcome(adapter, session)
    assert told["status"] == "failed"
    assert result["result"]["stopReason"] == "end_turn"
    if "code" not in answer:
        assert told["rawOutput"] == "The user did not allow this."


def test_reading_in_the_sessions_directory_is_not_asked_and_elsewhere_it_is(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "outside").symlink_to("/etc")
    session = adapter.session(tmp_path)
    adapter.answer = lambda _: selected("reject")
    paths = {"in": str(tmp_path / "a.txt"), "out": "/etc/passwd", "link": str(tmp_path / "outside/passwd")}
    paths |= {"up": f"{tmp_path}/../b", "home": "~/.ssh/id", "prefix": f"{tmp_path}-other/c"}
    adapter.prompt(session, *(["use", name, "Read", {"path": path}] for name, path in paths.items()))

    asked = [each["toolCall"]["toolCallId"] for each in adapter.asked if each["sessionId"] == session]
    assert asked == ["out", "link", "up", "home", "prefix"]


def test_all_tools_that_do_more_are_asked_about(adapter: Adapter, tmp_path: Path) -> None:
    tools = ["Bash", "create_file", "undo_edit", "read_web_page", "mcp__any__tool", "never seen", "read"]
    session = adapter.session(tmp_path)
    adapter.answer = lambda _: selected("reject")
    adapter.prompt(session, *(["use", tool, tool, {"path": str(tmp_path / "a.txt")}] for tool in tools))

    assert [each["toolCall"]["toolCallId"] for each in adapter.asked if each["sessionId"] == session] == tools
    assert {each["status"] for each in adapter.updates(session, "tool_call_update")} == {"failed"}


WEAKENING = [
    '{"amp.dangerouslyAllowAll": true}',
    '{"amp.permissions": [{"tool": "*", "action": "allow"}]}',
    '{"amp.toolbox.path": "tools"}',
    '{"amp.danger\\u006fuslyAllowAll": true}',
    '// a comment\n{"amp.permissions": [],}',
    '{"amp.mcpServers": {"x": {"command": "/bin/sh", "args": ["-c", "id"]}}}',
    '{"amp.hooks": [{"on": {"event": "tool:post-execute"}, "action": {"type": "send-user-message"}}]}',
    '{"amp": {"mcpServers": {}}}',
    '{"amp.mcpPermissions": [], "amp.showCosts": true}',
    '{"amp.guardedFiles.allowlist": ["**"]}',
    '{"amp.commands.allowlist": ["*"]}',
    '{"amp.skills.path": "skills"}',
    '{"amp.plugins": ["x.ts"]}',
    '{"amp.url": "https://example.com"}',
    '{"amp.proxy": "http://example.com"}',
    '{"amp.updates.mode": "auto"}',
    '{"amp.what a later Amp may have": 1}',
    '{"a": "/*", "amp.hooks": [], "b": "*/"}',
    '{// \u2028 "amp.hooks": []\n}',
    '{"amp.showCosts": true, /* }',
    '{"amp.showCosts": "',
    "[]",
    "[" * 100_000,
    "",
]
"""Contents of `.amp/settings.json` that run or allow something, or of which nobody knows."""
RUNNING = [
    ".amp/plugins/evil.ts",
    ".agents/skills/evil/mcp.json",
    ".claude/skills/evil/mcp.json",
    ".agents/skills/group/evil/mcp.json",
]


def test_amp_is_not_started_where_the_workspace_could_allow_itself_things(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / ".amp").mkdir()
    (tmp_path / "inner").mkdir()
    session = adapter.session(tmp_path / "inner")
    for name in ("settings.json", "settings.jsonc"):
        file = tmp_path / ".amp" / name
        for content in WEAKENING:
            file.write_text(content)
            message = adapter.prompt(session, ["say", "never"])["error"]["message"]
            assert str(file) in message, content
            assert "remove it to use Amp" in message
        file.unlink()

    assert not (tmp_path / "inner/called.json").exists()


def test_amp_is_not_started_where_the_workspace_has_programs_for_it(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    session = adapter.session(tmp_path / "inner")
    for name in RUNNING:
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.touch()
        assert str(file) in adapter.prompt(session, ["say", "never"])["error"]["message"]
        file.unlink()

    assert not (tmp_path / "inner/called.json").exists()
    assert "result" in adapter.prompt(session, ["say", "now"])


def test_settings_of_a_workspace_that_are_about_other_things_do_no_harm(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / ".amp").mkdir()
    (tmp_path / ".amp/settings.json").write_text(
        '\ufeff/* costs, */ {"$schema": "https://example.com/a,]", "amp.showCosts": false,'
        ' "amp.fuzzy.alwaysIncludePaths": ["dist/**", ], // "amp.hooks"\n}'
    )
    (tmp_path / ".agents/skills/good").mkdir(parents=True)
    (tmp_path / ".agents/skills/good/SKILL.md").touch()

    assert "result" in adapter.prompt(adapter.session(tmp_path), ["say", "here"])


def test_turn_ends_when_a_tool_has_changed_what_may_be_done_unasked(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    adapter.answer = lambda _: selected("allow")
    weaken = ["write", str(tmp_path / ".amp/settings.json"), WEAKENING[0]]
    answer = adapter.prompt(session, weaken, BASH, ["hold"])

    assert answer["error"]["data"] == {"path": str(tmp_path / ".amp/settings.json")}
    assert outcome(adapter, session)["status"] == "failed"
    assert not [each for each in adapter.asked if each["sessionId"] == session]


def test_what_a_helper_does_is_asked_about_and_told(adapter: Adapter, tmp_path: Path) -> None:
    session = adapter.session(tmp_path)
    adapter.answer = lambda asked: selected("allow" if asked["toolCall"]["title"] == "make" else "reject")
    adapter.prompt(session, ["help", *BASH[1:]], ["help", "t2", "Bash", {"cmd": "rm"}], ["say", "done"])

    assert [each["title"] for each in adapter.updates(session, "tool_call")] == ["make", "rm"]
    last = {each["toolCallId"]: each["status"] for each in adapter.updates(session, "tool_call_update")}
    assert last == {"t1": "completed", "t2": "failed"}


def test_turn_ends_when_amp_uses_a_tool_without_asking(adapter: Adapter, tmp_path: Path) -> None:
    answer = adapter.prompt(adapter.session(tmp_path), ["sneak", *BASH[1:]], ["hold"])

    assert answer["error"]["message"].startswith("Amp used a tool without asking for permission")


def test_socket_is_private_and_asks_for_a_secret(tmp_path: Path) -> None:
    with Adapter(tmp_path) as adapter:
        session = adapter.session(tmp_path)
        running = adapter.send("session/prompt", **prompt(session, ["say", "first"], ["hold"]))
        adapter.until(lambda each: "first" in json.dumps(each))
        (folder,) = adapter.temporary.iterdir()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "gate")]
        asked = ask(folder / "gate", "wrong")
        adapter.notify("session/cancel", sessionId=session)
        adapter.wait(running)

    assert modes == [0o700, 0o600]
    assert asked.returncode == REJECT
    assert adapter.asked == []


def test_what_a_killed_adapter_has_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    first = Adapter(tmp_path)
    first.result("initialize", protocolVersion=1)
    first.process.kill()
    first.process.wait(BOUND)
    (left,) = first.temporary.iterdir()
    with Adapter(tmp_path, TMPDIR=str(first.temporary)) as second:
        second.result("initialize", protocolVersion=1)
        (living,) = set(first.temporary.iterdir()) - {left}
        for each in (left, living):
            os.utime(each, (0, 0))
        with Adapter(tmp_path, TMPDIR=str(first.temporary)) as third:
            third.result("initialize", protocolVersion=1)
            assert (left.exists(), living.exists()) == (False, True)
    first.end()


def test_gate_rejects_when_the_adapter_is_gone(tmp_path: Path) -> None:
    asked = ask(tmp_path / "gone", "any")

    assert (asked.returncode, asked.stderr) == (REJECT, "Permission could not be asked for.")


@pytest.mark.parametrize("answer", [b"", b"nonsense\n", b"{}\n", b'{"allow": 1}\n', b'{"allow": "true"}\n', b"[]\n"])
def test_gate_rejects_whatever_is_no_clear_yes(tmp_path: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(BOUND)
        asking = start(tmp_path / "s", "any")
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as questions:
            questions.readline()
            connection.sendall(answer)
        assert asking.wait(BOUND) == REJECT
        assert asking.stderr is not None
        asking.stderr.close()


@pytest.mark.parametrize(("given", "missing"), [("not json", ""), ("{}", "AGENT_TOOL_NAME")])
def test_gate_rejects_what_it_cannot_read(tmp_path: Path, given: str, missing: str) -> None:
    assert ask(tmp_path / "gone", "any", given, missing).returncode == REJECT


def ask(path: Path, secret: str, given: str = "{}", missing: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", "-S", delegate.__file__, str(path), secret]
    environment = {name: value for name, value in named().items() if name != missing}
    return subprocess.run(
        command, input=given, env=environment, capture_output=True, text=True, check=False, timeout=BOUND
    )


def start(path: Path, secret: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-I", "-S", delegate.__file__, str(path), secret]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=named(), text=True, close_fds=True
    )
    assert started.stdin is not None
    started.stdin.write("{}")
    started.stdin.flush()
    started.stdin.close()
    return started


def named() -> dict[str, str]:
    return {**os.environ, "AGENT_TOOL_NAME": "Bash", "AGENT_TOOL_USE_ID": "t1"}
