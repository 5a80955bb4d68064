"""Rules as they are written, what is complained about, and what they decide.

The first rule that fits decides, the worst part of a command counts, and what is unclear is asked.
"""

import os
from pathlib import Path
from posixpath import normpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import KEYS, MAX_RULES, Decision, Mistake, Policy, RuleTable, read_rules


@pytest.mark.parametrize(
    ("rule", "key", "words"),
    [
        ({"tool": "Bash"}, None, ["no action"]),
        ({"tool": "Bash", "action": "alow"}, "action", ["'alow'", '"allow"']),
        ({"action": "allow"}, None, ["no condition", 'tool = "*"']),
        ({"action": "allow", "name": "x", "reason": "y"}, None, ["no condition"]),
        ({"comand": "ls", "action": "allow"}, "comand", ["did you mean command?"]),
        ({"tool": 5, "action": "allow"}, "tool", ["tool", "got 5"]),
        ({"tool": "", "action": "allow"}, "tool", ["tool"]),
        ({"tool": [], "action": "allow"}, "tool", ["tool"]),
        ({"tool": "*", "action": "ask", "remember": True}, "remember", ["rules that allow"]),
        ({"kind": "exec", "action": "allow"}, "kind", ["did you mean execute?"]),
        ({"path": "a/../b", "action": "allow"}, "path", [".."]),
        ({"path": "~root/x", "action": "allow"}, "path", ["home"]),
        ({"command": "git status; rm x", "action": "allow"}, "command", ["more than one plain command"]),
        ({"command": "git 'x", "action": "allow"}, "command", ["cannot be read"]),
        ({"command": " ", "action": "allow"}, "command", ["empty"]),
        ({"command": "/(a+)+/", "action": "allow"}, "command", ["repeats a group"]),
        ({"matches": {"cmd": 5}, "action": "allow"}, "matches", ["cmd"]),
        ({"matches": {"url": "/(/"}, "action": "allow"}, "matches", ["regular expression"]),
        ({"tool": "x", "context": "main", "action": "allow"}, "context", ['"thread"']),
        (5, None, ["expected a table"]),
    ],
)
def test_a_mistake_is_named(rule: Any, key: str | None, words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        read_rules([{"tool": "*", "action": "ask"}, rule], "server")
    assert (caught.value.index, caught.value.key) == (1, key)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("raw", [{}, "x", None, [{"tool": "*", "action": "ask"}] * (MAX_RULES + 1)])
def test_what_is_no_list_of_rules_is_refused(raw: Any) -> None:
    with pytest.raises(Mistake) as caught:
        read_rules(raw, "server")
    assert caught.value.index is None


def test_a_rule_has_all_that_was_written() -> None:
    raw = {"tool": "Bash", "action": "allow", "name": "n", "reason": "r", "remember": True}
    (rule,) = read_rules([raw], "session")
    assert (rule.number, rule.action, rule.source) == (1, "allow", "session")
    assert (rule.name, rule.reason, rule.remember) == ("n", "r", True)


def test_the_shape_of_amp_is_understood_and_to_delegate_is_to_ask() -> None:
    rules = read_rules(
        [
            {"tool": "Bash", "matches": {"cmd": ["git *", "/^ls$/"]}, "action": "allow", "context": "thread"},
            {"tool": "Bash", "matches": {"cmd": "gh *"}, "action": "delegate", "to": "my-helper"},
            {"tool": "edit_file", "matches": {"path": ".*"}, "action": "reject", "message": "no dots"},
            {"tool": "x", "matches": {"deep": {"a": [1, True, None, "b*"]}}, "action": "ask"},
        ],
        "server",
    )
    assert [rule.action for rule in rules] == ["allow", "ask", "reject", "ask"]
    assert rules[2].reason == "no dots"


@pytest.mark.parametrize("kind", ["*", "e*", "[re]*", ["read", "*_mode"]])
def test_a_kind_may_be_a_glob(kind: Any) -> None:
    assert read_rules([{"kind": kind, "action": "ask"}], "server")


def test_a_folder_alone_is_no_condition() -> None:
    with pytest.raises(Mistake, match="no condition"):
        read_rules([{"cwd": "/srv", "action": "allow"}], "server")


def test_every_key_is_described() -> None:
    assert tuple(KEYS) == RuleTable.__struct_fields__


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["allow", "ask", "/x/", "edit"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from([*KEYS, "x"]), _VALUES, max_size=6) | _VALUES, max_size=3))
def test_rules_are_taken_or_refused(raw: list[Any]) -> None:
    try:
        rules = read_rules(raw, "server")
    except Mistake:
        return
    assert all(rule.conditions for rule in rules)
    assert len(rules) == len(raw)


