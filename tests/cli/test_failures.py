"""How a run ends: exit codes, and failures in words."""

import pytest

from sandboxagent import ClientError, ConnectionLost, RequestError, ServerProblem, StartFailed
from sandboxagent.cli.failures import Failure, document, exit_code, is_mentioned_in, sentence, stderr
from sandboxagent.protocol.envelope import META


def test_stop_reasons_have_exit_codes() -> None:
    reasons = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "brand_new", None)

    assert [exit_code(reason) for reason in reasons] == [0, 3, 3, 4, 130, 1, 1]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (RequestError(-32603, "agent x exited with code 3", {"type": "agent-exited"}), "agent x exited with code 3"),
        (RequestError(-32603, "Internal error", {"details": "no model"}), "no model"),
        (RequestError(-32603, "Internal error: no model"), "no model"),
        (RequestError(-32603, "Internal error"), "Internal error"),
        (
            RequestError(-32000, "Authentication required"),
            "Authentication required; see: sandbox-agent credentials check",
        ),
        (RequestError(-32000, "no credit left"), "no credit left"),
        (
            ServerProblem("unknown-agent", "Unknown Agent", 404, "no agent is called 'x'"),
            "Unknown Agent: no agent is called 'x'",
        ),
        (
            ServerProblem("unknown-agent", "Unknown Agent", 404, "it", {"agent": "mok", "known": ["mock", "codex"]}),
            "Unknown Agent: it; did you mean mock?",
        ),
        (
            ServerProblem("unauthorized", "Unauthorized", 401, "no token"),
            "Unauthorized: no token; on the command line: --token, --token-file or SANDBOX_AGENT_TOKEN",
        ),
        (ConnectionLost("no server answers"), "no server answers"),
        (ConnectionLost("the private server is gone\nlast words"), "the private server is gone"),
        (ClientError("which agent?"), "which agent?"),
        (StartFailed("the server ended", "sandbox-agent: --port is wrong\n"), "--port is wrong"),
        (StartFailed("the server ended", "Segmentation fault\n"), "the server ended"),
        (ValueError("1 error\nof ours"), "the agent's answer is invalid: 1 error of ours"),
    ],
)
def test_a_failure_is_one_sentence(failure: Failure, expected: str) -> None:
    assert sentence(failure) == expected
    assert document(failure)["message"] == expected


def test_what_an_agent_has_said_of_its_failure_is_known() -> None:
    failure = RequestError(-32603, "Internal error", {"details": "API Error:  401"})

    assert is_mentioned_in(failure, "I tried.\nAPI Error: 401 (see the docs)")
    assert not is_mentioned_in(failure, "I tried.")
    assert not is_mentioned_in(ConnectionLost("gone"), "gone")


def test_the_end_of_what_a_program_wrote_comes_with_it() -> None:
    told = {"head": ["first"], "tail": ["last"], "truncated": True, "totalLines": 100}

    assert stderr(RequestError(-32603, "agent x exited", {"stderr": told})) == "first\n…\nlast"
    assert stderr(ServerProblem("agent-boot-failed", "", 502, "", {"stderr": "boom"})) == "boom"
    assert stderr(StartFailed("the server ended", "Segmentation fault\n")) == "Segmentation fault\n"
    assert stderr(StartFailed("the server ended", "sandbox-agent: --port is wrong\n")) is None
    assert stderr(ConnectionLost("gone")) is None
    assert stderr(ConnectionLost("the private server is gone\nlast words")) == "last words"


def test_failure_document_has_type_and_data() -> None:
    crash = document(RequestError(-32603, "agent x exited", {"type": "agent-exited", "exitCode": 3}))
    problem = document(ServerProblem("unknown-agent", "Unknown Agent", 404, "", {"agent": "x"}))

    assert (crash["type"], crash["code"]) == ("agent-exited", -32603)
    assert (problem["type"], problem["data"]) == ("unknown-agent", {"agent": "x"})
    assert document(ConnectionLost("gone"))["type"] == "connection-lost"


def test_a_key_that_the_shell_has_and_the_server_lacks_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = RequestError(-32000, "Authentication required", {META: {"credentials": ["KEY_A", "KEY_B"]}})
    monkeypatch.delenv("KEY_A", raising=False)
    monkeypatch.setenv("KEY_B", "hush")

    told = sentence(failure)

    assert "your shell has KEY_B: pass it on with --env KEY_B, or run: sandbox-agent daemon restart" in told
    assert "hush" not in told
    monkeypatch.delenv("KEY_B")
    assert sentence(failure).endswith("see: sandbox-agent credentials check")
