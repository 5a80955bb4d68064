"""`sandbox-agent permissions`: whether rules are in order, and what they would say."""

import pytest

from tests.cli.place import Place

RULES = """
[[rules]]
name = "no pushing"
command = "git push"
action = "reject"
reason = "People push."

[[rules]]
command = "git status"
action = "allow"

[[rules]]
agent = "claude"
path = "src/**"
action = "allow"

[[rules]]
tool = "Fetch"
matches = { url = "https://example.com/*" }
action = "allow"
"""


@pytest.fixture
def ruled(place: Place) -> Place:
    (place.config / "permissions.toml").write_text(RULES)
    return place


@pytest.mark.requirement("7.rules-tested")
def test_a_test_says_which_rule_decides_and_why(ruled: Place) -> None:
    result = ruled.run("permissions", "test", "--tool", "Bash", "--command", "git status; git push --force")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "action  reject",
        "rule    1 (no pushing)",
        "why     rule 1 of the server (no pushing) is about `git push --force`",
        "reason  People push.",
        "parts   allow: rule 2 of the server is about `git status`",
        "        reject: rule 1 of the server (no pushing) is about `git push --force`",
    ]


@pytest.mark.requirement("7.rules-tested")
@pytest.mark.parametrize(
    ("arguments", "action", "rule"),
    [
        (["--command", "git status"], "allow", 2),
        (["--command", "git status > f"], "ask", None),
        (["--agent", "claude", "--kind", "edit", "--path", "src/a", "--path", "src/b"], "allow", 3),
        (["--agent", "claude", "--kind", "edit", "--path", "/srv/src/a", "--cwd", "/srv"], "allow", 3),
        (["--agent", "claude", "--kind", "edit", "--path", "src/a", "--path", "b"], "ask", None),
        (["--kind", "edit", "--path", "src/a"], "ask", None),
        (["--tool", "Fetch", "--kind", "fetch", "--input", '{"url": "https://example.com/a"}'], "allow", 4),
        ([], "ask", None),
    ],
)
def test_all_that_an_agent_could_tell_can_be_told(
    ruled: Place, arguments: list[str], action: str, rule: int | None
) -> None:
    told = ruled.json("permissions", "test", *arguments, "--json")

    assert (told["action"], told["rule"] and told["rule"]["number"]) == (action, rule)
    assert told["why"]


@pytest.mark.requirement("7.rules-tested")
def test_a_check_counts_rules_or_names_the_mistake(ruled: Place) -> None:
    fine = ruled.run("permissions", "check")
    other = ruled.directory / "other.toml"
    other.write_text("[[rules]]\ntool = '*'\naction = 'alow'\n")
    wrong = ruled.run("permissions", "check", "--permissions-file", str(other))
    tested = ruled.run("permissions", "test", "--permissions-file", str(other))

    assert (fine.returncode, fine.stdout) == (0, f"{ruled.config / 'permissions.toml'}: 4 rules, in order\n")
    for result in (wrong, tested):
        assert (result.returncode, result.stdout) == (2, "")
        assert f"{other}, line 3, rule 1: action" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_without_a_file_there_are_no_rules(place: Place) -> None:
    result = place.run("permissions", "check")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{place.config / 'permissions.toml'} does not exist: there are no rules\n"


def test_a_file_that_was_named_must_be_there(place: Place) -> None:
    result = place.run("permissions", "check", "--permissions-file", "/nonexistent/rules.toml")

    assert result.returncode == 2
    assert "/nonexistent/rules.toml" in result.stderr


def test_input_that_is_no_object_is_named(place: Place) -> None:
    result = place.run("permissions", "test", "--input", "[1]")

    assert result.returncode == 2
    assert "--input" in result.stderr


def test_a_command_that_is_not_told_is_said_to_be_so(ruled: Place) -> None:
    assert "an unknown command" in ruled.json("permissions", "test", "--json")["why"]


def test_the_rules_to_start_with_are_printed_and_in_order(place: Place) -> None:
    printed = place.run("permissions", "starter")
    file = place.directory / "starter.toml"
    file.write_text(printed.stdout)
    checked = place.run("permissions", "check", "--permissions-file", str(file))
    assert (printed.returncode, checked.returncode) == (0, 0)
    assert "9 rules, in order" in checked.stdout


def test_a_test_and_a_check_point_at_a_star_that_allows_no_further_words(place: Place) -> None:
    (place.config / "permissions.toml").write_text('[[rules]]\ncommand = "git status*"\naction = "allow"\n')

    tested = place.json("permissions", "test", "--command", "git status --short", "--json")
    shown = place.run("permissions", "test", "--command", "git status --short").stdout
    checked = place.run("permissions", "check")

    assert tested["action"] == "ask"
    assert [(each["rule"], each["part"]) for each in tested["nearest"]] == [(1, "git status --short")]
    assert "`git status *`" in tested["nearest"][0]["why"]
    assert "nearest  rule 1: the star in `git status*`" in shown
    assert checked.stdout.splitlines()[1:] == [
        "note: rule 1: `git status*` allows no further words; write `git status *` to allow them"
    ]


def test_a_test_of_an_allowed_command_shows_no_nearest_rule(place: Place) -> None:
    (place.config / "permissions.toml").write_text('[[rules]]\ncommand = "git status*"\naction = "allow"\n')

    assert place.json("permissions", "test", "--command", "git status", "--json")["nearest"] == []
