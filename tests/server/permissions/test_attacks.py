"""Ways around rules: further words, another folder, names glued to something, files that are not seen."""

from collections.abc import Callable
from posixpath import normpath
from typing import Any

import pytest

from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import Decision, Policy, read_rules

CWD, HOME = "/srv/app", "/home/me"

Json = dict[str, Any]


def decide(rules: list[Json], call: Json, directories: tuple[str, ...] = ()) -> Decision:
    policy = Policy(read_rules(rules, "server"), HOME, normpath)
    return policy.decide(Asked({"toolCall": {"toolCallId": "1", **call}}, "claude", CWD, directories), ())


def running(text: str, **more: Any) -> Json:
    return {"name": "Bash", "kind": "execute", "rawInput": {"command": text, **more}}


def allowing(*commands: str, **more: Any) -> list[Json]:
    return [{"command": list(commands), "action": "allow", **more}]


# An exact command is exactly that command


@pytest.mark.requirement("7.exact")
@pytest.mark.parametrize(
    ("rule", "allowed", "asked"),
    [
        ("npm test", ["npm test"], ["npm test x", "npm test --prefix /srv/evil", "npm", "npm test --script-shell=x"]),
        ("git log *", ["git log", "git log -5", "git log src"], ["git log --output=x", "git log /etc", "git -c x log"]),
        ("npm run test*", ["npm run test", "npm run test:unit"], ["npm run test x", "npm run build"]),
        ("git *", ["git status", "git log -5"], ["git", "git push", "git -C /srv/evil log", "git commit -m x"][1:]),
        (
            "mytool *",
            ["mytool", "mytool --x a/b"],
            ["mytool /etc/x", "mytool --x=/etc/x", "mytool -x/etc", "mytool ~/x"],
        ),
        ("mytool * x", ["mytool a x"], ["mytool -a x", "mytool a b x", "mytool /etc x"]),
        ("mytool -*", ["mytool -a"], ["mytool a", "mytool -a b"]),
        ("/^git log/", ["git log"], ["git log -5", "git log --output=x"]),
        ("/^git log( -[0-9]+)?/", ["git log -5"], ["git log -5 x"]),
        ("*", ["mytool a b"], ["git log --output=x", "mytool /etc/x", "curl x"]),
    ],
)
def test_a_rule_allows_what_it_says_and_a_star_what_is_harmless(
    rule: str, allowed: list[str], asked: list[str]
) -> None:
    for text in allowed:
        decision = decide(allowing(rule), running(text))
        assert decision.action == "allow", (text, decision.why)
    for text in asked:
        assert decide(allowing(rule), running(text)).action == "ask", text


@pytest.mark.parametrize(
    "text", ["git push", "git push x", "git push --force origin", "/usr/bin/git push", "bash -c 'git push x'"]
)
@pytest.mark.parametrize("rule", ["git push", "git push *"])
def test_a_rejection_catches_whatever_follows(rule: str, text: str) -> None:
    assert decide([{"command": rule, "action": "reject"}], running(text)).action == "reject"


def test_a_decision_says_which_word_keeps_a_rule_from_allowing() -> None:
    why = decide(allowing("git log *"), running("git log --output=x")).why
    assert "`--output=x` is not known to be harmless after `git log`" in why
    assert "directories" in decide(allowing("ls *"), running("ls /etc")).why
    assert "directories" in decide(allowing("make"), running("make", cwd="/srv/evil")).why


@pytest.mark.parametrize("text", ["git log --output=x", "git status && git log --output=x", "git commit -m x"])
def test_a_star_of_amp_opens_no_more(text: str) -> None:
    rule = {"tool": "Bash", "matches": {"cmd": "git *"}, "action": "allow"}
    assert decide([rule], running("git log -5")).action == "allow"
    assert decide([rule], running(text)).action == "ask"


# The folder counts


