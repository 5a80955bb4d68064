"""`sandbox-agent credentials check`: which are found, by name, and an exit code to rely on. Never a value."""

from tests.cli.place import Place

SECRET = "sk-hush-hush"


def test_each_credential_is_a_row_and_says_whether_it_is_found(place: Place) -> None:
    (place.home / ".gemini").mkdir()
    (place.home / ".gemini" / "oauth_creds.json").write_text(SECRET)

    result = place.run("credentials", "check", ANTHROPIC_API_KEY=SECRET)

    table = [tuple(line.split()) for line in result.stdout.splitlines()]
    assert result.returncode == 0
    assert table[0] == ("agent", "name", "kind", "found")
    assert ("claude", "ANTHROPIC_API_KEY", "variable", "yes") in table
    assert ("claude", "ANTHROPIC_AUTH_TOKEN", "variable", "no") in table
    assert ("gemini", "~/.gemini/oauth_creds.json", "file", "yes") in table
    assert not any(row[0] == "mock" for row in table)


def test_no_value_is_ever_printed(place: Place) -> None:
    (place.config / "agents.toml").write_text(f"[agents.claude]\nenv = {{ ANTHROPIC_AUTH_TOKEN = '{SECRET}' }}\n")
    environ = {"ANTHROPIC_API_KEY": SECRET, "OPENAI_API_KEY": SECRET}

    for line in (["check"], ["check", "claude"], ["check", "--json"], ["check", "codex", "--json"]):
        result = place.run("credentials", *line, **environ)
        assert result.returncode == 0
        assert SECRET not in result.stdout + result.stderr


def test_what_agents_toml_sets_counts_as_found(place: Place) -> None:
    (place.config / "agents.toml").write_text(f"[agents.claude]\nenv = {{ ANTHROPIC_AUTH_TOKEN = '{SECRET}' }}\n")

    told = place.json("credentials", "check", "claude", "--json")

    found = [each["name"] for each in told["credentials"] if each["found"]]
    assert (found, told["missing"]) == (["ANTHROPIC_AUTH_TOKEN"], [])


def test_an_installed_agent_without_any_makes_it_exit_code_1(place: Place) -> None:
    (place.config / "agents.toml").write_text("[agents.claude]\ncommand = ['sh']\n")

    without = place.run("credentials", "check")
    told = place.json("credentials", "check", "--json", code=1)
    with_one = place.run("credentials", "check", CLAUDE_CODE_OAUTH_TOKEN=SECRET)

    assert without.returncode == 1
    assert without.stderr == (
        "sandbox-agent: agent claude has no credentials; try: sandbox-agent agents instructions claude\n"
    )
    assert told["missing"] == ["claude"]
    assert (with_one.returncode, with_one.stderr) == (0, "")


def test_an_agent_that_is_named_counts_whether_it_is_installed_or_not(place: Place) -> None:
    without = place.run("credentials", "check", "codex")

    assert without.returncode == 1
    assert {line.split()[0] for line in without.stdout.splitlines()} == {"agent", "codex"}
    assert place.run("credentials", "check", "codex", OPENAI_API_KEY=SECRET).returncode == 0


def test_an_agent_that_needs_none_is_fine(place: Place) -> None:
    result = place.run("credentials", "check", "mock")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "mock needs no credentials that sandbox-agent knows of\n"
    assert place.json("credentials", "check", "mock", "--json") == {"server": None, "credentials": [], "missing": []}


def test_an_unknown_agent_is_one_line(place: Place) -> None:
    result = place.run("credentials", "check", "nobody")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("sandbox-agent: no agent is called 'nobody'")


def test_help_tells_the_exit_code(place: Place) -> None:
    words = " ".join(place.run("credentials", "check", "--help").stdout.split())

    assert "The exit code is 0 if every installed agent has a credential or needs none, else 1." in words


def test_a_running_server_is_asked_what_it_sees(place: Place) -> None:
    assert place.run("daemon", "start", "--port", "0").returncode == 0
    try:
        asked = place.run("credentials", "check", "claude", ANTHROPIC_API_KEY=SECRET)
        told = place.json("credentials", "check", "claude", "--json", code=1)
    finally:
        place.run("daemon", "stop")

    assert asked.returncode == 1, "the server was started without it"
    assert "as the running server sees them: http://127.0.0.1:" in asked.stderr
    assert "your shell has ANTHROPIC_API_KEY, but the server does not; pass it on: sandbox-agent daemon restart" in (
        asked.stderr
    )
    assert told["server"].startswith("http://127.0.0.1:")
    assert SECRET not in asked.stdout + asked.stderr
