"""The words of `sandbox-agent fleet`."""

import signal
from pathlib import Path

from sandbox_agent.cli.grammar import Arguments, Command, Group, Parser, Word, natural
from sandbox_agent.cli.output import print_facts

EXAMPLES = """\
  sandbox-agent fleet up
  sandbox-agent fleet init --dir fleet
  sandbox-agent fleet invite --dir fleet box-1
"""

UP = """\
Run a whole fleet on this machine: NATS servers, gateways, and servers that join them as nodes. Prints
what to try, and ends with Ctrl-C; nothing is kept. Needs nats-server 2.12 or newer on the PATH.
"""

UP_EXAMPLES = """\
examples:
  sandbox-agent fleet up
  sandbox-agent fleet up --nodes 1 --gateways 1 --servers 1
"""

INIT = """\
Make a directory with the gateways' key and the rights of all nodes, as NATS servers include them:
authorization.conf. Keep it where only you can read it.
"""

INVITE = """\
Make a key for a node. With it, a server can publish as this node, and do nothing else. Have the NATS
servers read authorization.conf again (nats-server --signal reload), and give the key to the node.
"""

FORGET = """\
Take a node's key away. Have the NATS servers read authorization.conf again (nats-server --signal
reload): they end the node's connection.
"""


def group() -> Group:
    """The group, with its words."""
    words = {
        "up": Word("run a whole fleet on this machine, to try", _up),
        "init": Word("make the keys of a fleet", _init),
        "invite": Word("make a key for a node", _invite),
        "forget": Word("take a node's key away", _forget),
    }
    return Group("sandbox-agent fleet", "Set up a fleet of servers, or try one out on this machine.", EXAMPLES, words)


def _up() -> Command:
    parser = Parser("sandbox-agent fleet up", UP, UP_EXAMPLES)
    for flag, default, what in (("nodes", 3, "servers that join"), ("gateways", 2, "gateways"), ("servers", 3, "NATS")):
        text = f"How many {what}{' servers' if what == 'NATS' else ''} to run. (default: {default})"
        parser.add_argument(f"--{flag}", metavar="N", type=natural, help=text)
    return Command(parser, _run)


def _run(arguments: Arguments) -> int:
    from sandbox_agent.cli.fleet.local import run_local_fleet

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    asked = {name: arguments.number(name) for name in ("servers", "gateways", "nodes")}
    return run_local_fleet(asked["servers"] or 3, asked["gateways"] or 2, asked["nodes"] or 3)


def _init() -> Command:
    return Command(_with_directory("init", INIT), _make)


def _make(arguments: Arguments) -> int:
    from sandbox_agent.cli.fleet.directory import FleetDirectory

    fleet = FleetDirectory(_directory(arguments))
    fleet.init()
    rights = fleet.write_rights()
    print_facts([("gateway's key", str(fleet.gateway_key)), ("for NATS servers", f"include {rights}")])
    return 0


def _invite() -> Command:
    parser = _with_directory("invite", INVITE, "NODE")
    parser.add_argument("node", metavar="NODE", help="The node's name: small letters, digits and hyphens.")
    return Command(parser, _add)


def _add(arguments: Arguments) -> int:
    from sandbox_agent.cli.fleet.directory import FleetDirectory

    node = arguments.word("node") or ""
    fleet = FleetDirectory(_directory(arguments))
    key = fleet.invite(node)
    rights = fleet.write_rights()
    start = f"sandbox-agent server --join nats://… --node {node} --creds {key.name}"
    print_facts([("key", str(key)), ("rights", str(rights)), ("on the node", start)])
    return 0


def _forget() -> Command:
    parser = _with_directory("forget", FORGET, "NODE")
    parser.add_argument("node", metavar="NODE", help="The node's name.")
    return Command(parser, _remove)


def _remove(arguments: Arguments) -> int:
    from sandbox_agent.cli.fleet.directory import FleetDirectory

    fleet = FleetDirectory(_directory(arguments))
    fleet.forget(arguments.word("node") or "")
    print_facts([("rights", str(fleet.write_rights()))])
    return 0


def _with_directory(word: str, text: str, words: str = "") -> Parser:
    examples = f"examples:\n  sandbox-agent fleet {word} --dir fleet{' ' + words.lower() + '-1' if words else ''}\n"
    parser = Parser(f"sandbox-agent fleet {word}", text, examples, words)
    parser.add_argument("--dir", metavar="PATH", help="The fleet's directory. (default: fleet)")
    return parser


def _directory(arguments: Arguments) -> Path:
    return Path(arguments.word("dir") or "fleet").absolute()
