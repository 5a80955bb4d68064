"""Commands that are gone say what took their place, and that is there."""

import pytest

from sandboxagent.cli.main import COMMANDS, main
from sandboxagent.cli.parser import REMOVED, CommandGroup, find_successor


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("api sessions list", "api sessions list is gone; use: sandbox-agent sessions list"),
        ("api sessions create mine --agent claude", "api sessions create mine is gone; use: sandbox-agent run AGENT"),
        ("api sessions", "api sessions is gone; use: sandbox-agent sessions"),
        ("api agents modes claude", "api agents modes claude is gone; use: sandbox-agent agents show AGENT --models"),
        ("opencode --yolo", "opencode is gone; use: opencode attach "),
        ("install-agent claude", "install-agent claude is gone; use: sandbox-agent agents install AGENT"),
        ("credentials extract --reveal", "credentials extract is gone; use: sandbox-agent credentials check, "),
    ],
)
def test_a_command_that_is_gone_says_what_took_its_place(
    line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())

    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert told.err.startswith(f"sandbox-agent: {complaint}")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("successor", sorted(set(REMOVED.values())))
def test_successor_of_a_removed_command_is_a_command(successor: str) -> None:
    for sentence in successor.split("sandbox-agent ")[1:]:
        found = COMMANDS
        for word in sentence.replace(",", " ").split():
            if not isinstance(found, CommandGroup) or word not in found.words:
                break
            found = found.words[word].load()
        assert found is not COMMANDS, sentence


@pytest.mark.parametrize("words", [[], ["dance"], ["api"], ["api", "v1"], ["credentials"]])
def test_what_never_was_has_no_successor(words: list[str]) -> None:
    assert find_successor(words) is None