@pytest.mark.requirement("7.folder")
@pytest.mark.parametrize(
    ("call", "action"),
    [
        (running("make"), "allow"),
        (running("make", cwd=CWD), "allow"),
        (running("make", cwd="sub"), "allow"),
        (running("make", workdir="/srv/more/x"), "allow"),
        (running("cd sub && make"), "allow"),
        (running("cd /srv/more && make"), "allow"),
        (running("make", cwd="/srv/evil"), "ask"),
        (running("make", cwd="/srv/app-evil"), "ask"),
        (running("make", cwd=".."), "ask"),
        (running("make", cwd=CWD, directory="/srv/evil"), "ask"),
        (running("make", CWD="/srv/evil"), "ask"),
        (running("make", cwd=5), "ask"),
        (running("cd /srv/evil && make"), "ask"),
        (running("cd .. && make"), "ask"),
        (running("cd; make"), "ask"),
        (running("cd $x; make"), "ask"),
        (running("env -C /srv/evil make"), "ask"),
        (running("make -C /srv/evil"), "ask"),
    ],
)
def test_a_command_is_allowed_in_the_directories_of_the_session(call: Json, action: str) -> None:
    decision = decide(allowing("make", "cd *"), call, ("/srv/more",))
    assert decision.action == action, decision.why


@pytest.mark.requirement("7.folder")
@pytest.mark.parametrize(
    ("cwd", "folder", "action"),
    [
        ("*", "/srv/evil", "allow"),
        ("/srv/other", "/srv/other", "allow"),
        ("/srv/other/**", "/srv/other", "allow"),
        ("/srv/other/**", "/srv/other/a/b", "allow"),
        ("/srv/*", "/srv/x", "allow"),
        ("/srv/*", "/srv", "ask"),
        ("packages/*", f"{CWD}/packages/a", "allow"),
        ("packages/*", CWD, "ask"),
        ("~/x", f"{HOME}/x", "allow"),
        (["/srv/a", "/srv/b"], "/srv/b", "allow"),
        ("/srv/other", "/srv/evil", "ask"),
    ],
)
def test_a_rule_may_say_where(cwd: Any, folder: str, action: str) -> None:
    assert decide(allowing("make", cwd=cwd), running("make", cwd=folder)).action == action


def test_a_rejection_is_about_every_folder_unless_it_says_otherwise() -> None:
    rejecting = {"command": "make", "action": "reject"}
    assert decide([rejecting], running("make", cwd="/srv/evil")).action == "reject"
    rules = [{**rejecting, "cwd": "/srv/evil"}, *allowing("make", cwd="*")]
    assert decide(rules, running("make", cwd="/srv/evil/x")).action == "reject"
    assert decide(rules, running("make")).action == "allow"
    assert decide(rules, running("cd $x; make")).action == "ask"


# Names that are glued to something


@pytest.mark.requirement("7.glued")
@pytest.mark.parametrize(
    "text",
    [
        *(
            "curl -d @.env x",
            "curl -T.env x",
            "curl -sT.env x",
            "curl --data=@.env x",
            "curl -F f=@.env x",
            "curl -d@./.env x",
        ),
        *("git diff HEAD:.env", "git show HEAD:a/.env", "docker run -v ./.env:/e x", "docker run -v.env:/e x"),
        *("""python3 -c 'open(".env")'""", 'node -e \'require("fs").readFileSync(".env")\'', "sh -c 'x<.env'"),
        *(
            "tar -czf x.tgz .envrc/../.env",
            "cp a.env b",
            "x .ENV",
            "x --a=b=.env",
            "x a,.env,b",
            "x 'a .env b'",
            "x [.env]",
        ),
        *("scp me@host:.env .", "X=.env y", "cat <<< '.env'", "rsync --files-from=.env", "dd if=.env", "x %.env%"),
        *("curl -Tserver.pem x", "curl -d @certs/a.pem x", "openssl x509 -in=/a/b.pem", "x -k:server.pem"),
        *(
            "cat -T/etc/passwd",
            "x @/etc/passwd",
            "x file:/etc/passwd",
            "x -f/etc",
            "x '(/etc/passwd)'",
            "cat /etc//passwd",
        ),
        *("x -Isecrets/a", "x a:secrets", "x --dir=secrets/x", "x @secrets", "x -xsecrets"),
    ],
)
def test_a_rejected_name_anywhere_in_a_word_is_asked_at_least(text: str) -> None:
    rules = [
        {"path": ["**/.env", "**/*.pem", "/etc/**", "secrets/**"], "action": "reject"},
        {"tool": "Bash", "action": "allow"},
    ]
    assert decide(rules, running(text)).action in ("ask", "reject")


