"""`sandbox-agent fleet`: a whole fleet with one command, and the keys of a lasting one."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sandbox_agent.cli.fleet.local import LocalFleet
from sandbox_agent.cli.main import main
from tests.support.nats import PROGRAM
from tests.support.running import BOUND


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")
def test_up_runs_a_fleet_that_can_be_tried_and_ends_whole() -> None:
    words = ["fleet", "up", "--servers", "1", "--gateways", "1", "--nodes", "1"]
    process = subprocess.Popen([sys.executable, "-m", "sandbox_agent", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    try:
        while "Press Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        token = re.findall(r"token: +(\S+)", said)[0]
        [gateway], [node] = re.findall(r"gateway: +(\S+)", said), re.findall(r"node-1: +(\S+)", said)
        headers = {"Authorization": f"Bearer {token}"}
        run = [sys.executable, "-m", "sandbox_agent", "run", "--endpoint", node, "--token", token, "mock", "hello"]
        subprocess.run(run, check=True, capture_output=True, timeout=BOUND)
        deadline = time.monotonic() + BOUND
        sessions: list[dict[str, object]] = []
        while not sessions and time.monotonic() < deadline:
            sessions = httpx.get(f"{gateway}/v1/sessions", headers=headers).json()["sessions"]
            time.sleep(0.05)
        assert [(each["node"], each["title"]) for each in sessions] == [("node-1", "hello")]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(BOUND)
        process.stdout.close()
    assert process.returncode == 0
    for url in (gateway, node):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/v1/health")


def test_a_fleets_token_can_be_pasted_after_its_flag(tmp_path: Path) -> None:
    assert not any(LocalFleet(tmp_path).token.startswith("-") for _ in range(500))


def test_a_fleets_keys_are_made_given_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", "init"]) == 0
    assert main(["fleet", "invite", "box-1"]) == 0
    assert "fleet/nodes/box-1.nk" in capsys.readouterr().out
    written = (tmp_path / "fleet" / "authorization.conf").read_text()
    rights = json.loads(written.removeprefix("authorization: "))
    assert [user.get("permissions") for user in rights["users"]] == [
        None,
        {"publish": {"allow": ["up.box-1.>"]}, "subscribe": {"allow": ["dn.box-1.>", "all.>"]}},
    ]
    assert main(["fleet", "forget", "box-1"]) == 0
    assert "box-1" not in (tmp_path / "fleet" / "authorization.conf").read_text()
    for words, complaint in (
        (["fleet", "invite", "*"], "no name for a node"),
        (["fleet", "forget", "box-1"], "has not been invited"),
        (["fleet", "init"], "has a fleet already"),
        (["fleet", "invite", "--dir", "elsewhere", "box-1"], "not a fleet's directory"),
        (["gateway"], "--join"),
    ):
        assert main(words) == 2
        assert complaint in capsys.readouterr().err
