"""The Starlette application that keeps agents' requests as buttons in SQLite."""

import html
import re
import time
from collections.abc import Callable

from tests.examples.browsing import Relay
from tests.examples.staging import Stage
from tests.support.running import BOUND, Server


class Approvals(Relay):
    """`approvals.py` as it is started by hand."""

    program = "approvals.py"

    def reads(self, path: str, found: Callable[[str], bool]) -> str:
        """A page, once it has what is looked for. The page is read again and again, as a browser does."""
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            text = html.unescape(self.http.get(path).text)
            if found(text):
                return text
        raise AssertionError(text)

    def press(self, id: str, option: str, session: str) -> tuple[int, str]:
        response = self.http.post(f"/requests/{id}", data={"option": option, "session": session})
        return response.status_code, html.unescape(response.text)


def test_a_button_works_once_also_after_the_application_was_started_again(stage: Stage) -> None:
    with Server() as server:
        places = {"SANDBOX_AGENT_URL": server.url, "SANDBOX_AGENT_TOKEN": server.token or ""}
        with Approvals(stage, "mock", **places) as before:
            started = before.http.post("/sessions", data={"prompt": "permission <b>"})
            session = started.headers["location"].removeprefix("/sessions/")
            shown = before.reads("/", lambda text: "/requests/" in text)
            [id] = re.findall(r"/requests/(rq_[^\"]+)", shown)
            assert before.press(id, "allow_once", "no-such-session")[0] == 404
        with Approvals(stage, "mock", **places) as after:
            assert id in after.http.get("/").text
            waiting = after.http.get(f"/sessions/{session}").text
            assert "waits for you" in waiting
            assert "permission &lt;b&gt;" in waiting
            assert after.press("rq_of.another.1", "allow_once", session)[0] == 404
            assert after.press(id, "allow_once", session)[0] == 303
            status, said = after.press(id, "reject_once", session)
            assert (status, "It was answered: allow_once by client" in said) == (409, True)
            assert "Nothing waits for you" in after.http.get("/").text
            after.reads(f"/sessions/{session}", lambda text: "idle" in text and "answered allow_once" in text)
        assert "Traceback" not in before.stderr + after.stderr
