"""`sandbox-agent demo`: sessions of the mock agent that are worth a look."""

from pathlib import Path

import pytest

from tests.cli.cli_call import CliCall
from tests.cli.place import Place
from tests.support.running import Server


@pytest.fixture
def calling(place: Place, server: Server) -> CliCall:
    return CliCall(place, server)


@pytest.mark.server_alone("the demo makes its project on the machine of the server")
def test_demo_leaves_sessions_that_wait_run_and_have_ended(calling: CliCall, tmp_path: Path) -> None:
    data = ["--data-dir", str(tmp_path)]

    first = calling.well("demo", "--print", *data)
    shown = {each["title"]: each["sessionId"] for each in sessions(calling, tmp_path)}
    calling.well("demo", "--print", *data)
    again = sessions(calling, tmp_path)

    assert first.out.startswith(f"{calling.server.url}/ui/#token=")
    assert sorted(state(each) for each in again) == ["idle", "idle", "running", "waiting", "waiting"]
    assert {each["title"] for each in again} == set(shown)
    assert not {each["sessionId"] for each in again} & set(shown.values())
    assert (tmp_path / "demo" / "CHANGES.md").read_text() == "# Changes\n\n- The greeting is friendlier.\n"
    assert "Hello, Ada." in (tmp_path / "demo" / "test_greeter.py").read_text()


def sessions(calling: CliCall, data: Path) -> list[dict[str, object]]:
    listed = calling.well("api", "GET", "/v1/sessions").json["sessions"]
    return [each for each in listed if each["cwd"] == str(data / "demo")]


def state(session: dict[str, object]) -> str:
    return "waiting" if session["pending"] else "running" if session["running"] else "idle"


def test_demo_at_a_server_on_another_machine_is_refused(place: Place) -> None:
    done = place.run("demo", "--print", SANDBOX_AGENT_ENDPOINT="http://192.0.2.1:2468")

    assert done.returncode == 2
    assert "unset SANDBOX_AGENT_ENDPOINT" in done.stderr
    assert not (place.data / "demo").exists()
