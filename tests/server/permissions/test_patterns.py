"""Globs, simple regular expressions, and globs of paths."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.permissions.patterns import MAX_TEXT, FlatPathGlob, Match, PathGlob, Regex, compile_pattern

CWD, HOME = "/srv/app", "/home/me"


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("src/**", "/srv/app/src/a", True),
        ("src/**", "/srv/app/src/a/b/c", True),
        ("src/**", "/srv/app/src", False),
        ("src/**", "/srv/app/srcs/a", False),
        ("src/**", "/src/a", False),
        ("src/*", "/srv/app/src/a", True),
        ("src/*", "/srv/app/src/a/b", False),
        ("./src/?.py", "/srv/app/src/a.py", True),
        ("src/[ab].py", "/srv/app/src/c.py", False),
        ("**/.env", "/srv/app/.env", True),
        ("**/.env", "/elsewhere/deep/.env", True),
        ("**/.env", "/.env", True),
        ("**/.env", "/a/.env/b", False),
        ("/etc/**", "/etc/a/b", True),
        ("/etc/**/b", "/etc/b", True),
        ("/**/b/**/d", "/a/b/c/d", True),
        ("/**/b/**/d", "/a/c/d", False),
        ("~/x", "/home/me/x", True),
        ("~", "/home/me", True),
        ("**", "/anything/at/all", True),
        (".", "/srv/app", True),
        ("/", "/", True),
    ],
)
def test_a_path_fits_or_not(glob: str, path: str, fits: bool) -> None:
    assert PathGlob(glob).fits(path, CWD, HOME) is fits


def test_a_folder_with_wild_letters_in_its_name_is_only_itself() -> None:
    assert PathGlob("a").fits("/w*[x]/a", "/w*[x]", HOME)
    assert not PathGlob("a").fits("/wy[x]/a", "/w*[x]", HOME)


@pytest.mark.parametrize(
    ("glob", "path", "caught"),
    [
        ("/etc/**", "/etc/passwd", Match.YES),
        ("/etc/**", "/etc", Match.YES),
        ("/etc/**", "/ETC/passwd", Match.MAYBE),
        ("/etc/**", "/", Match.MAYBE),
        ("secrets/*.key", "/srv/app", Match.MAYBE),
        ("secrets/*.key", "/srv/app/secrets", Match.MAYBE),
        ("secrets/*.key", "/srv/other", Match.NO),
        ("secrets/key", "/srv/app/secrets", Match.MAYBE),
        ("secrets/key", "/srv/app/secrets/key/x", Match.NO),
        ("**/caf\u00e9", "/a/cafe\u0301", Match.MAYBE),
        ("**/.env", "/srv/app", Match.NO),
    ],
)
def test_a_prohibition_counts_what_is_near(glob: str, path: str, caught: Match) -> None:
    assert PathGlob(glob).catches(path, CWD, HOME) is caught


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("*.env", "/a/b/.env", True),
        ("lib/*", "/srv/app/lib/a/b", True),
        ("$HOME/*", "/home/me/a/b", True),
        ("${HOME}/*", "/home/you/a", False),
        ("/etc/*", "/etc/a/b", True),
        ("**/secrets/**", "/a/secrets/b", True),
    ],
)
def test_globs_of_amp_do_not_stop_at_folders(glob: str, path: str, fits: bool) -> None:
    assert FlatPathGlob(glob).fits(path, CWD, HOME) is fits
    assert (FlatPathGlob(glob).catches(path, CWD, HOME) is Match.YES) is fits


@pytest.mark.parametrize(
    ("text", "fitting", "other"),
    [
        ("git *", "git status", "agit status"),
        ("/^git (status|log|diff)$/", "git log", "git commit"),
        ("/^make( .*)?$/", "make all", "maker"),
        ("Ba?h", "Bash", "Bath2"),
    ],
)
def test_a_text_fits_or_not(text: str, fitting: str, other: str) -> None:
    assert compile_pattern(text).fits(fitting) is Match.YES
    assert compile_pattern(text).fits(other) is Match.NO


@pytest.mark.parametrize(
    "text", ["(a+)+", "(a|b)*", "a.*b.*c", ".*x.*", "^a|.*b.*c", "(?=a)", r"(a)\1", "(a", "[a", "(a)?" * 9, "*"]
)
def test_what_could_take_for_ever_or_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has|repeats) "):
        Regex(text)


def test_a_long_text_is_neither_in_nor_out() -> None:
    assert Regex("^a").fits("a" * (MAX_TEXT + 1)) is Match.MAYBE


@given(st.text(alphabet="ab.*+?()[]{}|^$\\", max_size=12), st.integers(0, 3))
def test_no_expression_that_is_taken_takes_long(text: str, shape: int) -> None:
    try:
        regex = Regex(text)
    except ValueError:
        return
    filling = ("a", "ab", "b", "aab")[shape]
    started = time.process_time()
    regex.fits((filling * MAX_TEXT)[: MAX_TEXT - 1] + "!")
    assert time.process_time() - started < 5


def test_a_path_of_many_folders_does_not_take_long() -> None:
    started = time.process_time()
    assert not PathGlob("/" + "**/a/" * 20 + "b").fits("/" + "a/" * 1000, CWD, HOME)
    assert time.process_time() - started < 5
