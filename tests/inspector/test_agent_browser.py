"""The browser that tests of the Inspector drive."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.pids import Pids

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from tests.inspector.agent_browser import AgentBrowser

with AgentBrowser() as browser:
    print(browser.pid, flush=True)
    sys.stdin.read()
"""


def test_tests_that_are_killed_leave_no_browser(needs_browser: None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as tests:
        assert tests.stdout is not None
        daemon = int(tests.stdout.readline())
        tasks = Path(f"/proc/{daemon}/task").glob("*/children")
        browser = [pid for task in tasks for pid in task.read_text().split()]
        assert browser
        os.killpg(tests.pid, signal.SIGKILL)
    Pids([daemon, *map(int, browser)]).gone()
