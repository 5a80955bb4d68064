"""Which agents there are: the manifest's, the user's, the registry's, and what is installed; what is known of each.

Of credentials names and paths, never a value; how to get an agent, in words made from the manifest.
"""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from sandboxagent.protocol.errors import UnknownAgent
from sandboxagent.protocol.views import Artifact, Credential
from sandboxagent.server.agents.catalog import read_facts, write_instructions
from sandboxagent.server.agents.credentials import find_credentials, has_credentials
from sandboxagent.server.agents.install.record import Record
from sandboxagent.server.agents.launch import Launch
from sandboxagent.server.agents.manifest import Agent, load_manifest
from tests.support.package_index import npx
from tests.support.workshop import Workshop

OWN = '[agents.mine]\ncommand = ["my-agent", "--acp"]\n'


def put(shop: Workshop, id: str, slug: str | None, **facts: str) -> Record:
    """Have it installed, as far as the catalog can see."""
    folder = shop.store.begin(id)
    made = Record(
        agent=id,
        folder=folder.name,
        title=facts.get("title", id),
        description="",
        source="registry" if slug else "fallback",
        version="1.0.0",
        command=("{folder}/it",),
        env={},
        artifacts=[Artifact(kind="agent_process", name=id, version="1.0.0", path="{folder}/it", source="registry")],
        installed_at="",
        verified_at="",
        platform="",
        node="",
        registry_slug=slug,
    )
    shop.store.write(made)
    return shop.store.commit(made)


def ids(shop: Workshop) -> list[str]:
    return [agent.id for agent in shop.catalog.agents()]


def test_the_known_ones_come_first_then_the_users_then_what_else_is_installed(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, agents=OWN)
    put(shop, "zebra", "zebra")
    put(shop, "claude", "claude-acp")

    assert ids(shop)[0] == "mock"
    assert ids(shop)[-2:] == ["mine", "zebra"]
    assert ids(shop).count("claude") == 1


def test_a_registry_slug_is_another_name_of_an_agent_that_we_know(tmp_path: Path) -> None:
    catalog = Workshop(tmp_path).catalog

    for name in ("claude", "claude-acp", "claude-code-acp"):
        assert catalog.agent(name).id == "claude"
        assert asyncio.run(catalog.find(name)).id == "claude"
    assert catalog.agent("opencode").id == "opencode"


def test_whatever_the_registry_has_can_be_named_once_it_has_been_asked(tmp_path: Path) -> None:
    catalog = Workshop(tmp_path, None, npx("some-agent", "some-agent@1.0.0")).catalog
    with pytest.raises(UnknownAgent):
        catalog.agent("some-agent")

    found = asyncio.run(catalog.find("some-agent"))

    assert (found.id, found.title, found.source, found.registry) == (
        "some-agent",
        "Some-Agent",
        "registry",
        ("some-agent",),
    )
    assert catalog.agent("some-agent") == found


def test_a_name_that_nobody_knows_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, agents=OWN)
    with pytest.raises(UnknownAgent) as unknown:
        asyncio.run(shop.catalog.find("nobody"))
    assert unknown.value.fields == {"agent": "nobody", "known": ids(shop)}


@pytest.mark.parametrize("copy", ["a copy", "no copy"])
def test_when_the_registry_cannot_be_read_an_unknown_name_says_so(tmp_path: Path, copy: str) -> None:
    shop = Workshop(tmp_path)
    if copy == "a copy":
        asyncio.run(shop.catalog.all())
    shop.registry_file.write_text("no JSON")

    with pytest.raises(UnknownAgent) as unknown:
        asyncio.run(shop.catalog.find("nobody"))

    assert "cannot be used" in str(unknown.value.fields["registry"])


@pytest.mark.parametrize(
    "name",
    ["../x", "..", ".", "", ".node", ".registry", "/etc", "a/b", "a\\b", "a\0b", "x" * 65, "A", "é", "\ud800", "a\n"],
)
def test_a_name_that_is_a_path_or_no_name_at_all_is_unknown_and_touches_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "shop").mkdir()
    shop = Workshop(tmp_path / "shop")
    (shop.store.directory / ".node").mkdir(parents=True)
    (shop.store.directory.parent / "x").mkdir()
    for place in (shop.store.directory / ".node", shop.store.directory.parent / "x", shop.store.directory):
        (place / "installed.json").write_text("{}")

    with pytest.raises(UnknownAgent):
        asyncio.run(shop.catalog.find(name))
    with pytest.raises(UnknownAgent):
        shop.catalog.agent(name)


