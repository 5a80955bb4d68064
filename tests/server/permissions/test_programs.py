"""Programs that are known to run and write things: what a star opens after each, and what it does not."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.permissions.commands import find_closed_word, known_program


def opened(rule: str, command: str) -> bool:
    """Whether a rule with these words and a star opens what follows them."""
    words, spelled = tuple(shlex.split(command)), len(shlex.split(rule))
    return find_closed_word(words, tuple(at < spelled for at in range(len(words)))) is None


@pytest.mark.parametrize(
    ("rule", "command", "is_open"),
    [
        ("git log", "git log -5 --oneline", True),
        ("git log", "git log --output=x", False),
        ("git log --output=x", "git log --output=x -5", True),
        ("git", "git log -5", True),
        ("git", "git commit -m x", False),
        ("git commit", "git commit -m x -a", True),
        ("git commit", "git commit -am x", True),
        ("git commit", "git commit -aF x", False),
        ("git nonsense", "git nonsense x", False),
        ("git stash", "git stash list", False),
        ("git stash list", "git stash list -3", True),
        ("git checkout", "git checkout -b new main", True),
        ("python -m pytest", "python -m pytest -q x", True),
        ("python -m pytest", "python3.11 -m pytest -p evil", False),
        ("python manage.py", "python manage.py anything --at-all", True),
        ("python", "python manage.py", False),
        ("python", "python --version", True),
        ("npm run build", "npm run build -- --x", False),
        ("npm run build --", "npm run build -- --x", True),
        ("npm run", "npm run test:unit", True),
        ("npm run", "npm run --prefix=x test", False),
        ("npm install", "npm install left-pad@1.0.0 -D", True),
        ("npm install", "npm install git+ssh://x", False),
        ("uv run pytest", "uv run pytest -q", True),
        ("uv run pytest", "uv run pytest -p evil", False),
        ("make", "make test -j4", True),
        ("make", "make CC=evil", False),
        ("tar", "tar -tf x", False),
        ("unheard-of", "unheard-of --output=x", True),
        ("/usr/bin/git log", "/usr/bin/git log --output=x", False),
        ("GIT log", "GIT log --output=x", False),
        ("curl", "curl", True),
    ],
)
def test_a_star_opens_what_is_harmless(rule: str, command: str, is_open: bool) -> None:
    assert opened(rule, command) is is_open


@pytest.mark.parametrize(
    "program", ["sh", "bash", "env", "xargs", "ssh", "awk", "curl", "docker", "tar", "rsync", "export"]
)
def test_nothing_is_harmless_after_what_runs_its_arguments(program: str) -> None:
    for word in ("x", "-x", "--x", "--", "@x", "x=y"):
        assert not opened(program, f"{program} {word}")


def test_a_word_that_is_not_open_is_named() -> None:
    reason = find_closed_word(("git", "log", "-5", "--output=x"), (True, True, False, False))
    assert reason == "`--output=x` is not known to be harmless after `git log`"


_PROGRAMS = st.sampled_from(
    ["git log", "git", "npm run", "npm", "find", "sort", "pytest", "make", "python", "rg", "sed", "uv run"]
)
_WORDS = st.sampled_from(
    [
        "-5",
        "-n",
        "--stat",
        "--output=x",
        "-o",
        "x",
        "log",
        "status",
        "--",
        "-c",
        "run",
        "-exec",
        "@x",
        "1p",
        "a=b",
        "-",
        "",
        "+x",
    ]
)


@given(_PROGRAMS, st.lists(_WORDS, max_size=6), _WORDS)
def test_a_further_word_opens_nothing(program: str, words: list[str], further: str) -> None:
    front = tuple(program.split())
    before = find_closed_word((*front, *words), (True,) * len(front) + (False,) * len(words))
    after = find_closed_word((*front, *words, further), (True,) * len(front) + (False,) * (len(words) + 1))
    assert before is None or after is not None


@given(_PROGRAMS, st.lists(_WORDS, max_size=6), st.data())
def test_words_spelled_out_by_a_rule_are_open(program: str, words: list[str], data: st.DataObject) -> None:
    """All words of an unknown program are open, spelled out or not."""
    whole = (*program.split(), *words)
    assert find_closed_word(whole, (True,) * len(whole)) is None
    if known_program(whole[0]) is None:
        assert find_closed_word(whole, tuple(data.draw(st.booleans()) for _ in whole)) is None
