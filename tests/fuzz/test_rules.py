"""Permission rules under fire: whatever a request is, no way of going wrong allows it, and the work stays bounded.

The corpus (`corpus/rules/`) has requests that once went wrong, or nearly; it is tried, too. What Hypothesis makes up
is the same in each run. `SANDBOX_AGENT_FUZZ=10000` tries more.
"""

import fnmatch
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from posixpath import normpath
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import Decision, Policy, read_rules
from tests.support.running import BOUND

CWD, HOME = "/srv/app", "/home/me"
SEVERITY = {"allow": 0, "ask": 1, "reject": 2}
CORPUS = sorted((Path(__file__).parent / "corpus" / "rules").glob("*.json"))
EXAMPLES = int(os.environ.get("SANDBOX_AGENT_FUZZ", "30"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)

Json = dict[str, Any]


def decide(rules: list[Json], call: Json, resolve: Callable[[str], str] = normpath, steps: int = 100_000) -> Decision:
    policy = Policy(read_rules(rules, "server"), HOME, resolve, steps)
    return policy.decide(Asked({"toolCall": {"toolCallId": "1", **call}}, "claude", CWD), ())


def running(text: str) -> Json:
    return {"name": "Bash", "kind": "execute", "rawInput": {"command": text}}


def editing(*paths: str, **more: Any) -> Json:
    return {"kind": "edit", "rawInput": {"paths": list(paths), **more}}


# What requests and rules are made of

_NAMES = st.sampled_from(
    [
        *(
            "a",
            "src/a",
            "src",
            ".env",
            "src/.env",
            "/etc/passwd",
            "~/.ssh/id_rsa",
            "..",
            "../x",
            "/srv/app/src/b",
            "/dev/null",
        ),
        *(
            "**/*",
            ".e*",
            "{.env,a}",
            ".[e]nv",
            "%2eenv",
            "https://x/a",
            "file:///srv/app/src/a",
            "file://src/a",
            "x://y",
            "a b",
            "",
            "*",
            "src/a/../b",
            "package.json",
            "-x",
            "@a",
            "a\nb",
        ),
    ]
)
_WORDS = _NAMES | st.sampled_from(
    [
        *(
            "-n",
            "-5",
            "--stat",
            "--output=x",
            "--output",
            "-o",
            "-C",
            "/srv/evil",
            "--prefix=/x",
            "-T.env",
            "@.env",
            "HEAD:.env",
        ),
        *(
            "--",
            "-c",
            "core.pager=x",
            "-exec",
            "rm",
            ";",
            "status",
            "log",
            "push",
            "$x",
            "`x`",
            "> f",
            "2>&1",
            "'a b'",
            "-rf",
        ),
    ]
)
_FRONTS = st.sampled_from(
    ["git log", "git status", "git diff", "ls", "cat", "npm run", "find", "sort", "mytool", "make", "sed", "pytest"]
)
_COMMANDS = st.builds(lambda front, words: " ".join([front, *words]), _FRONTS, st.lists(_WORDS, max_size=5))
_TEXTS = _COMMANDS | st.lists(_COMMANDS, min_size=1, max_size=4).map("; ".join) | st.text(max_size=40)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _NAMES | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_KEYS = st.sampled_from(
    [
        "command",
        "Command",
        "cmd",
        "commands",
        "args",
        "Args",
        "cwd",
        "workdir",
        "path",
        "file_path",
        "paths",
        "changes",
        "patch",
        "diff",
        "uri",
        "x",
        "glob",
        "old_string",
        "content",
    ]
)
_INPUTS = st.dictionaries(_KEYS, _JSON, max_size=5)
_CALLS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["Bash", "Write"]) | _JSON,
        "kind": st.sampled_from(["execute", "edit", "read", "other"]) | _JSON,
        "title": _TEXTS,
        "rawInput": _INPUTS | _JSON,
        "locations": st.lists(st.fixed_dictionaries({"path": _NAMES}), max_size=3) | _JSON,
        "content": _JSON,
        "_meta": _JSON,
    },
)
_OPEN = [
    {"command": f"{front} *", "action": "allow"}
    for front in ("git log", "git status", "ls", "cat", "npm run", "find", "sort", "mytool")
]
_CONDITIONS = st.sampled_from(
    [
        *(
            {"command": text}
            for text in ("git log *", "git push", "ls *", "cat", "rm", "*", "npm test", "/^ls/", "mytool *")
        ),
        *({"path": text} for text in ("**/.env", "src/**", "/etc/**", "./**", "**/*.pem", "~/.ssh/**")),
        *(
            {"matches": {"cmd": "git *"}},
            {"matches": {"path": "src/*"}},
            {"kind": "edit"},
            {"tool": "Bash"},
            {"tool": "*"},
        ),
        *({"command": "make", "cwd": "*"}, {"command": "make", "cwd": "/srv/evil/**"}, {"kind": "*"}),
    ]
)
_RULES = st.lists(
    st.builds(lambda action, condition: {"action": action, **condition}, st.sampled_from(list(SEVERITY)), _CONDITIONS),
    max_size=6,
)