def test_all_has_the_registrys_too_each_once(tmp_path: Path) -> None:
    entries = [npx(slug, f"{slug}@1.0.0") for slug in ("claude-acp", "gemini", "zebra", "yak")]
    shop = Workshop(tmp_path, None, *entries, agents='[agents.mine]\nregistry = "yak"')
    put(shop, "zebra", "zebra")

    found = [agent.id for agent in asyncio.run(shop.catalog.all())]

    assert sorted(found) == sorted(set(found))
    assert found[-2:] == ["mine", "zebra"]
    shop.registry_file.write_text(json.dumps({"version": "1.0.0", "agents": [*entries, npx("new", "new@1.0.0")]}))
    assert [agent.id for agent in asyncio.run(shop.catalog.all())][-1] == "new"


def test_all_is_what_is_known_when_the_registry_cannot_be_read(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.registry_file.write_text("no JSON")

    assert [agent.id for agent in asyncio.run(shop.catalog.all())] == ids(shop)


def test_an_own_program_is_started_as_it_is_and_is_there_when_it_can_be_found(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, agents=OWN, environment={"PATH": str(tmp_path)})
    mine = shop.catalog.agent("mine")
    assert shop.catalog.launch(mine) == Launch(("my-agent", "--acp"))
    assert (shop.catalog.program(mine), shop.catalog.record(mine)) == (None, None)

    (tmp_path / "my-agent").write_text("#!/bin/sh\n")
    (tmp_path / "my-agent").chmod(0o755)

    assert shop.catalog.program(mine) == str(tmp_path / "my-agent")


def test_own_program_is_searched_for_on_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "my-agent").write_text("#!/bin/sh\n")
    (tmp_path / "my-agent").chmod(0o755)
    shop = Workshop(tmp_path, agents=f'{OWN}env = {{ PATH = "{tmp_path}" }}', environment={"PATH": "/nowhere"})

    assert shop.catalog.program(shop.catalog.agent("mine")) == str(tmp_path / "my-agent")


