"""Run `sandbox-agent permissions`, which checks the rules and shows their decisions.

It runs no command and asks nobody.
"""

import os
from pathlib import Path

from sandboxagent.cli.flags import add_flags, settings_of
from sandboxagent.cli.output import print_facts, print_json
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.protocol.json_bounds import read

_WHERE = ("config_dir", "permissions_file")

TEST = """\
Show what the server's rules would decide about a request, by which rule, and why. Each part of a
command is judged; the strictest decision wins. If no rule allows it, the rule that nearly does is
shown, and why it does not. Rules of a single session are not included.
"""
STARTER = """\
Print a file of rules to start with. They reject access to secrets, allow commands that only look and
the project's own checks, and ask you about everything else. Save the file and adapt it.
"""
CHECK = """\
Read the file of rules as a server does at its start. An error names the line and the rule. A note
names a rule that allows less than it seems to.
"""


def group() -> CommandGroup:
    """Make the group `permissions`."""
    return CommandGroup(
        "sandbox-agent permissions",
        "Check and test permission rules. Nothing is run, and you are not asked.",
        "  sandbox-agent permissions starter > permissions.toml\n"
        "  sandbox-agent permissions check --permissions-file permissions.toml\n"
        "  sandbox-agent permissions test --tool Bash --command 'git status; git push --force'\n",
        {
            "test": Subcommand("show which rule would decide, and why", _test),
            "check": Subcommand("check the file of rules", _check),
            "starter": Subcommand("rules to start with", _starter),
        },
    )


def _test() -> Command:
    examples = (
        "examples:\n"
        "  sandbox-agent permissions test --tool Bash --command 'git status; git push --force'\n"
        "  sandbox-agent permissions test --agent claude --kind edit --path src/main.py --cwd ~/project\n"
        '  sandbox-agent permissions test --kind fetch --input \'{"url": "https://example.com"}\' --json\n'
    )
    parser = Parser("sandbox-agent permissions test", TEST, examples)
    parser.add_argument("--agent", metavar="AGENT", help="The agent that asks.")
    parser.add_argument("--tool", metavar="NAME", help="The name of the tool it wants to use.")
    parser.add_argument("--kind", metavar="KIND", help="The tool call's kind in ACP. (default: execute with --command)")
    parser.add_argument("--command", metavar="TEXT", help="The command it wants to run.")
    parser.add_argument(
        "--path", metavar="PATH", action="append", help="A path that it wants to work on. May be repeated."
    )
    parser.add_argument("--input", metavar="JSON", help="Further arguments of the tool, a JSON object.")
    parser.add_argument("--cwd", metavar="PATH", help="The session's directory. (default: the current directory)")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    add_flags(parser, _WHERE)
    return Command(parser, _run_test)


def _check() -> Command:
    examples = (
        "examples:\n"
        "  sandbox-agent permissions check\n"
        "  sandbox-agent permissions check --permissions-file rules.toml\n"
    )
    parser = Parser("sandbox-agent permissions check", CHECK, examples)
    add_flags(parser, _WHERE)
    return Command(parser, _run_check)


def _starter() -> Command:
    examples = "examples:\n  sandbox-agent permissions starter > permissions.toml\n"
    return Command(Parser("sandbox-agent permissions starter", STARTER, examples), _run_starter)


def _run_starter(arguments: ParsedArguments) -> int:
    from sandboxagent.server.permissions.file import read_starter

    print(read_starter(), end="")
    return 0


def _run_check(arguments: ParsedArguments) -> int:
    from sandboxagent.server.permissions.file import load_rules
    from sandboxagent.server.permissions.nearest import find_glued_stars

    path = settings_of(arguments, os.environ, _WHERE).permissions_file
    rules = load_rules(path)
    count = "1 rule" if len(rules) == 1 else f"{len(rules)} rules"
    print(f"{path}: {count}, in order" if path.exists() else f"{path} does not exist: there are no rules")
    for rule in rules:
        for command in find_glued_stars(rule):
            wider = f"{command.rstrip('*')} *"
            print(f"note: {rule.title}: `{command}` allows no further words; write `{wider}` to allow them")
    return 0


def _run_test(arguments: ParsedArguments) -> int:
    import msgspec

    from sandboxagent.server.permissions.file import load_rules
    from sandboxagent.server.permissions.nearest import find_nearest
    from sandboxagent.server.permissions.request import Asked
    from sandboxagent.server.permissions.rules import Policy

    rules = load_rules(settings_of(arguments, os.environ, _WHERE).permissions_file)
    cwd = str(Path(arguments.word("cwd") or ".").expanduser().absolute())
    policy = Policy(rules, str(Path.home()), os.path.realpath)
    asked = Asked({"toolCall": _call(arguments)}, arguments.word("agent"), cwd)
    decision = policy.decide(asked, ())
    parts = [f"{each.action}: {each.why}" for each in decision.parts]
    nearest = () if decision.action == "allow" else find_nearest(policy, asked)
    rule = decision.rule
    if arguments.switch("json"):
        facts = {"number": rule.number, "name": rule.name, "reason": rule.reason} if rule else None
        near = [{"rule": each.rule.number, "part": each.part, "why": each.why} for each in nearest]
        document = {"action": decision.action, "why": decision.why, "rule": facts, "parts": parts, "nearest": near}
        print_json(msgspec.json.encode(document))
        return 0
    called = f"{rule.number} ({rule.name})" if rule and rule.name else str(rule.number) if rule else "none"
    told = [("action", decision.action), ("rule", called), ("why", decision.why)]
    told += [("reason", (rule.reason if rule else None) or ""), ("parts", "\n".join(parts) if len(parts) > 1 else "")]
    told += [("nearest", "\n".join(f"{each.rule.title}: {each.why}" for each in nearest))]
    print_facts(told)
    return 0


def _call(arguments: ParsedArguments) -> dict[str, object]:
    """Make a tool call like one for which an agent asks permission."""
    import msgspec

    command, paths = arguments.word("command"), arguments.words("path")
    try:
        given = read((arguments.word("input") or "{}").encode(errors="surrogateescape"), dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--input: expected a JSON object: {error}") from None
    given |= ({} if command is None else {"command": command}) | ({"paths": paths} if paths else {})
    kind = arguments.word("kind") or (None if command is None else "execute")
    call: dict[str, object] = {"toolCallId": "test", "name": arguments.word("tool"), "kind": kind, "rawInput": given}
    return {name: value for name, value in call.items() if value is not None}