CWD, HOME = "/srv/app", "/home/me"
SEVERITY = {"allow": 0, "ask": 1, "reject": 2}

Rule = dict[str, Any]


def decide(
    server: list[Rule],
    call: Rule,
    session: list[Rule] | None = None,
    agent: str = "claude",
    resolve: Any = normpath,
    cwd: str = CWD,
) -> Decision:
    policy = Policy(read_rules(server, "server"), HOME, resolve)
    asked = Asked({"toolCall": {"toolCallId": "1", **call}}, agent, cwd)
    return policy.decide(asked, read_rules(session or [], "session"))


@pytest.mark.parametrize(
    ("rules", "text", "action"),
    [
        ([], "make", "allow"),
        ([], "for x in a; do make; done", "allow"),
        ([{"command": "make", "action": "allow"}], "make", "allow"),
        ([{"command": "make", "action": "ask"}], "make", "allow"),
        ([{"command": "make", "action": "ask"}], "$x", "allow"),
        ([{"command": "make", "action": "allow"}], "make install > a", "allow"),
        ([{"command": "git push", "action": "reject"}], "make", "allow"),
        ([{"command": "git push", "action": "reject"}], "git push -f", "reject"),
        ([{"command": "git push", "action": "reject"}], "make; git push", "reject"),
        ([{"command": "git push", "action": "reject"}], "x=push; git $x", "reject"),
        ([{"command": "git push", "action": "reject"}], "git $(echo push)", "reject"),
        ([{"command": "git push", "action": "reject"}], "if true; then git push; fi", "reject"),
        ([{"path": "**/.env", "action": "reject"}], "cat .env", "reject"),
        ([{"path": "**/.env", "action": "reject"}], "cat .e*", "reject"),
        ([{"path": "**/.env", "action": "reject"}], "cat a", "allow"),
        ([{"tool": "Bash", "action": "reject"}], "make", "reject"),
        ([{"tool": "WebFetch", "action": "reject"}], "make", "allow"),
        ([{"kind": "execute", "action": "reject"}], "make", "reject"),
        ([{"agent": "codex", "action": "reject"}], "make", "allow"),
    ],
)
def test_what_a_person_runs_is_allowed_unless_a_rule_rejects_it_or_may(
    rules: list[Rule], text: str, action: str
) -> None:
    policy = Policy(read_rules(rules, "server"), HOME, normpath)
    call = {"name": "bash", "kind": "execute", "rawInput": {"command": text}}
    decision = policy.decide_for_person(Asked({"toolCall": call}, "claude", CWD), ())

    assert decision.action == action, decision.why


def test_what_a_person_runs_is_rejected_when_the_rules_cannot_say() -> None:
    def broken(path: str) -> str:
        raise RuntimeError(path)

    rules = read_rules([rule("ask", path="a")], "server")
    asked = Asked({"toolCall": command("cat b")}, "claude", CWD)

    assert Policy(rules, HOME, normpath).decide_for_person(asked, ()).action == "allow"
    assert Policy(rules, HOME, normpath).decide_for_person(asked, None).action == "reject"
    assert Policy(rules, HOME, broken).decide_for_person(asked, ()).action == "reject"
    assert Policy(rules, HOME, normpath, 3).decide_for_person(asked, ()).action == "reject"


