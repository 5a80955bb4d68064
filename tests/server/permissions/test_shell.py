"""The language of shells: what is understood, and that a shell runs nothing else than what was understood."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sandboxagent.server.permissions.shell import MAX_DEPTH, read_script


def words(text: str) -> list[list[str | None]]:
    """The words of each simple command in a text that is understood."""
    commands, why = read_script(text)
    assert why is None, why
    return [command.words for command in commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git push --force", [["git", "push", "--force"]]),
        ("a;b", [["a"], ["b"]]),
        ("a && b || c", [["a"], ["b"], ["c"]]),
        ("a | b |& c", [["a"], ["b"], ["c"]]),
        ("a & b &", [["a"], ["b"]]),
        ("a\n\nb\n", [["a"], ["b"]]),
        ("a \\\n b", [["a", "b"]]),
        ("gi\\\nt", [["git"]]),
        ("(a; b) && { c; d; }", [["a"], ["b"], ["c"], ["d"]]),
        ("! a", [["a"]]),
        ("a # b; c\nd", [["a"], ["d"]]),
        ("a#b '#c'", [["a#b", "#c"]]),
        ("'g'\"i\"t 'a b' \"c d\" e\\ f ''", [["git", "a b", "c d", "e f", ""]]),
        ('a "b\\"c\\x" \'d\\\'', [["a", 'b"c\\x', "d\\"]]),
        ("a ~/b ~", [["a", "~/b", "~"]]),
        ("[ -f x ]", [["[", "-f", "x", "]"]]),
        ("find -exec a {} +", [["find", "-exec", "a", "{}", "+"]]),
        ('grep "a$" "$"', [["grep", "a$", "$"]]),
    ],
)
def test_plain_text_is_a_list_of_commands(text: str, expected: list[list[str | None]]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "word",
    [
        "$x",
        "${x}",
        '"$x"',
        "a$1",
        "$@",
        "*.py",
        "a?",
        "[ab]",
        "{a,b}",
        "~user",
        "=ls",
        "$(date)",
        '"a $(date) b"',
        "$*",
    ],
)
def test_a_word_that_the_shell_makes_something_else_of_is_unknown(word: str) -> None:
    assert words(f"a {word} b")[-1] == ["a", None, "b"]


def test_what_is_substituted_is_a_command_of_its_own() -> None:
    assert words('echo "$(git push; $(date) x)"') == [["git", "push"], ["date"], [None, "x"], ["echo", None]]


@pytest.mark.parametrize(
    "text",
    [
        *("`a`", 'a "`b`"', "a <(b)", "a >(b)", "$((1))", "((1))", "a $[1]", "${x:-y}", "$'a'", '$"a"', "a() { b; }"),
        *("if a; then b; fi", "for x in a; do b; done", "case a in esac", "[[ a ]]", "function f { a; }", "{ a }"),
        *("a;;b", "a 'b", 'a "b', "a \\", "a )", "( a", "{ a;", "(a) b", "a >", "a > > b", "&& a", "| a", "a &> b"),
        *("a <<E", "a <<E\nb", "a <<E\n$x\nE\n", "a <<E\n`x`\nE", "a <<E 'b\nc'\nE\n", "cat <<$x\n$x\n", "!>f a"),
        *('a "$\\\n(b)"', "a $\\\n(b)", "a >&1x", "a >&-b", "x=(a b)", "a=(b) c", "!(a)", "$(a", '"$(a"'),
        "(" * (MAX_DEPTH + 2) + "a" + ")" * (MAX_DEPTH + 2),
    ],
)
def test_what_is_not_fully_understood_is_said_to_be_so(text: str) -> None:
    assert read_script(text)[1] is not None


@pytest.mark.parametrize(
    ("text", "files"),
    [
        *(("a > f", ["f"]), ("a >> f", ["f"]), ("a < f", ["f"]), ("a 2> f", ["f"]), ("a >| f", ["f"])),
        *(("a <> f", ["f"]), ("a >& f", ["f"]), ("a > $x", [None]), ("> f", ["f"]), ("a > f b < g", ["f", "g"])),
        *(("a 2>&1", []), ("a > /dev/null 2>&1", []), ("a < /dev/null", []), ("a 2>&-", []), ("a >&2", [])),
        ("a > /dev/nullx", ["/dev/nullx"]),
    ],
)
def test_redirections_name_their_files(text: str, files: list[str | None]) -> None:
    commands, why = read_script(text)
    assert (commands[0].files, why) == (files, None)


def test_what_a_command_is_fed_is_no_command() -> None:
    commands, why = read_script("cat <<'E' | b <<-F\ngit push; $(x)\nE\n\thello\n\tF\nc <<< 'd e'")
    assert why is None
    assert [(command.words, command.fed) for command in commands] == [
        (["cat"], ["git push; $(x)\n"]),
        (["b"], ["hello\n"]),
        (["c"], ["'d e'"]),
    ]


@pytest.mark.parametrize("text", ["X=1 a", "X=1", "X+=1 a", "X=$(b) a", 'X="a b" Y=2 a'])
def test_variables_are_seen(text: str) -> None:
    commands, why = read_script(text)
    assert why is None
    assert commands[-1].assigns
    assert commands[-1].words in (["a"], [])


def test_what_was_understood_before_something_was_not_is_kept() -> None:
    commands, why = read_script("git push; `x`")
    assert [command.words for command in commands] == [["git", "push"]]
    assert why == "it has backticks"


@given(st.text(alphabet="ab \t\n;&|()<>$'\"\\#{}!~=*?[]`-x12E/", max_size=60))
def test_every_text_is_read_or_refused(text: str) -> None:
    commands, why = read_script(text)
    assert all(command.text for command in commands)
    assert why is None or why


# Real shells

_PIECES = st.sampled_from(
    [
        *("a", "b", "c", " ", " ", " ", ";", "&&", "||", "|", "\n", "&", "(", ")", "{ ", "; }", ">f", "<f", "2>&1"),
        *("<<E\n", "\nE\n", "<<<", "$", "$(", "`", "'", '"', "\\", "\\\n", "#", "! ", "~", "x=1 ", "*", "[ ", "{}"),
        *("$x", "1", "$((", "$'", "&>", "|&", "{a,b}", ">&2", ">&", "-", "=", "if ", "then ", "()", "<("),
    ]
)
_STUB = '#!/bin/sh\nfor word in "${0##*/}" "$@"; do printf "%s\\037" "$word"; done >>"$LOG"; printf "\\036" >>"$LOG"\n'


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with programs a, b and c, which write down that they were run."""
    (tmp_path / "bin").mkdir()
    for name in ("a", "b", "c"):
        program = tmp_path / "bin" / name
        program.write_text(_STUB)
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "dash"])
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(pieces=st.lists(_PIECES, min_size=1, max_size=9))
def test_a_shell_runs_nothing_else_than_what_was_understood(shell: str, pieces: list[str], stubs: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    text = "".join(pieces)
    commands, why = read_script(text)
    assume(why is None and any(name in text for name in "abc"))
    understood = [command.words for command in commands]
    for ran in _run(program, text, stubs):
        assert any(_may_be(ran, known) for known in understood), (text, ran, understood)


def _run(shell: str, text: str, folder: Path) -> list[list[str]]:
    """What a shell runs of programs a, b and c, with their arguments."""
    programs, work, log = folder / "bin", folder / "work", folder / "log"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    log.write_text("")
    environ = {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", "LOG": str(log), "HOME": "~"}
    # What runs in the background holds the pipe: its end is the end of all.
    subprocess.run(
        [shell, "-c", text], env=environ, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return [entry.split("\037")[:-1] for entry in log.read_text(errors="replace").split("\036") if entry]


def _may_be(ran: list[str], known: list[str | None]) -> bool:
    """Whether these words may have become what ran."""
    if None not in known:
        return ran == known
    return known[0] in (None, ran[0])
