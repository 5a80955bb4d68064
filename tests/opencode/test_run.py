"""`opencode run --attach` on the bridge."""

import json
from pathlib import Path

from tests.opencode.host import Host
from tests.opencode.run import Run


def test_a_prompt_with_a_file_is_answered_by_the_model_that_was_chosen(run: Run, host: Host, tmp_path: Path) -> None:
    poem = tmp_path / "poem.txt"
    poem.write_text("roses are red")
    chosen = f"{host.can.provider}/{host.can.model_ids[1]}"

    done = run("--model", chosen, "--file", str(poem), "--", host.can.hello.prompt)

    assert done.returncode == 0, done.stderr
    assert f"· {host.can.model_ids[1]}" in done.stderr
    # OpenCode's own server answers before it has told of the text, and the program does not wait for it.
    assert host.is_opencode_itself or f'You said: "{host.can.hello.prompt}"' in done.stdout
    assert host.is_opencode_itself or "poem.txt" in done.stdout


def test_permissions_are_rejected_when_it_does_not_say_otherwise(run: Run, host: Host) -> None:
    done = run(host.can.permission.prompt)

    assert done.returncode == 0, done.stderr
    assert "permission requested" in done.stderr
    assert host.is_opencode_itself or host.can.rejected in done.stdout


def test_permissions_are_given_when_it_says_so_and_the_session_goes_on(run: Run, host: Host) -> None:
    done = run("--auto", "--continue", "--format", "json", host.can.permission.prompt)
    events = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, done.stderr
    tools = [event["part"]["state"]["status"] for event in events if event["type"] == "tool_use"]
    assert tools == ["completed"]
    with host.client as client:
        sessions = client.get("/session", params={"directory": host.directory}).json()
    assert len(sessions) == 2