def command(text: str, **more: Any) -> Rule:
    return {"name": "Bash", "kind": "execute", "rawInput": {"command": text, **more}}


def edit(*paths: str) -> Rule:
    return {"name": "Write", "kind": "edit", "rawInput": {"paths": list(paths), "content": "x"}}


def rule(action: str, **conditions: Any) -> Rule:
    return {"action": action, **conditions}


def test_the_first_rule_that_fits_decides_and_without_one_it_is_asked() -> None:
    rules = [rule("allow", tool="Bash", command="ls"), rule("reject", tool="Bash"), rule("allow", tool="*")]
    assert decide(rules, command("ls")).action == "allow"
    assert decide(rules, command("rm x")).action == "reject"
    assert decide(rules, edit("a")).action == "allow"
    unruled = decide([], edit("a"))
    assert (unruled.action, unruled.why, unruled.rule) == ("ask", "no rule is about this request", None)


def test_a_decision_names_its_rule_and_why() -> None:
    decision = decide(
        [rule("ask", tool="X"), rule("reject", command="git push", name="no pushing")], command("git push x")
    )
    assert decision.rule is not None
    assert decision.rule.number == 2
    assert decision.why == "rule 2 of the server (no pushing) is about `git push x`"


@pytest.mark.parametrize(
    ("conditions", "fits"),
    [
        ({"tool": "Bash"}, True),
        ({"tool": "bash"}, True),
        ({"tool": ["Read", "Ba*"]}, True),
        ({"tool": "Read"}, False),
        ({"kind": "execute"}, True),
        ({"kind": ["read", "edit"]}, False),
        ({"agent": "claude"}, True),
        ({"agent": "cl*"}, True),
        ({"agent": "codex"}, False),
        ({"tool": "Bash", "agent": "codex"}, False),
        ({"tool": "Bash", "kind": "execute", "agent": "claude", "command": "make"}, True),
    ],
)
def test_all_conditions_must_be_met(conditions: Rule, fits: bool) -> None:
    assert decide([rule("allow", **conditions)], command("make")).action == ("allow" if fits else "ask")
    assert decide([rule("reject", **conditions)], command("make")).action == ("reject" if fits else "ask")


# Commands

PUSHING = [
    rule("reject", command="git push"),
    rule("allow", command=[f"{name} *" for name in ("git", "ls", "cd", "echo", "cat", "xargs")]),
]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("git status", "allow"),
        ("git status; ls -la && echo x", "allow"),
        ("bash -lc 'cd a && ls'", "allow"),
        ("git push", "reject"),
        ("git push origin main --force", "reject"),
        ("git status; git push --force", "reject"),
        ("ls | git push", "reject"),
        ("(ls; git push)", "reject"),
        ("echo $(git push)", "reject"),
        ("bash -c 'git push'", "reject"),
        ("sudo git push", "reject"),
        ("env X=1 git push", "reject"),
        ("nohup git push &", "reject"),
        ("X=1 git push", "reject"),
        ("/usr/bin/git push", "reject"),
        ("g''it \"push\"", "reject"),
        ("git push $x", "reject"),
        ("git push > f", "reject"),
        ("`git push`", "reject"),
        ("if x; then git push; fi", "reject"),
        ("ls; rm x", "ask"),
        ("git $x", "ask"),
        ("$x push", "ask"),
        ("git -C x push", "ask"),
        ("git commit -m 'git push'", "ask"),
        ("GIT push", "ask"),
        ("ssh host git push", "ask"),
        ("cat <<E\ngit push\nE", "ask"),
        ("echo git push | sh", "ask"),
        ("ls $x", "ask"),
        ("ls *", "ask"),
        ("ls > f", "ask"),
        ("cat < f", "ask"),
        ("X=1 ls", "ask"),
        ("PATH=.; ls", "ask"),
        ("ls `x`", "ask"),
        ("/tmp/ls", "ask"),
        ("ls; sh", "ask"),
        ("ls | xargs echo", "ask"),
        ("lsx", "ask"),
        ("ls 2>&1 >/dev/null", "allow"),
    ],
)
def test_a_command_is_judged_by_its_worst_part(text: str, action: str) -> None:
    decision = decide(PUSHING, command(text))
    assert decision.action == action, decision.why


