"""Write docs/reference/agents.md, the agents that sandbox-agent knows, from the manifest."""

from collections.abc import Iterable, Sequence

from sandboxagent.protocol.views import Features
from sandboxagent.server.agents.catalog import write_instructions
from sandboxagent.server.agents.manifest import Agent, Native, Package, load_manifest
from tools.reference.markdown import heading_link, row

_TOP = """\
<!-- Written by `./dev docs`; change agents/manifest.toml, not this page. -->

# Agents

The agents that sandbox-agent knows. An agent is installed when it is first used. To install it before, run
`sandbox-agent agents install <agent>` ([cli.md](cli.md)). The install looks for one of the agent's slugs in the ACP
registry. If the registry does not have it, or cannot be reached, the packages pinned here are installed. `{platform}`
stands for the machine's platform in names of packages, such as `linux-x64`.

`sandbox-agent agents list --registry` shows all other agents of the registry. Your own agents are in `agents.toml`
([configuration.md](configuration.md#agentstoml)).

"""

_PROCESSES = {"agent": "one for all sessions", "session": "one for each session"}
_PERMISSIONS = {
    "always": "asks before it acts",
    "mode": "asks in some of its modes",
    "configured": "asks if its own configuration says so",
    "never": "never asks",
}
_QUESTIONS = {
    "form": "as forms (`elicitation/create`)",
    "extension": "as `_sandboxagent/session/request_question`",
    "none": "asks none",
}


def render_agents() -> str:
    """Return the whole page."""
    agents = load_manifest(None).agents
    return _TOP + "".join(_overview(agents)) + "".join(part for agent in agents for part in _agent(agent))


def _overview(agents: Sequence[Agent]) -> Iterable[str]:
    yield row("agent", "title", "supported", "permissions", "questions") + "|---|---|---|---|---|\n"
    for agent in agents:
        supported = "yes" if agent.supported else "no"
        yield row(f"[`{agent.id}`]({heading_link(agent.id)})", agent.title, supported, *_asking(agent.features))


def _asking(features: Features | None) -> tuple[str, str]:
    return (_PERMISSIONS[features.permissions], _QUESTIONS[features.questions]) if features else ("", "")


def _agent(agent: Agent) -> Iterable[str]:
    yield f"\n## {agent.id}\n\n{agent.title}. {agent.description}\n\n"
    if not agent.supported:
        yield f"Not supported: {agent.unsupported_reason}.\n\n"
    permissions, questions = _asking(agent.features)
    facts = {
        "registry slugs": _codes(agent.registry),
        "pinned": "<br>".join(map(_pin, agent.packages)) or ("comes with sandbox-agent" if agent.command else ""),
        "the agent itself": _native(agent.native),
        "platforms": _codes(agent.platforms) or "any" if agent.packages or agent.source == "bundled" else "",
        "credentials, any one of": _codes((*agent.credentials, *agent.credential_files)),
        "further variables it may see": _codes(agent.variables),
        "variables set for it": _codes((*(f"{name}={value}" for name, value in agent.env.items()), *agent.random_env)),
        "processes": _PROCESSES[agent.isolation],
        "permissions": permissions,
        "questions": questions,
        "images in prompts": "yes" if agent.features and agent.features.images else "no",
        "models": "also models that are not in its list" if agent.any_model else "",
    }
    yield row("fact", "value") + "|---|---|\n"
    yield from (row(name, value) for name, value in facts.items() if value)
    yield f"\n```\n{write_instructions(agent)}\n```\n"


def _pin(package: Package) -> str:
    index = "PyPI" if package.index == "pypi" else "npm"
    return f"`{package.name}` {package.version} ({index})"


def _native(native: Native | None) -> str:
    if native is None:
        return ""
    if native.version is None:
        return f"comes with the package above; `--agent-version` installs another version of `{native.name}`"
    return f"`{native.name}` {native.version} (npm)"


def _codes(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
