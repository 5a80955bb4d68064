"""Define the command line of `sandbox-agent fleet …`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxagent.cli.output import one_line, print_facts, print_json, print_table
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand, natural
from sandboxagent.core.settings.values import AGENT, LABEL, NATS, Given
from sandboxagent.protocol.errors import SettingsError

if TYPE_CHECKING:
    from sandboxagent.cli.fleet.operate import Servers

EXAMPLES = """\
  sandbox-agent fleet up
  sandbox-agent fleet init --dir fleet
  sandbox-agent fleet invite --dir fleet box-1
  sandbox-agent fleet status --dir fleet --join nats://nats.example:4222
"""

UP = """\
Run a whole fleet on this machine: NATS servers, gateways and nodes. Prints commands to try. Ctrl-C
stops everything and deletes its files. Needs nats-server 2.12 or newer on the PATH.
"""

UP_EXAMPLES = """\
examples:
  sandbox-agent fleet up
  sandbox-agent fleet up --nodes 1 --gateways 1 --servers 1
"""

INIT = """\
Make a directory with the gateways' key and authorization.conf, which has the rights of all nodes. NATS
servers include that file. Keep the directory where only you can read it.
"""

INVITE = """\
Make a key for a node. With it, a server can publish as this node, and do nothing else. Have the NATS
servers read authorization.conf again (nats-server --signal reload), and give the key to the node.
"""

STATUS = """\
Show the nodes of a running fleet, with the bytes of each log that wait to be published, and its
streams, with their leaders and the servers that are behind.
"""

DRAIN = """\
Open no new sessions at a node. The sessions that it has go on. --undo ends this.
"""

PIN = """\
Set the labels of a node and the agents that it may run. The fleet then ignores the node's own report
of them, and opens new sessions there only for these labels and agents. The node's key proves which
node it is. Without --agent, it may run any agent. --undo ends this.
"""

PIN_EXAMPLES = """\
examples:
  sandbox-agent fleet pin --dir fleet --join nats://nats.example:4222 box-1 --label zone=eu --agent claude