def test_installable_agent_has_a_launch_only_after_its_install(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    claude = shop.catalog.agent("claude")
    assert (shop.catalog.launch(claude), shop.catalog.program(claude)) == (None, None)

    made = put(shop, "claude", "claude-acp")

    launch = shop.catalog.launch(claude)
    assert launch is not None
    assert launch.command == (f"{shop.store.folder(made)}/it",)
    assert shop.catalog.program(claude) == launch.command[0]


def test_a_command_in_agents_toml_is_run_whatever_is_installed(tmp_path: Path) -> None:
    put(Workshop(tmp_path), "claude", "claude-acp")
    shop = Workshop(tmp_path, agents='[agents.claude]\ncommand = ["my-claude"]')

    claude = shop.catalog.agent("claude")

    assert shop.catalog.launch(claude) == Launch(("my-claude",))
    assert shop.catalog.record(claude) is None


def unsupported(agent: Agent) -> Agent:
    """An agent for which there is nothing to install but what the registry may have."""
    reason = "it speaks no ACP"
    return replace(agent, packages=(), adapter=None, supported=False, unsupported_reason=reason, source="registry")


def test_agent_without_package_is_supported_once_registered_or_installed(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    amp = unsupported(shop.catalog.agent("amp"))
    assert not shop.catalog.supported(amp)
    assert read_facts(amp, shop.catalog, {}).instructions.startswith("Not supported: it speaks no ACP.")
    assert shop.catalog.supported(shop.catalog.agent("claude"))

    shop.registry_file.write_text(json.dumps({"version": "1.0.0", "agents": [npx("amp-acp", "amp-acp@1.0.0")]}))
    asyncio.run(shop.catalog.all())
    assert shop.catalog.supported(amp)
    assert read_facts(amp, shop.catalog, {}).instructions.startswith("Run: sandbox-agent agents install amp\n")

    (tmp_path / "other").mkdir()
    installed = Workshop(tmp_path / "other")
    put(installed, "amp", "amp-acp")
    assert installed.catalog.supported(amp)


def test_features_of_our_adapter_are_not_claimed_for_the_registrys(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    put(shop, "amp", None)
    assert shop.catalog.agent("amp").features == shop.catalog.manifest.agents[-1].features

    put(shop, "amp", "amp-acp")
    assert shop.catalog.agent("amp").features is None, "so no permissionMode relies on its asking"
    assert next(agent for agent in shop.catalog.agents() if agent.id == "amp").features is None


def test_where_an_agent_comes_from_is_said_before_and_after_it_is_installed(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, agents=OWN)
    claude = shop.catalog.agent("claude")
    assert {id: shop.catalog.source(shop.catalog.agent(id)) for id in ("mock", "mine", "claude", "amp")} == {
        "mock": "bundled",
        "mine": "path",
        "claude": "registry",
        "amp": "registry",
    }
    asyncio.run(shop.catalog.all())
    assert shop.catalog.source(claude) == "fallback", "the registry was read, and does not have it"

    entries = [npx("claude-acp", "claude-acp@1.0.0")]
    shop.registry_file.write_text(json.dumps({"version": "1.0.0", "agents": entries}))
    asyncio.run(shop.catalog.all())
    assert shop.catalog.source(claude) == "registry"

    put(shop, "claude", None)
    assert shop.catalog.source(claude) == "fallback", "that is what is there"


def one_with(*variables: str, files: tuple[str, ...] = (), **env: str) -> Agent:
    return Agent(
        id="it",
        title="It",
        description="",
        source="path",
        command=("it",),
        env=env,
        credentials=variables,
        credential_files=files,
    )


def test_an_agent_that_needs_none_has_all_it_needs() -> None:
    assert find_credentials(one_with(), {}) == []
    assert has_credentials(one_with(), {})


def test_one_of_its_variables_is_enough() -> None:
    it = one_with("A_KEY", "B_KEY")

    assert find_credentials(it, {"B_KEY": "x"}) == [
        Credential("variable", "A_KEY", found=False),
        Credential("variable", "B_KEY", found=True),
    ]
    assert has_credentials(it, {"B_KEY": "x"})
    assert not has_credentials(it, {"B_KEY": "", "C_KEY": "x"})


def test_what_agents_toml_puts_into_its_environment_counts() -> None:
    assert has_credentials(one_with("A_KEY", A_KEY="x"), {})
    assert not has_credentials(one_with("A_KEY", A_KEY=""), {"A_KEY": "x"}), "it is taken away there"


def test_one_of_its_files_is_enough_too(tmp_path: Path) -> None:
    it = one_with("A_KEY", files=("~/.it/auth.json",))
    environ = {"HOME": str(tmp_path)}
    assert not has_credentials(it, environ)

    (tmp_path / ".it").mkdir()
    assert not has_credentials(it, environ)
    (tmp_path / ".it" / "auth.json").write_text("{}")

    assert find_credentials(it, environ)[1] == Credential("file", "~/.it/auth.json", found=True)
    assert has_credentials(it, environ)


def test_a_path_may_name_variables_and_without_them_there_is_no_such_file(tmp_path: Path) -> None:
    it = one_with(files=("$IT/auth", "$IT/$ITS/auth"))
    (tmp_path / "auth").write_text("x")

    assert find_credentials(it, {}) == []
    assert find_credentials(it, {"IT": str(tmp_path)}) == [Credential("file", "$IT/auth", found=True)]
    assert [each.found for each in find_credentials(it, {"IT": str(tmp_path), "ITS": "sub"})] == [True, False]


@pytest.mark.parametrize("home", ["/proc/1/root/no", "/dev/null", "/" + "x" * 5000])
def test_a_home_that_cannot_be_looked_into_has_no_file(home: str) -> None:
    assert not has_credentials(one_with(files=("~/auth",)), {"HOME": home})


def test_no_value_is_shown() -> None:
    assert "hush" not in repr(find_credentials(one_with("A_KEY"), {"A_KEY": "hush"}))


def known(id: str, file: Path | None = None) -> Agent:
    found = load_manifest(file).find(id)
    assert found is not None
    return found


def test_what_comes_with_us_needs_nothing() -> None:
    assert write_instructions(known("mock")).startswith("Nothing to install: it comes with sandbox-agent.")


@pytest.mark.parametrize("id", ["claude", "codex", "opencode", "gemini", "qwen", "copilot", "pi", "goose", "amp"])
def test_instructions_name_install_command_source_and_credentials(id: str) -> None:
    it = known(id)
    text = write_instructions(it)

    assert text.startswith(f"Run: sandbox-agent agents install {id}\n")
    assert f"{it.packages[0].name}@{it.packages[0].version} of npm" in text
    assert f"what the ACP registry has as {' or '.join(it.registry)}" in text
    assert all(name in text for name in (*it.credentials, *it.credential_files))
    assert it.description in text


def test_an_agent_that_is_not_supported_says_why_and_what_would_help() -> None:
    it = replace(known("amp"), supported=False, unsupported_reason="it speaks no ACP")

    assert write_instructions(it).startswith(f"Not supported: {it.unsupported_reason}.")
    assert "sandbox-agent agents install amp" in write_instructions(it)


def test_an_own_program_is_named_as_agents_toml_has_it(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('[agents.mine]\ncommand = ["my agent", "--acp"]')

    text = write_instructions(known("mine", tmp_path / "agents.toml"))

    assert text == 'agents.toml runs ["my agent", "--acp"]; that program must be on PATH, or be a path that exists.'


def test_what_the_registry_alone_has_is_installed_by_its_name() -> None:
    it = Agent(id="it", title="It", description="", source="registry", command=(), env={}, registry=("it",))

    assert (
        write_instructions(it) == "Run: sandbox-agent agents install it\nIt installs what the ACP registry has as it."
    )