def test_a_rule_may_hold_globs_and_expressions_of_words() -> None:
    rules = [rule("allow", command=["npm run test*", "/^make( [a-z]+)?$/", "git log 'a b' *"])]
    for text in ("npm run test:unit", "make", "make all", "git log 'a b' c"):
        assert decide(rules, command(text)).action == "allow"
    for text in (
        "npm run build",
        "npm runtest",
        "npm run test:unit -- x",
        "npm run test --prefix=/x",
        "make a b",
        "make 'a;b'",
        "git log a b",
    ):
        assert decide(rules, command(text)).action == "ask"


def test_more_than_a_command_is_not_allowed_by_a_rule_about_commands() -> None:
    rules = [rule("allow", command="ls")]
    assert decide(rules, command("ls", description="d", timeout=5)).action == "allow"
    assert decide(rules, command("ls", dangerouslyDisableSandbox=True)).action == "ask"
    assert decide(rules, command("ls", additionalPermissions={"network": True})).action == "ask"


def test_a_rule_without_a_command_is_about_all_of_them() -> None:
    assert decide([rule("allow", tool="Bash")], command("`x` > $y")).action == "allow"
    assert decide([rule("reject", command="rm"), rule("allow", tool="Bash")], command("`x`")).action == "ask"


def test_a_command_that_the_agent_does_not_tell_is_asked() -> None:
    call: Rule = {"kind": "execute", "title": "ls"}
    assert decide([rule("allow", command="*")], call).action == "ask"
    assert decide([rule("reject", command="rm"), rule("allow", kind="execute")], call).action == "ask"
    assert decide([rule("reject", command="ls")], call).action == "reject"


# Paths


@pytest.mark.parametrize(
    ("paths", "action"),
    [
        (["src/a"], "allow"),
        (["/srv/app/src/a/b"], "allow"),
        (["file:///srv/app/src/a"], "allow"),
        (["src/a", "src/b"], "allow"),
        (["src/a", "b"], "ask"),
        (["src/../b"], "ask"),
        (["src"], "ask"),
        (["/src/a"], "ask"),
        (["~/src/a"], "ask"),
        (["src/.env"], "reject"),
        (["src/a", "b/.env"], "reject"),
        (["src/.ENV"], "ask"),
        ([], "ask"),
    ],
)
def test_all_paths_must_fit_to_be_allowed_and_one_is_enough_to_be_rejected(paths: list[str], action: str) -> None:
    rules = [rule("reject", path="**/.env"), rule("allow", kind="edit", path="src/**")]
    decision = decide(rules, edit(*paths))
    assert decision.action == action, decision.why


def test_links_are_followed_before_paths_are_compared(tmp_path: Path) -> None:
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    (app / "src").mkdir(parents=True)
    elsewhere.mkdir()
    (app / "src" / "out").symlink_to(elsewhere)
    (app / "in").symlink_to(app / "src")
    (tmp_path / "alias").symlink_to(app)
    allowing, rejecting = (
        [rule("allow", path="src/**")],
        [rule("reject", path=f"{elsewhere}/**"), rule("allow", tool="*")],
    )
    for cwd in (app, tmp_path / "alias"):
        for path, action in (("src/a", "allow"), ("in/new/a", "allow"), ("src/out/a", "ask"), ("src/out/../a", "ask")):
            assert decide(allowing, edit(path), resolve=os.path.realpath, cwd=str(cwd)).action == action, path
        for path, action in (("src/a", "allow"), ("src/out/a", "reject"), ("src/out", "reject")):
            assert decide(rejecting, edit(path), resolve=os.path.realpath, cwd=str(cwd)).action == action, path