"""

FORGET = """\
Remove a node's key. NATS servers that read authorization.conf again (nats-server --signal reload) then
end its connection. With --join, gateways refuse the node from now on, its lease ends, and its sessions
leave the list; their events stay until they are too old. To use the name again, invite it with --join.
"""

RELOAD = "nats-server --signal reload"
"""The command that makes NATS servers read the rights again."""
DIRECTORY = "The fleet's directory. (default: fleet)"
JOIN = "A NATS server of the fleet, or each one of a cluster."
CREDS = "The gateways' key. (default: gateway.nk in the fleet's directory)"


def group() -> CommandGroup:
    """Make the group `fleet`."""
    words = {
        "up": Subcommand("run a whole fleet on this machine, to try it out", _up),
        "init": Subcommand("make the keys of a fleet", _init),
        "invite": Subcommand("make a key for a node", _invite),
        "status": Subcommand("show the nodes and streams of a fleet", _status),
        "drain": Subcommand("open no new sessions at a node", _drain),
        "pin": Subcommand("set the labels and agents of a node", _pin),
        "forget": Subcommand("remove a node", _forget),
    }
    text = "Set up a fleet of servers and look after it, or try one out on this machine."
    return CommandGroup("sandbox-agent fleet", text, EXAMPLES, words)


def _up() -> Command:
    parser = Parser("sandbox-agent fleet up", UP, UP_EXAMPLES)
    for flag, default, what in (("nodes", 3, "nodes"), ("gateways", 2, "gateways"), ("servers", 3, "NATS")):
        text = f"How many {what}{' servers' if what == 'NATS' else ''} to run. (default: {default})"
        parser.add_argument(f"--{flag}", metavar="N", type=natural, help=text)
    return Command(parser, _run)


def _run(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.fleet.local import run_local_fleet

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    asked = {name: arguments.number(name) for name in ("servers", "gateways", "nodes")}
    return run_local_fleet(asked["servers"] or 3, asked["gateways"] or 2, asked["nodes"] or 3)


def _init() -> Command:
    return Command(_with_directory("init", INIT), _make)


def _make(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.fleet.keys import FleetDirectory

    fleet = FleetDirectory(_directory(arguments))
    fleet.init()
    rights = fleet.write_rights()
    print_facts([("gateways' key", str(fleet.gateway_key)), ("for NATS servers", f"include {rights}")])
    return 0


def _invite() -> Command:
    parser = _with_directory("invite", INVITE, "NODE")
    parser.add_argument("node", metavar="NODE", help="The node's name: small letters, digits and hyphens.")
    _add_servers(parser)
    return Command(parser, _add)


def _add(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.fleet.keys import FleetDirectory

    node = arguments.word("node") or ""
    fleet = FleetDirectory(_directory(arguments))
    key = fleet.invite(node)
    rights = fleet.write_rights()
    if arguments.words("join"):
        from sandboxagent.cli.fleet import operate

        _servers(arguments).ask(lambda bus: operate.resume(bus, node))
    start = f"sandbox-agent server --join nats://… --node {node} --creds {key.name}"
    print_facts([("key", str(key)), ("rights", str(rights)), ("NATS servers", RELOAD), ("on the node", start)])
    return 0


def _status() -> Command:
    parser = _with_directory("status", STATUS)
    _add_servers(parser)
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return Command(parser, _show)


def _show(arguments: ParsedArguments) -> int:
    import msgspec

    from sandboxagent.cli.fleet import operate

    found = _servers(arguments).ask(operate.read_status)
    if arguments.switch("json"):
        print_json(msgspec.json.encode(found))
        return 0
    nodes = [
        [
            *(each.node, each.state, each.version, str(each.sessions), str(each.running), str(each.waiting)),
            *(_labels(each.labels), ", ".join(map(one_line, each.agents)), "yes" if each.pinned else "no"),
        ]
        for each in found.nodes
    ]
    titles = ["NODE", "STATE", "VERSION", "SESSIONS", "RUNNING", "WAITING BYTES", "LABELS", "AGENTS", "PINNED"]
    print_table(titles, nodes)
    for each in found.nodes:
        if each.limited:
            print(f"{each.node}: {one_line(each.limited)}")
    print()
    streams = [
        [each.name, each.leader, str(each.servers), _behind(each.behind), str(each.messages), str(each.size)]
        for each in found.streams
    ]
    print_table(["STREAM", "LEADER", "SERVERS", "BEHIND", "MESSAGES", "BYTES"], streams)
    return 0


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(one_line(f"{name}={value}") for name, value in sorted(labels.items()))


def _behind(servers: dict[str, int]) -> str:
    return ", ".join(f"{name} (away)" if lag < 0 else f"{name} ({lag})" for name, lag in servers.items())


def _drain() -> Command:
    parser = _with_directory("drain", DRAIN, "NODE")
    parser.add_argument("node", metavar="NODE", help="The node's name.")
    _add_servers(parser)
    parser.add_argument("--undo", action="store_true", help="Let the node have new sessions again.")
    return Command(parser, _set_drain)


def _set_drain(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.fleet import operate

    node = _known_node(arguments)
    undo = arguments.switch("undo")
    act = operate.resume if undo else operate.drain
    _servers(arguments).ask(lambda bus: act(bus, node), about=_stranger(arguments, node))
    print(f"{node} gets new sessions again" if undo else f"{node} drains: it gets no new sessions until drain --undo")
    return 0


def _pin() -> Command:
    parser = Parser("sandbox-agent fleet pin", PIN, PIN_EXAMPLES, "NODE")
    parser.add_argument("--dir", metavar="PATH", help=DIRECTORY)
    parser.add_argument("node", metavar="NODE", help="The node's name.")
    _add_servers(parser)
    text = "A label of the node, instead of those that it reports. May be repeated."
    parser.add_argument("--label", metavar="KEY=VALUE", action="append", help=text)
    text = "An agent that the node may run. May be repeated. (default: any)"
    parser.add_argument("--agent", metavar="AGENT", action="append", help=text)
    parser.add_argument("--undo", action="store_true", help="Use the node's own report again.")
    return Command(parser, _set_pin)


def _set_pin(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.fleet import operate

    node, undo = _known_node(arguments), arguments.switch("undo")
    given = [LABEL.value(Given(each, where="--label")) for each in arguments.words("label")]
    labels = {name: value for name, _, value in (each.partition("=") for each in given)}
    agents = [AGENT.value(Given(each, where="--agent")) for each in arguments.words("agent")]
    if undo == bool(labels or agents):
        raise SettingsError("give the node's labels and agents with --label and --agent, or --undo alone")
    servers, stranger = _servers(arguments), _stranger(arguments, node)
    if undo:
        servers.ask(lambda bus: operate.unpin(bus, node), about=stranger)
        print(f"{node} has its own labels and agents again")
        return 0
    servers.ask(lambda bus: operate.pin(bus, node, labels, agents), about=stranger)
    allowed = ", ".join(agents) or "any"
    print_facts([("node", node), ("labels", _labels(labels) or "none"), ("agents", allowed)])
    return 0


def _forget() -> Command:
    parser = _with_directory("forget", FORGET, "NODE")
    parser.add_argument("node", metavar="NODE", help="The node's name.")
    _add_servers(parser)
    return Command(parser, _remove)


def _remove(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.fleet.keys import FleetDirectory

    node = _known_node(arguments)
    fleet = FleetDirectory(_directory(arguments))
    facts: list[tuple[str, str]] = []
    if arguments.words("join"):
        from sandboxagent.cli.fleet import operate

        count = _servers(arguments).ask(lambda bus: operate.forget(bus, node), about=_stranger(arguments, node))
        facts.append(("sessions off the list", str(count)))
    if fleet.node_key(node).exists() or not arguments.words("join"):
        fleet.forget(node)
        facts += [("rights", str(fleet.write_rights())), ("NATS servers", RELOAD)]
    print_facts(facts)
    return 0


def _add_servers(parser: Parser) -> None:
    parser.add_argument("--join", metavar="URL", action="append", help=f"{JOIN} May be repeated.")
    parser.add_argument("--creds", metavar="PATH", help=CREDS)


def _servers(arguments: ParsedArguments) -> "Servers":
    from sandboxagent.cli.fleet.keys import FleetDirectory
    from sandboxagent.cli.fleet.operate import Servers

    urls = [NATS.value(Given(url, where="--join")) for url in arguments.words("join")]
    if not urls:
        raise SettingsError("name a NATS server of the fleet: --join nats://…")
    named = arguments.word("creds")
    kept = FleetDirectory(_directory(arguments)).gateway_key
    if arguments.word("dir") and not named and not kept.exists():
        raise SettingsError(f"{kept} is not there; give the directory that fleet init has made, or a key with --creds")
    key = Path(named) if named else kept if kept.exists() else None
    return Servers(urls, key)


def _stranger(arguments: ParsedArguments, node: str) -> str | None:
    """Return the node if the fleet has to know it; None for a node invited here, which may not have joined yet."""
    from sandboxagent.cli.fleet.keys import FleetDirectory

    return None if FleetDirectory(_directory(arguments)).node_key(node).exists() else node


def _known_node(arguments: ParsedArguments) -> str:
    from sandboxagent.fleet.bus import subjects

    node = arguments.word("node") or ""
    if not subjects.is_name(node):
        raise SettingsError(f"{node!r} is not a node's name, which has 1 to 40 small letters, digits and hyphens")
    return node


def _with_directory(word: str, text: str, words: str = "") -> Parser:
    examples = f"examples:\n  sandbox-agent fleet {word} --dir fleet{' ' + words.lower() + '-1' if words else ''}\n"
    parser = Parser(f"sandbox-agent fleet {word}", text, examples, words)
    parser.add_argument("--dir", metavar="PATH", help=DIRECTORY)
    return parser


def _directory(arguments: ParsedArguments) -> Path:
    return Path(arguments.word("dir") or "fleet").absolute()
