"""`opencode run --attach` on the bridge."""

import json
from pathlib import Path

from tests.opencode.host import Host
from tests.opencode.run import Run


def test_prompt_with_file_goes_to_the_chosen_model_and_permission_is_rejected(
    run: Run, host: Host, tmp_path: Path
) -> None:
    poem = tmp_path / "poem.txt"
    poem.write_text("roses are red")
    chosen = f"{host.can.provider}/{host.can.model_ids[1]}"

    done = run("--model", chosen, "--file", str(poem), "--", host.can.permission.prompt)

    assert done.returncode == 0, done.stderr
    assert f"· {host.can.model_ids[1]}" in done.stderr
    assert "permission requested" in done.stderr
    # OpenCode's own server answers before it has told of the text, and the program does not wait for it.
    assert host.is_opencode_itself or host.can.rejected in done.stdout
    with host.client as client:
        (session,) = client.get("/session", params={"directory": host.directory}).json()
        (asked, *_) = client.get(f"/session/{session['id']}/message").json()
    assert [part["filename"] for part in asked["parts"] if part["type"] == "file"] == [poem.name]


def test_permissions_are_given_when_it_says_so_and_the_session_goes_on(run: Run, host: Host) -> None:
    done = run("--auto", "--continue", "--format", "json", host.can.permission.prompt)
    events = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, done.stderr
    tools = [event["part"]["state"]["status"] for event in events if event["type"] == "tool_use"]
    assert tools == ["completed"]
    with host.client as client:
        sessions = client.get("/session", params={"directory": host.directory}).json()
    assert len(sessions) == 1
