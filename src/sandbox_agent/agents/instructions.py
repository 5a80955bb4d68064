"""How to get an agent and let it reach a model, in words for people; made from the manifest."""

import json

from sandbox_agent.agents.manifest import Agent


def instructions(agent: Agent) -> str:
    """A few lines: what to run, what it needs, what to know."""
    steps = [_install(agent)]
    if agent.credentials or agent.credential_files:
        steps.append(f"It reaches a model when {_needs(agent)}.")
    if agent.description:
        steps.append(agent.description)
    return "\n".join(steps)


def _install(agent: Agent) -> str:
    if agent.source == "bundled":
        return "Nothing to install: it comes with sandbox-agent."
    if agent.source == "path":
        command = json.dumps(agent.command, ensure_ascii=False)
        return f"agents.toml runs {command}; that program must be on PATH, or be a path that exists."
    line = f"Run: sandbox-agent agents install {agent.id}"
    slugs = " or ".join(agent.registry)
    if not agent.supported:
        return f"Not supported: {agent.unsupported_reason}. Where the registry has {slugs}: {line[5:]}"
    pins = ", ".join(f"{each.name}@{each.version}" for each in agent.packages)
    where = [f"what the ACP registry has as {slugs}"] if slugs else []
    where += [f"{pins} of {'PyPI' if agent.packages[0].index == 'pypi' else 'npm'}"] if pins else []
    return f"{line}\nIt installs {', else '.join(where)}."


def _needs(agent: Agent) -> str:
    variables = ", ".join(agent.credentials)
    files = ", ".join(agent.credential_files)
    either = [f"the server has one of these variables: {variables}"] if variables else []
    either += [f"one of these files is there: {files}"] if files else []
    return ", or ".join(either)
