"""docs/deployment.md: what it shows is tried as far as this machine can.

There is no Docker daemon, no cluster and no Caddy here: of images, manifests and Caddy's file only the form is looked
at, and that the commands in them are ones that the program understands.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from sandboxagent.server.agents.manifest import load_manifest
from tests.docs.pages import DOCS, ROOT
from tests.docs.snippets import blocks_of
from tests.docs.stage import has
from tests.support.client import Client, run
from tests.support.dockerfile import instructions
from tests.support.running import BOUND, TOKEN, Server, eventually

PAGE = DOCS / "deployment.md"
PROGRAM = Path(sys.executable).with_name("sandbox-agent")
INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"}


def block(language: str) -> str:
    """The page's one block in a language."""
    (found,) = blocks_of(PAGE, language)
    return found.code


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def image() -> list[tuple[str, str]]:
    return instructions(block("dockerfile"))


def test_the_image_of_the_page_is_the_one_that_a_release_has() -> None:
    assert block("dockerfile") == (ROOT / "deploy" / "Dockerfile").read_text()


def test_image_has_only_known_instructions(image: list[tuple[str, str]]) -> None:
    assert {name for name, _ in image} <= INSTRUCTIONS
    assert image[0][0] == "FROM"
    assert image[-1][0] == "CMD"


def test_what_the_image_runs_is_not_root(image: list[tuple[str, str]]) -> None:
    names = [name for name, _ in image]

    assert ("USER", "agent") in image
    assert names.index("USER") < names.index("CMD")


@pytest.mark.parametrize("name", ["CMD", "HEALTHCHECK"])
def test_what_the_image_starts_is_a_list_of_words(image: list[tuple[str, str]], name: str) -> None:
    arguments = dict(image)[name].rpartition("CMD ")[2]

    assert all(isinstance(word, str) for word in yaml.safe_load(arguments))


def test_the_health_check_of_the_image_tells_a_server_that_is_well_from_none(image: list[tuple[str, str]]) -> None:
    _, _, program = yaml.safe_load(dict(image)["HEALTHCHECK"].rpartition("CMD ")[2])

    def check(server: Server) -> int:
        command = [sys.executable, "-c", program.replace("http://127.0.0.1:2468", server.url)]
        return subprocess.run(command, capture_output=True, timeout=120).returncode

    with Server("--public-health") as server:
        assert check(server) == 0
    assert check(server) != 0


def test_the_variables_of_the_image_are_settings(image: list[tuple[str, str]], tmp_path: Path) -> None:
    words = [word for name, text in image if name == "ENV" for word in shlex.split(text)]
    names = {word.partition("=")[0] for word in words}
    known = set(re.findall(r"`(SANDBOX_AGENT_\w+)`", (DOCS / "reference" / "configuration.md").read_text()))

    assert names
    assert names <= known