def test_a_link_that_an_agent_makes_does_not_widen_a_rule(tmp_path: Path) -> None:
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    app.mkdir()
    elsewhere.mkdir()
    (app / "build").symlink_to(elsewhere)
    decision = decide([rule("allow", path="build/**")], edit("build/a"), resolve=os.path.realpath, cwd=str(app))
    assert decision.action == "ask"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("npm test", "allow"),
        ("cat .env", "reject"),
        ("cat a/../.env", "reject"),
        ("cd sub && cat .env", "reject"),
        ("cd /etc; cat shadow", "reject"),
        ("echo x > .env", "reject"),
        ("cp --to=/etc/x a", "reject"),
        ("`cat .env`", "reject"),
        ("cat .e*", "ask"),
        ("cat $x", "ask"),
        ("cd $x; cat y", "ask"),
        ("cat `x`", "ask"),
        ("rm -rf /", "ask"),
        ("xargs cat <<< .env", "ask"),
    ],
)
def test_paths_in_a_command_can_be_rejected(text: str, action: str) -> None:
    rules = [rule("reject", path=["**/.env", "/etc/**"]), rule("allow", tool="Bash")]
    decision = decide(rules, command(text))
    assert decision.action == action, decision.why


def test_no_path_allows_a_command() -> None:
    assert decide([rule("allow", path="**")], command("ls src/a", cwd=CWD)).action == "ask"
    assert decide([rule("allow", path="**", command="ls")], command("ls src/a")).action == "ask"


def test_a_path_that_cannot_be_followed_is_asked() -> None:
    def broken(path: str) -> str:
        raise OSError(path)

    assert decide([rule("allow", path="src/**")], edit("src/a"), resolve=broken).action == "ask"
    rules = [rule("reject", path="x/**"), rule("allow", tool="*")]
    assert decide(rules, edit("src/a"), resolve=broken).action == "ask"


# What is not known


@pytest.mark.parametrize("conditions", [{"tool": "Bash"}, {"kind": "execute"}, {"path": "x/**"}, {"command": "rm"}])
def test_a_rule_that_may_be_meant_keeps_others_from_allowing(conditions: Rule) -> None:
    call: Rule = {"title": "something"}
    assert decide([rule("reject", **conditions), rule("allow", tool="*")], call).action == "ask"
    assert decide([rule("ask", **conditions), rule("allow", tool="*")], call).action == "ask"
    assert decide([rule("allow", tool="*")], call).action == "allow"


def test_what_cannot_be_read_and_questions_are_asked_whatever_rules_allow() -> None:
    everything = [rule("allow", tool="*")]
    assert decide(everything, edit("a")).action == "allow"
    assert decide(everything, {**edit("a"), "kind": 5}).action == "ask"
    assert decide(everything, {**edit("a"), "_meta": {"qwenInteractionKind": "user_question"}}).action == "ask"


def test_an_error_while_deciding_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    def broken(path: str) -> str:
        raise RuntimeError(path)

    rules = [rule("allow", tool="Read"), rule("allow", path="src/**")]
    assert decide(rules, edit("src/a"), resolve=broken).action == "ask"
    assert "deciding a permission failed" in caplog.text


# Rules of a session


