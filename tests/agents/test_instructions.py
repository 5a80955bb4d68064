"""How to get an agent, in words made from the manifest."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from sandbox_agent.agents.facts import write_instructions
from sandbox_agent.agents.manifest import Agent, load_manifest


def agent(id: str, file: Path | None = None) -> Agent:
    found = load_manifest(file).find(id)
    assert found is not None
    return found


def test_what_comes_with_us_needs_nothing() -> None:
    assert write_instructions(agent("mock")).startswith("Nothing to install: it comes with sandbox-agent.")


@pytest.mark.parametrize("id", ["claude", "codex", "opencode", "gemini", "qwen", "copilot", "pi", "goose", "amp"])
def test_an_agent_that_can_be_installed_says_the_command_its_source_and_what_it_needs(id: str) -> None:
    it = agent(id)
    text = write_instructions(it)

    assert text.startswith(f"Run: sandbox-agent agents install {id}\n")
    assert f"{it.packages[0].name}@{it.packages[0].version} of npm" in text
    assert f"what the ACP registry has as {' or '.join(it.registry)}" in text
    assert all(name in text for name in (*it.credentials, *it.credential_files))
    assert it.description in text


def test_an_agent_that_is_not_supported_says_why_and_what_would_help() -> None:
    it = replace(agent("amp"), supported=False, unsupported_reason="it speaks no ACP")

    assert write_instructions(it).startswith(f"Not supported: {it.unsupported_reason}.")
    assert "sandbox-agent agents install amp" in write_instructions(it)


def test_an_own_program_is_named_as_agents_toml_has_it(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('[agents.mine]\ncommand = ["my agent", "--acp"]')

    text = write_instructions(agent("mine", tmp_path / "agents.toml"))

    assert text == 'agents.toml runs ["my agent", "--acp"]; that program must be on PATH, or be a path that exists.'


def test_what_the_registry_alone_has_is_installed_by_its_name() -> None:
    it = Agent(id="it", title="It", description="", source="registry", command=(), env={}, registry=("it",))

    assert (
        write_instructions(it) == "Run: sandbox-agent agents install it\nIt installs what the ACP registry has as it."
    )