# Properties


@fuzzed
@given(_RULES, _CALLS, st.sampled_from([OSError, ValueError, RuntimeError, RecursionError, MemoryError, KeyError]))
def test_no_error_allows(rules: list[Json], call: Json, error: type[Exception]) -> None:
    def broken(path: str) -> str:
        raise error(path)

    failing = decide(rules, call, broken)
    if failing.action == "allow":
        # Then no path had anything to do with it.
        assert decide(rules, call).action == "allow"


@fuzzed
@given(_RULES, _CALLS, st.integers(0, 3000))
def test_too_little_work_rejects_or_says_the_same(rules: list[Json], call: Json, steps: int) -> None:
    bounded, free = decide(rules, call, steps=steps), decide(rules, call)
    assert (bounded.action, bounded.why) == (free.action, free.why) or (bounded.action, bounded.rule) == (
        "reject",
        None,
    )


@fuzzed
@given(_RULES, _CALLS)
def test_deciding_at_once_says_the_same_or_nothing(rules: list[Json], call: Json) -> None:
    policy = Policy(read_rules(rules, "server"), HOME, normpath)
    asked = Asked({"toolCall": call}, "claude", CWD)
    at_once = policy.decide_at_once(asked, ())
    assert at_once is None or at_once == policy.decide(asked, ())


@fuzzed
@given(_COMMANDS, _WORDS, st.booleans())
def test_a_further_word_allows_nothing(text: str, further: str, secret: bool) -> None:
    rules = [*([{"path": "**/.env", "action": "reject"}] if secret else []), *_OPEN]
    before, after = decide(rules, running(text)), decide(rules, running(f"{text} {further}"))
    if further != ";":
        assert SEVERITY[after.action] >= SEVERITY["ask"] or before.action == "allow", (before.why, after.why)


@fuzzed
@given(_RULES, _TEXTS, _COMMANDS)
def test_a_further_part_is_no_more_permissive(rules: list[Json], text: str, further: str) -> None:
    before, after = decide(rules, running(text)), decide(rules, running(f"{text}\n{further}"))
    # Quotes and here-documents reach into the next line; what is unclear by itself may be rejected by what it is then.
    if before.action == "reject":
        assert after.action != "allow"
    if after.action == "allow":
        assert before.action == "allow"


@fuzzed
@given(_RULES, st.lists(_NAMES, min_size=1, max_size=4), _NAMES)
def test_a_further_path_is_no_more_permissive(rules: list[Json], paths: list[str], further: str) -> None:
    assume(any(paths))
    before, after = decide(rules, editing(*paths)), decide(rules, editing(*paths, further))
    assert SEVERITY[after.action] >= SEVERITY[before.action], (before.why, after.why)


@fuzzed
@given(_RULES, _TEXTS)
def test_a_person_runs_nothing_that_is_rejected_of_an_agent(rules: list[Json], text: str) -> None:
    policy, asked = (
        Policy(read_rules(rules, "server"), HOME, normpath),
        Asked({"toolCall": running(text)}, "claude", CWD),
    )
    agent, person = policy.decide(asked, ()).action, policy.decide_for_person(asked, ()).action
    assert person in ("allow", "reject")
    assert agent == "ask" or person == agent


@fuzzed
@given(_RULES, _CALLS)
def test_work_is_counted(rules: list[Json], call: Json) -> None:
    _check_work(rules, call, 2_000)


def _check_work(rules: list[Json], call: Json, steps: int) -> None:
    """Python functions that are called are a measure of work that does not depend on the machine."""
    policy = Policy(read_rules(rules, "server"), HOME, normpath, steps)
    asked, calls = Asked({"toolCall": call}, "claude", CWD), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        policy.decide(asked, ())
    finally:
        sys.setprofile(before)
    assert calls < 50 * steps + 100_000


# The corpus


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_case_of_the_corpus_is_decided_as_it_says(file: Path) -> None:
    kept = json.loads(file.read_text())
    assert decide(kept["rules"], kept["call"]).action in kept["actions"]
    _check_work(kept["rules"], kept["call"], 20_000)


def test_the_corpus_is_found() -> None:
    assert len(CORPUS) >= 10


# Real shells

