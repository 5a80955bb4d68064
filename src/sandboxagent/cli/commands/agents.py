"""Run `sandbox-agent agents …` and `sandbox-agent credentials check`."""

import os
from collections.abc import Callable, Mapping

from sandboxagent.cli.flags import add_flags, agent_settings
from sandboxagent.cli.output import EXIT_FAILED, complain, print_json, print_table
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand
from sandboxagent.core.settings import Settings

_PLACES = ("config_dir", "data_dir", "agents_dir", "agents_file")

EXAMPLES = """\
  sandbox-agent agents list
      all agents, and which are installed
  sandbox-agent agents install claude codex
      install two agents, one after the other
  sandbox-agent agents instructions gemini
      what it needs to reach a model
"""


def agents_group() -> CommandGroup:
    """Make the group `agents`."""
    description = (
        "List, install and remove agents. Needs no server, and does not disturb a running one:\n"
        "both use the same directory, set by the same options."
    )
    return CommandGroup(
        "sandbox-agent agents",
        description,
        EXAMPLES,
        {
            "list": Subcommand("all agents, and which are installed", _list),
            "show": Subcommand("details of one agent", _show),
            "install": Subcommand("install agents, or change their version", _install),
            "uninstall": Subcommand("remove installed agents", _uninstall),
            "instructions": Subcommand("how to install an agent, and what it needs", _instructions),
        },
    )


def _list() -> Command:
    parser = _parser(
        "list",
        "",
        "List the agents: those that sandbox-agent knows, your own, and any others that are installed.",
        "  sandbox-agent agents list\n"
        "  sandbox-agent agents list --registry\n"
        "      also all other agents of the ACP registry\n"
        "  sandbox-agent agents list --json | jq -r '.agents[] | select(.installed) | .id'\n",
    )
    parser.add_argument("--registry", "--all", action="store_true", help="Add all agents of the ACP registry.")
    return _command(parser, _run_list)


def _show() -> Command:
    parser = _parser(
        "show",
        "AGENT",
        "Show all facts about one agent: programs, hashes, when it was verified, credentials by name.\n"
        "Models and modes are shown once the agent has reported them.",
        "  sandbox-agent agents show claude\n"
        "  sandbox-agent agents show claude --models\n"
        "  sandbox-agent agents show claude --json\n",
    )
    parser.add_argument("agent", metavar="AGENT", help="Its id, or its slug in the ACP registry.")
    parser.add_argument(
        "--models",
        action="store_true",
        help="Ask the agent for its models and modes if they are not known; this starts it for a moment.",
    )
    return _command(parser, _run_show)


def _install() -> Command:
    parser = _parser(
        "install",
        "AGENT...",
        "Install agents, one after the other. Each is fetched into a new directory, started once to check\n"
        "that it works, and only then put in place; a failed or interrupted install leaves nothing behind.\n"
        "The exit code is 0 if all are installed, 1 if one is not, 130 after Ctrl-C.",
        "  sandbox-agent agents install claude\n"
        "  sandbox-agent agents install codex --agent-process-version 2.6.0\n"
        "  sandbox-agent agents install claude gemini --reinstall\n",
    )
    parser.add_argument("agents", metavar="AGENT", nargs="+", help="Its id, or its slug in the ACP registry.")
    add_install_flags(parser)
    return _command(parser, _run_install, "install_timeout")


def add_install_flags(parser: Parser) -> None:
    """Add the flags of an install."""
    parser.add_argument("--reinstall", action="store_true", help="Install it again, even if it is already installed.")
    parser.add_argument("--agent-version", metavar="VERSION", help="Version of the agent itself.")
    parser.add_argument(
        "--agent-process-version",
        metavar="VERSION",
        help="Version of the program that speaks ACP for it, if that is a separate one.",
    )


def _uninstall() -> Command:
    parser = _parser(
        "uninstall",
        "AGENT...",
        "Remove installed agents. A running agent keeps running; its files are deleted after it has ended.\n"
        "Removing an agent that is not installed is not an error.",
        "  sandbox-agent agents uninstall gemini\n",
    )
    parser.add_argument("agents", metavar="AGENT", nargs="+", help="Its id, or its slug in the ACP registry.")
    return _command(parser, _run_uninstall)


def _instructions() -> Command:
    parser = _parser(
        "instructions",
        "[AGENT]",
        "Show how to install an agent and what it needs to reach a model; without a name, for all agents.",
        "  sandbox-agent agents instructions\n  sandbox-agent agents instructions claude\n",
    )
    parser.add_argument("agent", metavar="AGENT", nargs="?", help="Its id, or its slug in the ACP registry.")
    return _command(parser, _run_instructions)


def _parser(name: str, words: str, description: str, examples: str) -> Parser:
    return Parser(f"sandbox-agent agents {name}", description, f"examples:\n{examples}", words)


