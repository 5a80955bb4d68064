"""`inspector/tests/agent-browser.e2e.sh URL`: the least that must work, as anyone can try it against any server."""

import os
import subprocess
from tempfile import TemporaryDirectory

from tests.browser.driving import ROOT
from tests.inspector.agent_browser import LONGEST, chromium, program
from tests.support.running import TOKEN, Server

SCRIPT = ROOT / "inspector" / "tests" / "agent-browser.e2e.sh"


def try_out(server: Server, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    # Not pytest's directory: the path of a socket must be short.
    with TemporaryDirectory(ignore_cleanup_errors=True) as home:
        own = {
            "HOME": home,
            "AGENT_BROWSER": str(program()),
            "AGENT_BROWSER_SOCKET_DIR": home,
            "AGENT_BROWSER_DEFAULT_TIMEOUT": "60000" if token == TOKEN else "3000",
            "DIRECTORY": server.work,
        }
        return subprocess.run(
            [SCRIPT, f"{server.url}/ui/#token={token}"],
            env={**os.environ, **chromium(), **own},
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )


def test_the_script_opens_spawns_sends_and_sees_the_answer(needs_browser: None, server: Server) -> None:
    done = try_out(server)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line][:3] == ["open", "spawn", "message"]
    assert "You said: hello" in done.stdout
    assert done.stdout.endswith("ok\n")


def test_the_script_fails_where_it_is_not_let_in(needs_browser: None, server: Server) -> None:
    assert try_out(server, "wrong").returncode != 0
