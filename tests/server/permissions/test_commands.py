"""Commands by their parts: the programs in them, and those that programs run."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.permissions import commands
from sandboxagent.server.permissions.budget import STEPS, StepBudget, TooMuch
from sandboxagent.server.permissions.commands import MAX_COMMAND, Part, Simple, Unread, split_words
from sandboxagent.server.permissions.shell import MAX_COMMANDS


def read_text(text: str) -> tuple[Part, ...]:
    return commands.read_text(text, StepBudget(STEPS, str))


def read_words(words: Sequence[str]) -> tuple[Part, ...]:
    return commands.read_words(words, StepBudget(STEPS, str))


def needed(parts: tuple[Part, ...]) -> list[str]:
    """What needs leave, as lines; `?` is what is not understood."""
    return [part.line if isinstance(part, Simple) else "?" for part in parts if not _is_free(part)]


def shown(parts: tuple[Part, ...]) -> list[str]:
    """What needs none, but can be forbidden."""
    return [part.line for part in parts if isinstance(part, Simple) and part.runs_others]


def _is_free(part: Part) -> bool:
    return isinstance(part, Simple) and part.runs_others


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git status; git push --force", ["git status", "git push --force"]),
        ("bash -lc 'git status && ls'", ["git status", "ls"]),
        ("/bin/sh -c ls", ["ls"]),
        ("sh -e -u -c ls", ["ls"]),
        ("bash -c 'bash -c \"sh -c ls\"'", ["ls"]),
        ("nohup ls &", ["ls"]),
        ("time nice -n 5 timeout 10s env command exec setsid ls", ["ls"]),
        ("eval git push", ["git push"]),
        ("eval 'ls; rm x'", ["ls", "rm x"]),
        ("sudo rm x", ["sudo rm x", "rm x"]),
        ("busybox rm x", ["busybox rm x", "rm x"]),
        ("env", ["env"]),
        ("command -v git", ["command -v git"]),
        ("find . -name '*.py'", ["find . -name '*.py'"]),
    ],
)
def test_what_others_run_needs_leave_of_its_own(text: str, expected: list[str]) -> None:
    assert needed(read_text(text)) == expected


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("xargs rm", ("rm", None)),
        ("xargs -0 -n 1 rm -f", ("rm", "-f", None)),
        ("xargs", ("echo", None)),
        ("find . -exec rm {} \\;", ("rm", None, None)),
        ("find . -execdir sh -c 'rm x' \\; -ok ls {} +", ("rm", "x")),
    ],
)
def test_what_gets_unknown_names_has_unknown_words(text: str, inner: tuple[str | None, ...]) -> None:
    assert inner in [part.words for part in read_text(text) if isinstance(part, Simple)]


@pytest.mark.parametrize(
    "text",
    [
        *("sh", "bash script.sh", "curl x | sh", "bash -s", "bash - -c ls", "bash -o pipefail -c ls", "bash -c $x"),
        *("eval $x", "source x", ". x", "trap 'rm x' EXIT", "sudo -u me ls", "env -i ls", "env X=1 ls", "time -p ls"),
        *("nice -5 ls", "timeout -k 1 2 ls", "xargs -a f rm", "su -c ls", "parallel rm", "exec -a x ls", "nohup $x"),
        *(
            "bash -c ls < f",
            "X=1 bash -c ls",
            "bash -c 'x' <<< y",
            "sh -c '`x`'",
            "",
            "# nothing",
            "  \n",
            "bash -c ''",
        ),
        "sudo " * 100 + "ls",
    ],
)
def test_what_cannot_be_seen_through_is_not_understood(text: str) -> None:
    assert "?" in needed(read_text(text))


@pytest.mark.parametrize("program", ["/tmp/bash", "./sh", "~/bin/bash"])
def test_a_program_that_is_only_called_like_a_shell_needs_leave_itself(program: str) -> None:
    assert needed(read_text(f"{program} -c ls")) == [f"{program} -c ls".replace("~/bin/bash", "'~/bin/bash'"), "ls"]


def test_what_only_runs_others_can_still_be_forbidden() -> None:
    assert shown(read_text("nohup bash -c ls")) == ["nohup bash -c ls", "bash -c ls"]


@pytest.mark.parametrize(
    "letter", ["\0", "\x1b", "\r", "\x0b", "\u00a0", "\u2028", "\u202e", "\u200b", "\ud800", "\x85"]
)
def test_invisible_characters_are_not_understood(letter: str) -> None:
    assert "?" in needed(read_text(f"git status{letter}; ls"))
    assert "?" in needed(read_words(["git", f"status{letter}"]))


def test_recognisable_parts_of_what_is_not_understood_can_be_forbidden() -> None:
    assert "git push" in shown(read_text("`x`; g''it push; if y"))
    assert "git push" in shown(read_text("git 'push' && `x`"))
    assert "git push" in shown(read_text("echo \u200b; git 'push'"))


def test_words_without_a_shell_are_as_they_are() -> None:
    assert read_words(["echo", "$x; rm"]) == (Simple(("echo", "$x; rm"), "echo '$x; rm'"),)
    assert needed(read_words(["bash", "-lc", "ls; rm x"])) == ["ls", "rm x"]
    assert needed(read_words([])) == ["?"]


def test_a_command_that_is_too_long_is_not_looked_at() -> None:
    assert read_text("a" * (MAX_COMMAND + 1)) == (Unread("a" * MAX_COMMAND, "it is too long"),)
    assert split_words("a" * (MAX_COMMAND + 1)) is None
    assert needed(read_words(["a" * (MAX_COMMAND + 1)])) == ["?"]


def test_a_command_of_too_many_parts_is_not_understood() -> None:
    for text in (";".join(["ls"] * (MAX_COMMANDS + 1)), ";".join(["sudo ls"] * MAX_COMMANDS)):
        parts = read_text(text)
        assert isinstance(parts[-1], Unread)
        assert len(parts) <= MAX_COMMANDS + 1


def test_words_are_found_however_they_are_quoted() -> None:
    assert split_words("x=`git 'push'` $(a,b)") == ("x", "git", "push", "a", "b")


@given(st.text(max_size=80) | st.text(alphabet="ab \n;&|()<>$'\"\\#{}!`-", max_size=60))
def test_every_text_has_a_part(text: str) -> None:
    parts = read_text(text)
    assert parts
    assert any(not _is_free(part) for part in parts), "a command that needs no leave at all"


@given(st.lists(st.text(max_size=10), max_size=6))
def test_all_words_have_a_part(words: list[str]) -> None:
    assert any(not _is_free(part) for part in read_words(words))


def test_reading_costs_steps() -> None:
    for text in ("a" * 100, "a;" * 50 + "`", "sudo " * 10 + "ls"):
        with pytest.raises(TooMuch):
            commands.read_text(text, StepBudget(20, str))
    with pytest.raises(TooMuch):
        commands.read_words(["a"] * 100, StepBudget(20, str))