def _command(parser: Parser, act: Callable[[ParsedArguments], int], *more: str) -> Command:
    """Make a command with the flags that all commands of the group have, and those of the options `more`."""
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    add_flags(parser, {*_PLACES, "acp_registry_url", *more})
    return Command(parser, act)


# --- the work ---------------------------------------------------------------------------------------------------------


def _run_list(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.commands.local_agents import print_list

    settings = agent_settings(arguments)
    print_list(settings, os.environ, registry=arguments.switch("registry"), as_json=arguments.switch("json"))
    return 0


def _run_show(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.commands.local_agents import print_agent

    name = arguments.word("agent")
    assert name is not None
    asking, as_json = arguments.switch("models"), arguments.switch("json")
    print_agent(agent_settings(arguments), os.environ, name, asking=asking, as_json=as_json)
    return 0


def _run_instructions(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.commands.local_agents import print_instructions

    settings, name = agent_settings(arguments), arguments.word("agent")
    print_instructions(settings, os.environ, name, as_json=arguments.switch("json"))
    return 0


def _run_install(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.commands.local_agents import Outcomes, install, run_undoing
    from sandboxagent.protocol.views import InstallRequest
    from sandboxagent.server.agents.install.plan import Wanted

    agent, process = arguments.word("agent_version"), arguments.word("agent_process_version")
    Wanted(agent, process)  # An invalid version is invalid for every agent: report it once.
    outcomes = Outcomes(as_json=arguments.switch("json"))
    asked = InstallRequest(arguments.switch("reinstall"), agent, process)
    run_undoing(install(agent_settings(arguments), arguments.words("agents"), asked, outcomes.tell))
    return outcomes.finish()


def _run_uninstall(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.commands.local_agents import Outcomes, run_undoing, uninstall

    outcomes = Outcomes(as_json=arguments.switch("json"))
    run_undoing(uninstall(agent_settings(arguments), arguments.words("agents"), outcomes.tell))
    return outcomes.finish()


CHECK = """\
Show which credentials exist: environment variables and files. Their values are never printed. An
agent needs one of its credentials to reach a model. One that is found may still be wrong or expired.

If a server runs on the data directory, the command asks that server, because agents see its
environment, not yours. To pass it a variable that you have set since: sandbox-agent daemon restart

The exit code is 0 if every installed agent has a credential or needs none, else 1. With a name,
only that agent is checked, installed or not.
"""


def credentials_group() -> CommandGroup:
    """Make the group `credentials`."""
    return CommandGroup(
        "sandbox-agent credentials",
        "See which credentials agents can find. Never prints a value.",
        "  sandbox-agent credentials check\n",
        {"check": Subcommand("which credentials were found, by name", _check)},
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
    add_flags(parser, _PLACES)
    return Command(parser, _run)


def _run(arguments: ParsedArguments) -> int:
    settings = agent_settings(arguments)
    return check(settings, os.environ, arguments.word("agent"), as_json=arguments.switch("json"))


def check(settings: Settings, environ: Mapping[str, str], name: str | None, *, as_json: bool) -> int:
    """Print which credentials were found, of one agent or of all. Return the exit code."""
    import msgspec

    from sandboxagent.cli.daemon import find_seen_credentials
    from sandboxagent.server.agents.build import open_catalog
    from sandboxagent.server.agents.credentials import find_credentials

    catalog = open_catalog(settings, environ)
    agents = catalog.agents() if name is None else [catalog.agent(name)]
    seen = find_seen_credentials(settings)
    known = {agent.id: (seen and seen.of(agent.id)) or find_credentials(agent, environ) for agent in agents}
    found = [(id, each) for id, credentials in known.items() for each in credentials]
    counted = [agent.id for agent in agents if name is not None or catalog.program(agent) is not None]
    missing = [id for id in counted if known[id] and not any(each.found for each in known[id])]
    if as_json:
        rows = [{"agent": id, "name": each.name, "kind": each.kind, "found": each.found} for id, each in found]
        where = None if seen is None else seen.url
        print_json(msgspec.json.encode({"server": where, "credentials": rows, "missing": missing}))
    else:
        if seen is not None:
            complain(f"as the running server sees them: {seen.url}")
        if name is not None and not found:
            print(f"{agents[0].id} needs no credentials that sandbox-agent knows of")
        else:
            rows = [(id, each.name, each.kind, "yes" if each.found else "no") for id, each in found]
            print_table(("agent", "name", "kind", "found"), rows)
        for id in missing:
            mine = [each.name for each in known[id] if each.kind == "variable" and environ.get(each.name)]
            complain(f"agent {id} has no credentials; {_advice(id, mine if seen else [])}")
    return EXIT_FAILED if missing else 0


def _advice(agent: str, mine: list[str]) -> str:
    if mine:
        return f"your shell has {', '.join(mine)}, but the server does not; pass it on: sandbox-agent daemon restart"
    return f"try: sandbox-agent agents instructions {agent}"
