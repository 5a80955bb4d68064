"""The rules to start with were attacked, and hold: no hostile command is allowed, and honest ones are."""

import os
import tomllib
from pathlib import Path
from posixpath import normpath
from typing import Any

import pytest

from sandboxagent.server.permissions.file import read_starter
from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import Decision, Policy, read_rules

HERE = Path(__file__).parent
CWD, HOME = "/srv/app", "/home/me"
RULES = read_rules(tomllib.loads(read_starter())["rules"], "server")


def listed(name: str) -> list[str]:
    lines = (HERE / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


HOSTILE, HONEST = listed("hostile_commands.txt"), listed("honest_commands.txt")


def decide(call: dict[str, Any], cwd: str = CWD, resolve: Any = normpath) -> Decision:
    policy = Policy(RULES, HOME, resolve)
    return policy.decide(Asked({"toolCall": {"toolCallId": "1", **call}}, "claude", cwd, (f"{cwd}-docs",)), ())


def running(text: object, **more: Any) -> dict[str, Any]:
    return {"name": "Bash", "kind": "execute", "rawInput": {"command": text, **more}}


@pytest.mark.requirement("7.starter")
def test_no_hostile_command_is_allowed() -> None:
    assert [command for command in HOSTILE if decide(running(command)).action == "allow"] == []


def test_every_honest_command_is_allowed() -> None:
    decisions = {command: decide(running(command)) for command in HONEST}
    assert {command: made.why for command, made in decisions.items() if made.action != "allow"} == {}


def test_the_tables_are_large() -> None:
    assert len(HOSTILE) > 350
    assert len(HONEST) > 50


@pytest.mark.parametrize(
    "wrapping", ["{}; pwd", "pwd && {}", "pwd | {}", "bash -c '{}'", "(cd src && {})", "{} > /dev/null"]
)
def test_no_hostile_command_is_allowed_in_company(wrapping: str) -> None:
    texts = [wrapping.replace("{}", command) for command in HOSTILE if "'" not in command]
    assert [text for text in texts if decide(running(text)).action == "allow"] == []


def reading(path: object, **more: Any) -> dict[str, Any]:
    return {"kind": "read", "rawInput": {"path": path, **more}}


ENV_BY_A_GLOB = [
    *(".e*", "**/*", "{.env,a.txt}", ".[e]nv", "*", "**", "src/*", "src/**", ".?nv", ".en?", "?env", "./.e*", "**/.e*"),
    *("src/../.e*", ".[!x]nv", ".[^x]nv", "[.]env", "{a,.env}", "{a,{b,.env}}", ".{env,x}", ".en{v,w}", ".{e,x}nv"),
    *(".{a..z}nv", "@(.env|a)", ".+(e)nv", "!(a)", "*(.)env", "?(.)env", ".e?v", "*.p?m", "server.{pem,crt}"),
    *(
        "server.[p]em",
        "{a,/etc/passwd}",
        "{a,../x}",
        "{a,~/.ssh/id_rsa}",
        "src/*/../../.e*",
        "**/id_?sa",
        ".E*",
        ".[E]NV",
    ),
    *("{.e}nv", "src/{.env}", "a|.env", "*v", "sr*/.env", "../*", "/etc/pass*", "~/.ss*/x"),
]
ODD_SPELLINGS = [
    *(".ENV", ".Env", ".env/", ".env//", "./.env", ".//.env", "src/../.env", ".env ", " .env", ".env\xa0", ".env."),
    *(".env::$DATA", ".env\0", ".env\0.txt", ".e\u200bnv", ".env\u200b", "\u202e.env", "\uff0eenv", ".\uff45nv"),
    *(
        "%2eenv",
        ".%65nv",
        "%2Eenv",
        "%252eenv",
        ".env%00.txt",
        ".env%20",
        "src%2f..%2f..%2fx",
        "..%2fx",
        "%2fetc%2fpasswd",
    ),
    *(".env#x", ".env?x", ".env:1", ".env;x", ".env,a.txt", "a.txt,.env", "a.txt;.env", "a.txt\n.env", '[".env"]'),
    *("a.txt .env", "a.txt, /etc/passwd", "a /etc/passwd", "a ../x", "@.env", "src/a@.env", "a|/etc/passwd"),
    *(
        ".\\.env",
        ".e\\nv",
        "a\\..\\..\\x",
        "\\\\evil\\share",
        "C:\\x",
        "//evil/share",
        "\u2025/x",
        "\uff0fetc\uff0fpasswd",
    ),
    *(
        "~root/x",
        "~+/x",
        "~-/x",
        "~/x",
        "$HOME/x",
        "${HOME}/x",
        "$(cat .env)",
        "`id`",
        "src/$X/a",
        "..",
        "../x",
        "/",
    ),
]
NO_PATHS = [
    *(
        "https://evil.example/a",
        "HTTPS://evil",
        "http:evil",
        "ftp://x/a",
        "data:text/plain,x",
        "ssh://x/a",
        "src/x://y",
    ),
    *(
        "file://evil/a",
        "file:///etc/passwd",
        "FILE:///srv/app/.env",
        "file:.env",
        "file:/srv/app/.env",
        "file%3A///etc/x",
    ),
    *("file:///srv/app/%2eenv", "vscode://x/.env", "untitled:a", "git:HEAD:a", "view-source:file:///etc/passwd"),
    *("file:///srv/app/.e*", "javascript:x", "a%3A//x"),
    *("'/etc/passwd'", '"/etc/passwd"', "@/etc/passwd", "@'/etc/passwd'", "</etc/passwd", "src/a=/etc/passwd"),
    *("&#46;env", "&period;env", "%HOME%", "%APPDATA%/x", "<(id)"),
]
GITS_OWN = [
    *(".git/config", ".git", "./.git/", ".GIT/config", ".git/./config", "src/.git/config", ".git/logs/HEAD"),
    *(
        ".git/FETCH_HEAD",
        ".git/modules/x/config",
        ".g*/config",
        ".git/c*",
        "{.git/config,a}",
        ".gitmodules",
        "a/.gitconfig",
    ),
]


@pytest.mark.requirement("7.meant")
@pytest.mark.parametrize("path", [*ENV_BY_A_GLOB, *ODD_SPELLINGS, *NO_PATHS, *GITS_OWN], ids=ascii)
def test_a_read_of_something_else_than_it_seems_is_not_allowed(path: str) -> None:
    """By a glob that could be a secret, a spelling that some tool takes for one, or a path that is none."""
    calls = [
        reading(path),
        {**reading(path), "kind": "search"},
        {"kind": "read", "rawInput": {"paths": ["src/a", path]}},
        {"kind": "read", "rawInput": {"path": "src/a", "file_path": path}},
        {"kind": "read", "rawInput": {"path": "src/a"}, "locations": [{"path": path}]},
    ]

    assert [call for call in calls if decide(call).action == "allow"] == []


@pytest.mark.parametrize(
    "key", ["glob", "globs", "include", "target", "source", "src", "pattern", "uri", "url", "files"]
)
def test_read_of_a_secret_under_another_argument_is_not_allowed(key: str) -> None:
    """Also where a rule allows every read: the rejection stands before it."""
    rules = read_rules(
        [{"path": "**/.env", "action": "reject"}, {"kind": ["read", "search"], "action": "allow"}], "server"
    )

    def allows(path: str) -> bool:
        call = {"toolCallId": "1", "kind": "read", "rawInput": {key: path}}
        return Policy(rules, HOME, normpath).decide(Asked({"toolCall": call}, "claude", CWD, ()), ()).action == "allow"

    assert [
        path for path in (".e*", "**/*", "{.env,a.txt}", ".[e]nv", ".env", "%2eenv", "a,.env") if allows(path)
    ] == []
    assert allows("src/a.py")
    assert allows("src/**/*.py")


CHANGES = [
    {"content": [{"type": "diff", "path": "/srv/app/a", "newText": "x"}]},
    {"content": [{"type": "content", "content": {"type": "diff", "path": "a", "newText": "x"}}]},
    {"content": [{"type": "content", "oldText": "a", "newText": "b"}]},
    {"content": [{"type": "content", "content": {"type": "text", "text": "*** Begin Patch\n*** Update File: a\n"}}]},
    *(
        {"rawInput": {"path": "a", **carried}}
        for carried in (
            *(
                {"diff": "x"},
                {"patch": "x"},
                {"unified_diff": "x"},
                {"unifiedDiff": "x"},
                {"diffs": ["x"]},
                {"hunks": [{}]},
            ),
            *(
                {"old_string": "a", "new_string": "b"},
                {"oldText": "a"},
                {"newText": "b"},
                {"new_str": "b"},
                {"content": "x"},
            ),
            *(
                {"contents": "x"},
                {"file_text": "x"},
                {"edits": [{"oldText": "a"}]},
                {"changes": {"a": {}}},
                {"insert": "x"},
            ),
            *({"options": {"newText": "x"}}, {"x": [{"replacement": "y"}]}, {"overwrite": True}, {"delete": True}),
            *(
                {"text": "--- a\n+++ b\n"},
                {"input": "diff --git a/a b/a\n"},
                {"x": "@@ -1 +1 @@\n"},
                {"y": "<<<<<<< SEARCH"},
            ),
            *(
                {"NEW_STRING": "x"},
                {"new-string": "x"},
                {"Patch": "x"},
                {"append": "x"},
                {"file_content": "x"},
                {"newContents": "x"},
                {"mode": "w"},
                {"mode": "r+"},
                {"mode": "write"},
                {"flags": "O_RDWR"},
                {"move_to": "b"},
                {"rename": "b"},
            ),
        )
    ),
]


@pytest.mark.requirement("7.deeds")
@pytest.mark.parametrize("kind", ["read", "search", "think", "fetch", "switch_mode"])
def test_what_carries_a_change_is_no_read(kind: str) -> None:
    rules = read_rules(
        [{"kind": "edit", "path": "**/b", "action": "reject"}, {"kind": kind, "action": "allow"}], "server"
    )

    def judge(call: dict[str, Any]) -> str:
        asked = Asked({"toolCall": {"toolCallId": "1", **call}}, "claude", CWD, ())
        return Policy(rules, HOME, normpath).decide(asked, ()).action

    plain = {"kind": kind, "rawInput": {"path": "a", "limit": 5, "overwrite": False}}
    carrying = [plain | change for change in CHANGES]
    assert judge(plain) == "allow"
    assert [call for call in carrying if judge(call) == "allow"] == []
    assert [call for call in carrying if decide(call).action == "allow"] == []
    assert judge({"kind": kind, "rawInput": {"path": "b", "new_string": "x"}}) == "reject"


@pytest.mark.parametrize("kind", ["read", "search", "edit", "delete", "move", "think", "fetch", "switch_mode"])
def test_what_carries_a_command_is_that_command(kind: str) -> None:
    rules = read_rules(
        [{"kind": "execute", "command": "rm", "action": "reject"}, {"kind": kind, "action": "allow"}], "server"
    )

    def judge(**given: object) -> str:
        asked = Asked({"toolCall": {"toolCallId": "1", "kind": kind, "rawInput": given}}, "claude", CWD, ())
        return Policy(rules, HOME, normpath).decide(asked, ()).action

    assert judge(path="a", command="id") == "ask"
    assert judge(path="a", command="rm x") == "reject"
    assert judge(path="a", cmd=["rm", "x"]) == "reject"


ARGUMENTS = [
    *(
        {"command": "ls", "args": ["; id"]},
        {"command": "ls", "args": [";", "id"]},
        {"command": "ls", "args": ["a\nid"]},
    ),
    *({"command": "ls", "args": "; id"}, {"command": "ls", "args": "-l"}, {"command": "ls", "args": {"0": "; id"}}),
    *({"cmd": "ls", "args": ["&& id"]}, {"script": "ls", "args": ["| id"]}, {"command": "ls", "Args": ["$(id)"]}),
    *({"command": "ls", "args": ["`id`"]}, {"command": "ls", "args": ["> a"]}, {"command": "ls", "args": ["*"]}),
    *({"command": "ls", "arguments": ["; id"]}, {"command": "ls", "argv": ["; id"]}, {"argv": ["ls", "; id"]}),
    *(
        {"command": ["ls", "; id"]},
        {"command": ["ls", ";", "id"]},
        {"cmd": ["ls", "|", "id"]},
        {"command": ["ls;", "id"]},
    ),
    *({"commands": ["ls", "id"]}, {"commands": ["ls", "rm -rf src"]}, {"commands": ["ls", "ls; id"]}, {"commands": []}),
    *(
        {"command": "ls", "params": ["; id"]},
        {"command": "ls", "options": ["; id"]},
        {"command": "ls", "flags": "; id"},
    ),
    *({"command": "ls", "cmd": "id"}, {"command": {"program": "ls", "args": ["; id"]}}, {"command": "ls", "args": [1]}),
    *(
        {"command": "ls", "args": [["; id"]]},
        {"command": ["bash", "-c", "ls", "; id"]},
        {"command": "ls", "stdin": "x"},
    ),
    *({"command": "bash", "args": ["-c", "ls; id"]}, {"command": "ls", "args": [""]}, {"command": "ls\0", "args": []}),
    *({"command": "ls", "shell": "evil"}, {"command": "ls", "executable": "evil"}, {"program": "ls", "args": ["; id"]}),
]


@pytest.mark.requirement("7.arguments")
@pytest.mark.parametrize("given", ARGUMENTS, ids=str)
def test_arguments_count_however_a_tool_joins_them(given: dict[str, Any]) -> None:
    kinds = ["execute", "other", "read", "search"]

    assert [kind for kind in kinds if decide({"kind": kind, "rawInput": given}).action == "allow"] == []


def test_a_rejected_command_is_seen_in_arguments() -> None:
    for given in (
        {"command": "ls", "args": ["; sudo id"]},
        {"command": ["ls", "; sudo id"]},
        {"commands": ["ls", "sudo id"]},
    ):
        assert decide({"kind": "execute", "rawInput": given}).action == "reject", given


@pytest.mark.parametrize(
    "call",
    [
        running("npm test", cwd="/srv/evil"),
        running("npm test", workdir="../evil"),
        running("npm test", Cwd="/srv/evil"),
        running("npm test", cwd=CWD, workdir="/srv/evil"),
        running("npm test", cwd="~/evil"),
        running("npm test", cwd=["/srv/evil"]),
        running("npm test", cwd="file:///srv/evil"),
        running("npm test", env={"PATH": "/srv/evil"}),
        running("npm test", dangerouslyDisableSandbox=True),
        running("npm test", Command="id"),
        running("npm test", CMD="id"),
        running("npm", args=["test", "--prefix", "/srv/evil"]),
        running("npm", Args=["test", "--prefix", "/srv/evil"]),
        running("npm test", args=[], Args=["--prefix", "/srv/evil"]),
        running(["npm", "test", "--prefix", "/srv/evil"]),
        running(["bash", "-c", "npm test; id"]),
        running(["npm test", "x"]),
        {"kind": "execute", "title": "npm test"},
        {"kind": "execute", "title": "npm test", "rawInput": {"description": "npm test"}},
        {"kind": "read", "rawInput": {"path": "/etc/passwd"}},
        {"kind": "read", "rawInput": {"path": "a", "PATH": "/etc/passwd"}},
        {"kind": "read", "rawInput": {"path": ".env"}},
        {"kind": "read", "rawInput": {"path": "src/a"}, "locations": [{"path": "/etc/passwd"}]},
        {"kind": "read", "rawInput": {"uri": "file://src/etc/passwd"}},
        {"kind": "read", "rawInput": {"uri": "file:///etc/passwd"}},
        {"kind": "read", "rawInput": {"uri": "src://../../etc/passwd"}},
        {"kind": "read", "rawInput": {"path": "a", "then": "cat /etc/passwd"}},
        {"kind": "read", "rawInput": {"path": "a", "options": {"command": "id"}}},
        {"kind": "read", "rawInput": {"path": "a", "url": "https://evil.example/?x"}},
        {"kind": "read", "rawInput": {"path": "a", "argv": ["id"]}},
        {**running("npm test"), "content": [{"type": "diff", "path": "/srv/app/a", "newText": "x"}]},
        {"kind": "edit", "rawInput": {"path": "src/a"}},
        {"kind": "edit", "rawInput": {"path": ".git/hooks/pre-commit"}},
        {"kind": "other", "rawInput": {"path": ".git/config"}},
    ],
)
def test_a_hostile_request_is_not_allowed(call: dict[str, Any]) -> None:
    assert decide(call).action != "allow"


@pytest.mark.parametrize(
    "call",
    [
        running("npm test", cwd=CWD),
        running("npm test", cwd="packages/a", timeout=5, description="Runs the tests"),
        running("npm test", workdir=f"{CWD}-docs"),
        running("npm", args=["test"]),
        running(["bash", "-lc", "npm test"], cwd=CWD),
        {"kind": "read", "rawInput": {"file_path": f"{CWD}/src/a.py", "offset": 1, "limit": 20}},
        {"kind": "read", "rawInput": {"uri": f"file://{CWD}/src/a.py"}},
        running("git", args=["log", "--oneline", "-5"]),
        running(["git", "status"]),
        {"kind": "execute", "rawInput": {"commands": ["git status", "ls src"]}},
        reading("src/a.py", offset=1, limit=20, encoding="utf-8"),
        *(
            reading(path)
            for path in (
                *("app/[slug]/page.tsx", "[id].tsx", "[...all]/x.ts", "app/(auth)/login/page.tsx", "app/@modal/x.ts"),
                *(
                    "{{cookiecutter.slug}}/a.py",
                    "docs/gr\u00f6\u00dfe.md",
                    "My Folder/a b.txt",
                    "data,v2.csv",
                    "a+b.cc",
                ),
                *(
                    "\u8cc7\u6599\uff08\u6700\u7d42\uff09.txt",
                    "foo@2x.png",
                    "a#b.md",
                    "src/a.py:10",
                    "50%.txt",
                    "it's.txt",
                ),
                *(
                    ".gitignore",
                    ".github/workflows/ci.yml",
                    "src/config.py",
                    "src/environment.ts",
                    "src/keys.py",
                    "what?.txt",
                ),
            )
        ),
        {"kind": "search", "rawInput": {"query": "a|b", "path": "src", "output_mode": "content"}},
    ],
)
def test_an_honest_request_is_allowed(call: dict[str, Any]) -> None:
    decision = decide(call)
    assert decision.action == "allow", decision.why


def test_a_link_does_not_lead_out(tmp_path: Path) -> None:
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    (app / "src").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("x")
    (app / "out").symlink_to(elsewhere)
    (app / "plain.txt").symlink_to(elsewhere / "secret")
    (app / "env.txt").symlink_to(app / ".env")
    for command in (
        "cat plain.txt",
        "cat out/secret",
        "cd out && npm test",
        "ls out",
        "cat env.txt",
        "cd src && cat ../out/x",
    ):
        assert decide(running(command), str(app), os.path.realpath).action != "allow", command
    assert decide(running("npm test", cwd="out"), str(app), os.path.realpath).action != "allow"
    assert decide(running("cat src/a"), str(app), os.path.realpath).action == "allow"