@pytest.mark.parametrize(
    ("server", "session", "action"),
    [
        ([], [rule("allow", tool="*")], "allow"),
        ([], [rule("reject", tool="*")], "reject"),
        ([rule("allow", tool="*")], [rule("reject", tool="*")], "reject"),
        ([rule("allow", tool="*")], [rule("ask", tool="*")], "ask"),
        ([rule("allow", tool="*")], [rule("allow", tool="Read")], "allow"),
        ([rule("ask", tool="*")], [rule("allow", tool="*")], "allow"),
        ([rule("reject", tool="*")], [rule("allow", tool="*")], "reject"),
        ([rule("reject", command="rm")], [rule("allow", tool="*")], "reject"),
        ([rule("reject", command="git push")], [rule("allow", tool="*")], "ask"),
        ([rule("ask", command="git push")], [rule("allow", tool="*")], "allow"),
        ([rule("allow", command="rm *"), rule("reject", tool="*")], [rule("ask", tool="*")], "ask"),
    ],
)
def test_a_session_cannot_allow_what_the_server_rejects(server: list[Rule], session: list[Rule], action: str) -> None:
    assert decide(server, command("rm git push"), session).action == action


def test_rules_of_a_session_that_cannot_be_read_allow_nothing() -> None:
    policy = Policy(read_rules([rule("reject", tool="Bash"), rule("allow", tool="*")], "server"), HOME, normpath)
    for call, action in ((edit("a"), "ask"), (command("ls"), "reject")):
        assert policy.decide(Asked({"toolCall": call}, "a", CWD), None).action == action


def test_to_remember_takes_all_parts() -> None:
    rules = [rule("allow", command="ls", remember=True), rule("allow", command="cat *")]
    assert decide(rules, command("ls")).remember
    assert decide(rules, command("bash -c 'ls; ls'")).remember
    assert not decide(rules, command("ls; cat x")).remember


# The shape of Amp


@pytest.mark.parametrize(
    ("amp", "call", "action"),
    [
        ({"tool": "Bash", "matches": {"cmd": "git *"}, "action": "allow"}, command("git status"), "allow"),
        ({"tool": "Bash", "matches": {"cmd": "git *"}, "action": "allow"}, command("git status; rm x"), "ask"),
        ({"tool": "Bash", "matches": {"cmd": "*git push*"}, "action": "reject"}, command("a; git push"), "reject"),
        ({"tool": "Bash", "matches": {"cmd": ["a *", "/^b/"]}, "action": "reject"}, command("b c"), "reject"),
        ({"tool": "Bash", "matches": {"cmd": "gh *"}, "action": "delegate", "to": "x"}, command("gh x"), "ask"),
        ({"tool": "Write", "matches": {"path": "src/*"}, "action": "allow"}, edit("src/a/b"), "allow"),
        ({"tool": "Write", "matches": {"path": "*.env"}, "action": "reject"}, edit("a/.env"), "reject"),
        ({"tool": "*", "action": "allow", "context": "thread"}, edit("a"), "ask"),
        ({"tool": "W", "matches": {"url": "https://a/*"}, "action": "allow"}, {"u": "https://a/b"}, "allow"),
        ({"tool": "W", "matches": {"url": "https://a/*"}, "action": "allow"}, {"u": "https://b/a"}, "ask"),
        ({"tool": "W", "matches": {"n": [1, True]}, "action": "reject"}, {"u": "x", "n": True}, "reject"),
        ({"tool": "W", "matches": {"n": 1}, "action": "reject"}, {"u": "x", "n": True}, "ask"),
        ({"tool": "W", "matches": {"o": {"a": "x*"}}, "action": "reject"}, {"u": "", "o": {"a": "xy"}}, "reject"),
    ],
)
def test_the_shape_of_amp_is_understood(amp: Rule, call: Rule, action: str) -> None:
    if "u" in call:
        call = {"name": "W", "kind": "fetch", "rawInput": {**call, "url": call["u"]}}
    decision = decide([amp], call)
    assert decision.action == action, decision.why


def test_an_unknown_context_keeps_others_from_allowing() -> None:
    rules = [rule("reject", tool="Write", context="subagent"), rule("allow", tool="*")]
    assert decide(rules, edit("a")).action == "ask"


# Properties