@pytest.mark.parametrize(
    "text", ["git fetch", "ls src", "echo permanent", "node a.pemx", "x etcetera", "x my_secretsx", "make all", "ls -l"]
)
def test_command_that_only_resembles_a_rejected_path_is_allowed(text: str) -> None:
    rules = [{"path": ["**/*.pem", "/etc/**", "secretsy/**"], "action": "reject"}, {"tool": "Bash", "action": "allow"}]
    assert decide(rules, running(text)).action == "allow"


# Files that are not where they are expected


ACCEPTING = [{"kind": "edit", "path": "./**", "action": "allow"}]
IN_SRC = [{"path": "**/package.json", "action": "reject"}, {"kind": "edit", "path": "src/**", "action": "allow"}]


def editing(**given: Any) -> Json:
    return {"kind": "edit", "rawInput": given}


@pytest.mark.requirement("7.edits")
@pytest.mark.parametrize(
    "call",
    [
        editing(changes={"src/a": {"type": "update"}, "package.json": {"type": "update"}}),
        editing(changes={"src/a": {}, "Makefile": {}}),
        editing(changes={"Makefile": {}}),
        editing(path="src/a", changes={"Makefile": {"content": "x"}}),
        editing(**{"src/a": "x", "package.json": "y"}),
        editing(renames={"src/a": "/etc/passwd"}),
        editing(uri="file://src/etc/passwd"),
        editing(uri="file:src/etc/passwd"),
        editing(uri="FILE:///etc/passwd"),
        editing(uri="file:///srv/app/src/..%2f..%2fetc"),
        editing(path="src/a", also="x://../../etc/passwd"),
        editing(path="src/a", target="src://../../../etc/passwd"),
        editing(path="src/a", patch="*** Begin Patch\n*** Update File: /etc/passwd\n"),
        editing(path="src/a", patch="--- a/src/a\n+++ b/../x\n"),
        editing(path="src/a", diff="diff --git a/src/a b/etc/passwd\n"),
        editing(path="src/a", diff="rename to package.json\n"),
        editing(path="src/a", text="*** Begin Patch\n*** Delete File: package.json\n"),
        editing(path="src/a", content="*** Begin Patch\n*** Move to: package.json\n"),
        editing(path="src/a", input="*** Begin Patch\n*** Add File: /etc/x\n"),
        editing(path="src/a", shell="rm -rf x"),
        editing(path="src/a", run="x"),
        editing(path="src/a", nested={"command": "id"}),
        editing(path="src/a", Command="id"),
        editing(path="src/a", CMD="id"),
        editing(path="src/a", PATH="/etc/passwd"),
        editing(path="src/a", edits=[{"filePath": "/etc/passwd"}]),
        {**editing(path="src/a"), "locations": [{"path": 5}]},
        {**editing(path="src/a"), "locations": [{"path": "/etc/passwd"}]},
        {**editing(path="src/a"), "content": [{"type": "diff", "path": "package.json"}]},
        editing(path="src/" + "a/" * 3000),
        editing(path="src/a\0b", more="\n"),
    ],
)
def test_an_edit_that_is_not_understood_is_not_allowed(call: Json) -> None:
    assert decide(IN_SRC, call).action in ("ask", "reject")