_STUB = '#!/bin/sh\necho "${0##*/}" >>"$LOG"\n'
_SHELL_PIECES = st.sampled_from(
    [
        *(
            "git log",
            "git status",
            "ls",
            "cat a",
            "evil",
            "evil x",
            " ",
            ";",
            "&&",
            "|",
            "||",
            "\n",
            "&",
            "(",
            ")",
            "{ ",
            "; }",
        ),
        *(
            "$(",
            "`",
            "'",
            '"',
            "\\",
            "#",
            "evil()",
            "x=1 ",
            "> f",
            "<<E\n",
            "\nE\n",
            "$x",
            "bash -c '",
            "eval ",
            "env ",
            "sudo ",
        ),
        *(
            "cd src",
            "cd ..",
            "-n 5",
            "a",
            "* ",
            "nohup ",
            "xargs ",
            "find . -exec ",
            "\\;",
            "test -f a",
            "echo ",
            "-exec",
        ),
    ]
)
_PLAIN_RULES = [
    {"command": ["git log *", "git status *", "ls *", "cat *", "cd *", "echo *", "test *", "find *"], "action": "allow"}
]


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_shell_runs_only_allowed_programs_of_what_is_allowed(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    # Programs that only run others (env, nohup, xargs) are real: what they run is what counts.
    for name in ("git", "ls", "cat", "find", "evil", "sudo"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(_STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    log, work = tmp_path / "log", tmp_path / "work"
    (work / "src").mkdir(parents=True)

    @settings(fuzzed, max_examples=max(30, EXAMPLES // 2))
    @given(st.lists(_SHELL_PIECES, min_size=1, max_size=8).map(" ".join))
    def check(text: str) -> None:
        assume(decide(_PLAIN_RULES, running(text)).action == "allow")
        log.write_text("")
        environ = {
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "LOG": str(log),
            "HOME": str(work),
        }
        subprocess.run(
            [program, "-c", text], env=environ, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND
        )
        assert set(log.read_text().split()) <= {"git", "ls", "cat", "find"}, text

    check()


# Globs

_GLOB_PIECES = st.sampled_from(
    [
        "*",
        "**",
        "**/",
        "?",
        ".",
        "e",
        "n",
        "v",
        ".env",
        "[e]",
        "[a-z]",
        "[!x]",
        "{env,a}",
        "{.env,b}",
        "src/",
        "/",
        "a",
        "{e}",
    ]
)
_SECRETS = (".env", "src/.env", "src/a/.env")


def _expanded(text: str) -> list[str]:
    """A glob with braces as globs without, the way shells do it."""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text]
    inner = found[1].split(",") if "," in found[1] else [found[1], f"\\{found[1]}"]
    return [each for part in inner for each in _expanded(text[: found.start()] + part + text[found.end() :])]


@fuzzed
@given(
    st.lists(_GLOB_PIECES, min_size=1, max_size=6).map("".join), st.sampled_from(["path", "glob", "paths", "include"])
)
def test_no_glob_of_a_rejected_file_is_allowed(text: str, key: str) -> None:
    """By the standard library's own idea of globs, in which a star is any text, folders included."""
    globs = [posixpath.normpath(each) for each in _expanded(text)]
    assume(any(fnmatch.fnmatchcase(secret, glob) for glob in globs for secret in _SECRETS))
    rules = [
        {"path": "**/.env", "action": "reject"},
        {"path": "./**", "action": "allow"},
        {"kind": "*", "action": "allow"},
    ]
    for kind in ("read", "search", "other"):
        call = {"kind": kind, "rawInput": {key: [text] if key == "paths" else text}}
        assert decide(rules, call).action != "allow"


@fuzzed
@given(_RULES, _INPUTS, st.sampled_from(["old_string", "newText", "diff", "patch", "edits", "content"]))
def test_a_change_allows_nothing_that_is_only_read(rules: list[Json], given: Json, key: str) -> None:
    reads = [{**rule, "kind": ["read", "search"]} for rule in rules]
    assert decide(reads, {"kind": "read", "rawInput": {**given, key: "x"}}).action != "allow"


@fuzzed
@given(_FRONTS, st.lists(_WORDS, max_size=4), _COMMANDS)
def test_words_that_a_shell_would_take_apart_are_not_allowed(front: str, words: list[str], further: str) -> None:
    program, *arguments = front.split()
    for glue in ("; ", "&& ", "| ", "\n", "$("):
        for asked in (
            {"command": program, "args": [*arguments, *words, f"{glue}{further}"]},
            {"command": [program, *arguments, *words, f"{glue}{further}"]},
            {"command": program, "args": " ".join([*arguments, *words, f"{glue}{further}"])},
        ):
            assert decide(_OPEN, {"kind": "execute", "rawInput": asked}).action != "allow", asked
