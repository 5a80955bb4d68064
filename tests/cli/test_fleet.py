"""`sandbox-agent fleet`: a whole fleet with one command, and the keys of a lasting one."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sandboxagent import RequestError
from sandboxagent.cli.commands.server import GATEWAY_FLAGS
from sandboxagent.cli.fleet.local import PORTS, LocalFleet, find_places
from sandboxagent.cli.main import main
from sandboxagent.client.sync import SandboxAgent
from sandboxagent.core.settings import OPTIONS
from sandboxagent.fleet.gateway import main as gateway_run
from tests.support.client import NO_CERTIFICATES
from tests.support.fork_server import fork_server
from tests.support.nats import PROGRAM
from tests.support.running import BOUND, eventually


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")
def test_up_runs_a_fleet_that_can_be_tried_loses_a_part_and_ends_whole(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet", "up", "--servers", "1", "--gateways", "1", "--nodes", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", "sandboxagent", *words], text=True, **pipes)
    assert process.stdout is not None
    assert process.stderr is not None
    said = ""
    try:
        while "Press Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        token = re.findall(r"token: +(\S+)", said)[0]
        [gateway], [node] = re.findall(r"gateway: +(\S+)", said), re.findall(r"node-1: +(\S+)", said)
        headers = {"Authorization": f"Bearer {token}"}
        prompt, status = re.findall(r"^ .*\bsandbox-agent .*$", said, re.M)
        here = {**os.environ, "PATH": f"{fork_server().programs}:{os.environ['PATH']}"}
        for words in (prompt, status):
            done = subprocess.run(
                words, shell=True, check=True, capture_output=True, timeout=BOUND, env=here, text=True
            )
            assert ("You said: hello" if words == prompt else "node-1  there") in done.stdout
        sessions = httpx.get(f"{gateway}/v1/sessions", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES).json()[
            "sessions"
        ]
        assert [each["title"] for each in sessions] == ["hello"]
        assert main(["sessions", "list", "--endpoint", gateway, "--token", token]) == 0
        assert re.search(rf"^id +agent .* node *\n\S+ +mock .* {sessions[0]['node']} *$", capsys.readouterr().out, re.M)
        [link] = re.findall(r"open (\S+) in a browser", said)
        assert link == f"{gateway}/ui/#token={token}"
        [kill] = re.findall(r"kill -9 (\d+)", said)
        os.kill(int(kill), signal.SIGKILL)
        assert "starting NATS servers (1)" in process.stderr.readline()
        assert "node-2 has ended; the rest goes on" in process.stderr.readline()
        assert " server " in process.stderr.readline()
        assert (
            httpx.get(f"{gateway}/v1/health", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES).status_code == 200
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(BOUND)
        process.stdout.close()
        process.stderr.close()
    assert process.returncode == 0
    for url in (gateway, node):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/v1/health", timeout=BOUND, verify=NO_CERTIFICATES)


def test_no_outgoing_connection_gets_a_port_that_a_nats_server_is_about_to_take() -> None:
    ports = [port for place in find_places(20) for port in (place.port, place.route)]
    assert len(set(ports)) == 40
    assert set(ports) < set(PORTS)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest < PORTS.stop:
        pytest.skip(f"this machine gives ports from {lowest} on to outgoing connections")
    assert max(ports) < lowest


def test_a_gateway_has_a_flag_for_every_setting_that_it_reads() -> None:
    read = set(re.findall(r"\bsettings\.(\w+)", inspect.getsource(gateway_run)))
    assert read & {option.name for option in OPTIONS} <= GATEWAY_FLAGS


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
        (["fleet", "forget", "box-1"], "box-1 has not been invited; invited are: none"),
        (["fleet", "status", "--join", "http://localhost:4222"], "--join: expected an address such as nats://"),
        (["fleet", "status", "--dir", "elsewhere", "--join", "nats://localhost"], "elsewhere/gateway.nk is not there"),
        (["fleet", "init"], "has a fleet already"),
        (["fleet", "invite", "--dir", "elsewhere", "box-1"], "not a fleet's directory"),
        (["gateway"], "--join"),
    ):
        assert main(words) == 2
        assert complaint in capsys.readouterr().err


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")
def test_a_fleet_that_runs_is_looked_at_and_its_nodes_are_drained_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.start(1, 1, 2)
    try:
        port = re.findall(r'"port": (\d+)', (tmp_path / "fleet" / "nats-1" / "server.conf").read_text())[0]
        reach = ["--dir", str(tmp_path / "fleet"), "--join", f"nats://127.0.0.1:{port}"]
        headers = {"Authorization": f"Bearer {fleet.token}"}

        def status() -> dict[str, dict[str, object]]:
            capsys.readouterr()
            assert main(["fleet", "status", "--json", *reach]) == 0
            return {each["node"]: each for each in json.loads(capsys.readouterr().out)["nodes"]}

        def sessions() -> list[str]:
            listed = httpx.get(
                f"{fleet.gateways[0]}/v1/sessions", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES
            ).json()["sessions"]
            return [each["node"] for each in listed]

        def states() -> dict[str, object]:
            return {name: each["state"] for name, each in status().items()}

        words = ["run", "--endpoint", fleet.nodes["node-1"], "--token", fleet.token, "mock", "hello"]
        assert main(words) == 0
        eventually(lambda: sessions() == ["node-1"])
        eventually(lambda: states() == {"node-1": "there", "node-2": "there"})
        assert status()["node-1"]["sessions"] == 1
        assert main(["fleet", "status", *reach]) == 0
        assert re.search(r"^EV +nats-1 +1 +- ", capsys.readouterr().out, re.M)

        def draining() -> list[str]:
            nodes = httpx.get(
                f"{fleet.gateways[0]}/v1/nodes", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES
            ).json()["nodes"]
            return [each["node"] for each in nodes if each["draining"]]

        for words in (["drain"], ["drain", "--undo"], ["forget"]):
            assert main(["fleet", *words, "node-3", *reach]) == 2
            assert "no node of this fleet is called node-3; there are: node-1, node-2" in capsys.readouterr().err
        assert main(["fleet", "drain", "node-2", *reach]) == 0
        assert "node-2 drains" in capsys.readouterr().out
        assert states()["node-2"] == "draining"
        eventually(lambda: draining() == ["node-2"])
        assert main(["fleet", "drain", "--undo", "node-2", *reach]) == 0
        eventually(lambda: draining() == [])

        def described(node: str) -> list[object]:
            [found] = [
                each
                for each in httpx.get(
                    f"{fleet.gateways[0]}/v1/nodes", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES
                ).json()["nodes"]
                if each["node"] == node
            ]
            return [found["labels"], found["agents"], found["pinned"]]

        own = described("node-2")
        words = ["--label", "zone=eu", "--agent", "mock", "--agent", "other"]
        assert main(["fleet", "pin", "node-2", *words, *reach]) == 0
        assert re.search(r"^labels +zone=eu$", capsys.readouterr().out, re.M)
        eventually(lambda: described("node-2") == [{"zone": "eu"}, ["mock"], True])
        assert [status()["node-2"][name] for name in ("labels", "agents", "pinned")] == [{"zone": "eu"}, ["mock"], True]
        assert main(["fleet", "status", *reach]) == 0
        assert re.search(r"^node-2 +there .* zone=eu +mock +yes$", capsys.readouterr().out, re.M)
        assert main(["fleet", "pin", "node-2", *reach]) == 2
        assert "--undo" in capsys.readouterr().err
        assert main(["fleet", "pin", "--undo", "node-2", *reach]) == 0
        eventually(lambda: described("node-2") == own)

        def open_named(node: str) -> str:
            with SandboxAgent.connect(fleet.gateways[0], fleet.token) as client:
                return client.sessions.create("mock", cwd=tmp_path, session_id="by name", node=node).id

        open_named("node-1")
        with pytest.raises(RequestError, match="taken"):
            open_named("node-2")
        assert main(["fleet", "forget", "node-1", *reach]) == 0
        assert "sessions off the list  2" in capsys.readouterr().out
        assert "node-1" not in (tmp_path / "fleet" / "authorization.conf").read_text()
        eventually(lambda: sessions() == [])
        # The servers have not read their configuration again: its credential still works, and gateways refuse it.
        node = fleet.nodes["node-1"]
        eventually(
            lambda: (
                "was removed"
                in httpx.get(f"{node}/v1/health", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES)
                .json()
                .get("detail", "")
            )
        )
        assert states() == {"node-1": "forgotten", "node-2": "there"}
        # Another session may have the name now.
        named = open_named("node-2")
        found = httpx.get(
            f"{fleet.gateways[0]}/v1/sessions/by%20name", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES
        ).json()
        assert (found["sessionId"], found["node"]) == (named, "node-2")
        assert main(["fleet", "status"]) == 2
        assert "--join" in capsys.readouterr().err
    finally:
        fleet.stop()