def test_compose_and_kubernetes_mount_what_the_image_expects(image: list[tuple[str, str]]) -> None:
    compose, manifests = (list(yaml.safe_load_all(each.code)) for each in blocks_of(PAGE, "yaml"))
    service = compose[0]["services"]["box"]
    container = manifests[0]["spec"]["template"]["spec"]["containers"][0]
    variables = dict(word.split("=") for name, text in image if name == "ENV" for word in shlex.split(text))

    assert service["secrets"] == list(compose[0]["secrets"]) == ["token"], "a secret is /run/secrets/<name>"
    assert variables["SANDBOX_AGENT_TOKEN_FILE"] == "/run/secrets/token"
    assert variables["SANDBOX_AGENT_DATA_DIR"] in {mount.partition(":")[2] for mount in service["volumes"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/run/secrets"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/health"
    assert "--public-health" in container["args"]


# --- process 1 --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not has("unshare"), reason="no unshare on this machine")
def test_the_server_can_be_process_1(tmp_path: Path) -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=120).returncode != 0:
        pytest.skip("this machine does not let us make a namespace")
    arguments = ["server", "--port", "0", "--token", TOKEN, "--data-dir", str(tmp_path), "--config-dir", str(tmp_path)]
    with subprocess.Popen([*inside, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert (
            httpx.get(f"{url}/v1/health", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=BOUND).status_code
            == 200
        )
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert "NSpid" in (status := Path(f"/proc/{child}/status").read_text())
        assert re.search(r"^NSpid:\s+\d+\s+1$", status, re.MULTILINE)
        subprocess.run(["kill", f"-{signal.SIGTERM}", str(child)], check=True, timeout=120)
        assert process.wait(BOUND) == 0


# --- systemd ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not has("systemd-analyze"), reason="no systemd on this machine")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "sandbox-agent.service"
    unit.write_text(block("ini").replace("/opt/sandbox-agent/bin/sandbox-agent", str(PROGRAM)))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=BOUND
    )

    assert [line for line in done.stderr.splitlines() if "sandbox-agent" in line] == []


# --- nginx ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not has("nginx"), reason="no nginx on this machine")
def test_nginx_passes_events_and_uploads_on_as_they_come(tmp_path: Path) -> None:
    with Server("--allow-host", "box.example", "--fs-root", str(tmp_path)) as server, nginx(server, tmp_path) as url:
        through = Server(directory=server.directory)
        through.url = url
        run(_talk(through, tmp_path))


async def _talk(server: Server, directory: Path) -> None:
    client = Client(server)
    client.http.headers["Host"] = "box.example"
    await client.initialize()
    async with client.stream() as stream:
        session = await client.new_session()
        # The agent says one word and waits: that one must be here before anything else is said.
        turn = asyncio.create_task(client.prompt(session, [["say", "one"], ["wait_cancel"]]))
        await stream.until(lambda event: event.text == "one")
        await client.notify("session/cancel", {"sessionId": session})
        assert (await turn)["result"]["stopReason"] == "cancelled"
    large = b"x" * (3 << 20)
    written = await client.http.put("/v1/fs/file", params={"path": str(directory / "large")}, content=large)
    assert written.json()["bytesWritten"] == len(large)
    await client.http.aclose()


@contextmanager
def nginx(server: Server, directory: Path) -> Generator[str]:
    """The page's server block, without TLS, on a port of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = block("nginx").replace("http://127.0.0.1:2468", server.url).replace("443 ssl http2", f"127.0.0.1:{port}")
    own = re.sub(r"^ *ssl_.*\n", "", own, flags=re.MULTILINE)
    places = "".join(
        f"{name}_temp_path {directory};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    config.write_text(
        f"daemon off;\npid {directory}/pid;\nerror_log {directory}/error.log;\nworker_processes 1;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{places}{own}}}\n"
    )
    program = shutil.which("nginx")
    assert program is not None
    # The user nobody, as whom nginx would run, cannot reach a test's directory.
    command = [program, "-c", str(config), "-g", "user root;"] if os.getuid() == 0 else [program, "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _listens(port), "nginx")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# --- operating it -----------------------------------------------------------------------------------------------------


def test_every_flag_that_the_page_names_is_one_that_there_is() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(--[a-z][a-z-]*)", prose))
    known = set(re.findall(r"--[a-z][a-z-]*", (DOCS / "reference" / "cli.md").read_text()))

    assert len(named) > 15
    assert sorted(named - known - {"--enable-optimizations"}) == []


def test_a_server_tells_what_the_page_says_can_be_monitored() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        Server("--log-format", "json") as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=BOUND) as http,
    ):
        run(_one_session(server))
        health = http.get("/v1/health").json()
        (agent,) = [each for each in http.get("/v1/agents").json()["agents"] if each["id"] == "mock"]
        (session,) = http.get("/v1/sessions").json()["sessions"]
        stderr = http.get("/v1/agents/mock/stderr")
        reports = [json.loads(line) for line in server.stderr.splitlines() if line.startswith("{")]

    assert health["status"] == "ok"
    assert {"agent": "mock", "installed": True, "running": True} in health["agents"]
    assert agent["serverStatus"]["restartCount"] == 0
    assert (session["running"], session["pending"]) == (False, 0)
    assert {"tokens", "cost"} <= set(session["activity"])
    assert stderr.status_code == 200
    assert {"debug", "info", "warning", "error"} >= {report["level"] for report in reports} != set()


async def _one_session(server: Server) -> None:
    async with Client(server, "mock") as client:
        await client.result("session/new", {"cwd": "/", "mcpServers": []})


def test_the_page_gives_the_isolation_of_each_known_agent() -> None:
    reasons = re.findall(r"^- \*\*(`.*`): `(agent|session)`\.\*\*", PAGE.read_text(), re.MULTILINE)
    told = {agent: isolation for agents, isolation in reasons for agent in re.findall(r"`([a-z]+)`", agents)}

    assert told == {agent.id: agent.isolation for agent in load_manifest(None).agents}