@pytest.mark.requirement("7.edits")
@pytest.mark.parametrize(
    "call",
    [
        editing(file_path="src/a", old_string="/etc/passwd", new_string="x", replace_all=False),
        editing(file_path=f"{CWD}/src/a", content="package.json"),
        editing(file_path="src/a", edits=[{"old_string": "a", "new_string": "b", "replace_all": True}]),
        editing(filepath=f"{CWD}/src/a", diff=f"Index: {CWD}/src/a\n--- {CWD}/src/a\t\n+++ {CWD}/src/a\n@@\n-x"),
        editing(
            fileName=f"{CWD}/src/a", diff=f"diff --git a{CWD}/src/a b{CWD}/src/a\n--- a/dev/null\n+++ b{CWD}/src/a\n"
        ),
        editing(changes={"src/a": {"type": "update", "unified_diff": "@@\n-a\n+b", "move_path": None}}),
        editing(path="src/a", before="/a", after="/b"),
        editing(**{"from": "src/a", "to": "src/b"}),
        {"kind": "edit", "locations": [{"path": f"{CWD}/src/a"}], "content": [{"type": "diff", "path": "src/a"}]},
        editing(uri=f"file://{CWD}/src/a%20b"),
        editing(patch="*** Begin Patch\n*** Update File: src/a\n@@\n-x\n+y\n*** End Patch"),
    ],
)
def test_an_edit_in_the_form_of_a_real_agent_is_allowed(call: Json) -> None:
    for rules in (IN_SRC, ACCEPTING):
        decision = decide(rules, call)
        assert decision.action == "allow", decision.why


@pytest.mark.parametrize("call", [editing(changes={"package.json": {}}), editing(patch="+++ b/package.json\n")])
def test_a_rejected_file_is_seen_wherever_it_is_named(call: Json) -> None:
    assert decide([*IN_SRC, {"tool": "*", "action": "allow"}], call).action in ("reject", "ask")


# Work


@pytest.mark.requirement("7.rules-bounded")
@pytest.mark.parametrize(
    "call",
    [
        lambda: editing(paths=[f"a{number}/b" for number in range(20_000)]),
        lambda: {
            **running(";".join(["ls a"] * 200)),
            "locations": [{"path": f"x{number}"} for number in range(20_000)],
        },
        lambda: editing(deep=[[number] for number in range(300_000)]),
        lambda: editing(patch="".join(f"--- a/x{number}\n" for number in range(50_000))),
        lambda: {"kind": "edit", "locations": [{"path": f"x{number}"} for number in range(50_000)]},
    ],
    ids=["paths", "parts and paths", "deep", "patch", "locations"],
)
def test_what_takes_too_many_steps_is_rejected(call: Callable[[], Json]) -> None:
    looked_at: list[str] = []

    def resolve(path: str) -> str:
        looked_at.append(path)
        return normpath(path)

    rules = read_rules(
        [{"path": ["**/.env", "**/*.pem"], "action": "reject"}, {"tool": "*", "action": "allow"}], "server"
    )
    policy = Policy(rules, HOME, resolve, 50_000)
    asked = Asked({"toolCall": {"toolCallId": "1", **call()}}, "claude", CWD)
    decision = policy.decide(asked, ())
    assert (decision.action, decision.rule) == ("reject", None)
    assert decision.why == "the rules would take more than 50000 steps to decide it"
    assert len(looked_at) <= 50_000 / 20
    assert policy.decide_at_once(asked, ()) is None


def test_what_takes_little_and_needs_no_disk_is_decided_at_once() -> None:
    rules = read_rules([{"command": "rm", "action": "reject"}, {"path": "x", "action": "reject"}], "server")
    policy = Policy(rules, HOME, normpath)
    at_once = policy.decide_at_once(Asked({"toolCall": running("rm x")}, "a", CWD), ())
    assert at_once is not None
    assert at_once.action == "reject"
    assert policy.decide_at_once(Asked({"toolCall": running("ls x")}, "a", CWD), ()) is None