_PARTS = st.sampled_from(
    [
        *("git status", "git push", "g''it push", "ls", "ls -la", "cd a", "rm x", "X=1 ls", "ls > f", "ls $x", "`x`"),
        *("bash -c 'ls; rm x'", "sudo ls", "$(ls)", "echo $(git push)", "if a", "cat <<E\nls\nE\n", "(ls)", "xargs rm"),
        *("nohup ls", "ls # x\n", "git 'a;b' push", "eval ls", "cat .env", "echo 'x; y'", 'ls "a & b"', "git pu\\\nsh"),
    ]
)
_RULES = st.lists(
    st.builds(
        lambda action, conditions: {"action": action, **conditions},
        st.sampled_from(["allow", "allow", "ask", "reject"]),
        st.sampled_from(
            [
                *({"command": text} for text in ("git", "git push", "ls", "cd", "rm", "bash", "echo", "*", "nohup")),
                *({"tool": "Bash"}, {"kind": "execute"}, {"path": "**/.env"}, {"agent": "claude", "command": "ls"}),
                *({"matches": {"cmd": "*push*"}}, {"command": "/^ls/"}, {"tool": "*", "context": "thread"}),
            ]
        ),
    ),
    max_size=5,
)
_SEPARATORS = st.sampled_from(["; ", " && ", " || ", " | ", "\n", " & "])


@given(_RULES, _RULES, st.lists(_PARTS, min_size=2, max_size=4), _SEPARATORS)
def test_no_compound_is_allowed_unless_each_part_would_be(
    server: list[Rule], session: list[Rule], parts: list[str], separator: str
) -> None:
    whole = decide(server, command(separator.join(parts)), session)
    alone = [decide(server, command(part), session).action for part in parts]
    if whole.action == "allow":
        assert set(alone) == {"allow"}


def test_rule_on_one_command_of_an_unclear_text_leaves_the_others_open() -> None:
    session = [rule("ask", command="git"), rule("reject", command="*")]
    assert decide([], command("`x`; git status"), session).action == "reject"
    server = [rule("ask", command="rm"), rule("reject", command="git")]
    assert decide(server, command("`x`; xargs rm"), [rule("allow", tool="Bash")]).action == "ask"


@given(_RULES, _RULES, _PARTS, _PARTS, _SEPARATORS, st.booleans())
def test_a_further_part_never_makes_it_more_permissive(
    server: list[Rule], session: list[Rule], part: str, further: str, separator: str, first: bool
) -> None:
    before = decide(server, command(part), session)
    text = separator.join([further, part] if first else [part, further])
    after = decide(server, command(text), session)
    assert SEVERITY[after.action] >= SEVERITY[before.action], (before.why, after.why)


@given(_RULES, _RULES, _PARTS)
def test_rules_of_a_session_never_allow_what_the_server_rejects(
    server: list[Rule], session: list[Rule], part: str
) -> None:
    if decide(server, command(part)).action == "reject":
        assert decide(server, command(part), session).action == "reject"


@given(_RULES, _PARTS)
def test_a_rule_that_rejects_never_makes_it_more_permissive(rules: list[Rule], part: str) -> None:
    before = decide(rules, command(part))
    for number in range(len(rules) + 1):
        more = [*rules[:number], rule("reject", command="git push"), *rules[number:]]
        assert SEVERITY[decide(more, command(part)).action] >= SEVERITY[before.action]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["name", "kind", "title", "rawInput", "locations", "content", "_meta"]), _JSON),
    st.sampled_from([OSError, ValueError, RuntimeError, RecursionError, KeyError, None]),
)
def test_nothing_that_is_odd_or_fails_is_allowed_by_a_rule_about_something(
    call: Rule, error: type[Exception] | None
) -> None:
    def resolve(path: str) -> str:
        if error is not None:
            raise error(path)
        return normpath(path)

    rules = [rule("allow", path="/srv/app/src/**"), rule("allow", command="ls"), rule("allow", matches={"x": "y"})]
    assert decide(rules, call, resolve=resolve).action == "ask"
