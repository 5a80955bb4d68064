"""`sandbox-agent credentials check`: which credentials agents would find. Names and paths, never a value."""

import os
from collections.abc import Mapping

from sandbox_agent.cli.flags import add_flags, agent_settings
from sandbox_agent.cli.grammar import Arguments, Command, Group, Parser, Word
from sandbox_agent.cli.output import EXIT_FAILED, complain, print_json, print_table
from sandbox_agent.settings import Settings

_WHERE = ("config_dir", "data_dir", "agents_dir", "agents_file")

CHECK = """\
Show which credentials exist: environment variables and files. Their values are never printed. An
agent can reach a model if one of its credentials is found. A server has its own environment, so run
this where the server runs.

The exit code is 0 if every installed agent has a credential or needs none, else 1. With a name,
only that agent is checked, installed or not.
"""


def group() -> Group:
    """All commands about credentials."""
    return Group(
        "sandbox-agent credentials",
        "See which credentials agents can find. Never prints a value.",
        "  sandbox-agent credentials check\n",
        {"check": Word("which credentials were found, by name", _check)},
    )


def _check() -> Command:
    examples = (
        "examples:\n"
        "  sandbox-agent credentials check\n"
        "  sandbox-agent credentials check claude && echo ready\n"
        "  sandbox-agent credentials check --json\n"
    )
    parser = Parser("sandbox-agent credentials check", CHECK, examples, "[AGENT]")
    parser.add_argument("agent", metavar="AGENT", nargs="?", help="Only this agent.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    add_flags(parser, _WHERE)
    return Command(parser, _run)


def _run(arguments: Arguments) -> int:
    settings = agent_settings(arguments)
    return check(settings, os.environ, arguments.word("agent"), as_json=arguments.switch("json"))


def check(settings: Settings, environ: Mapping[str, str], name: str | None, *, as_json: bool) -> int:
    """Print what is found, of one agent or of all; gives the exit code."""
    import msgspec

    from sandbox_agent.agents.depot import open_catalog
    from sandbox_agent.agents.facts import find_credentials, has_credentials

    catalog = open_catalog(settings, environ)
    agents = catalog.agents() if name is None else [catalog.agent(name)]
    found = [(agent.id, each) for agent in agents for each in find_credentials(agent, environ)]
    counted = [agent for agent in agents if name is not None or catalog.program(agent) is not None]
    missing = [agent.id for agent in counted if not has_credentials(agent, environ)]
    if as_json:
        rows = [{"agent": id, "name": each.name, "kind": each.kind, "found": each.found} for id, each in found]
        print_json(msgspec.json.encode({"credentials": rows, "missing": missing}))
    else:
        if name is not None and not found:
            print(f"{agents[0].id} needs no credentials that sandbox-agent knows of")
        else:
            rows = [(id, each.name, each.kind, "yes" if each.found else "no") for id, each in found]
            print_table(("agent", "name", "kind", "found"), rows)
        for id in missing:
            complain(f"agent {id} has no credentials; try: sandbox-agent agents instructions {id}")
    return EXIT_FAILED if missing else 0
