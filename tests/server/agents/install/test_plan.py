"""What is to be installed for an agent: the registry wins, then the manifest's pins; versions and platforms."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sandboxagent.protocol.errors import UnknownVersion, UnsupportedAgent, UnsupportedPlatform
from sandboxagent.server.agents.install.plan import Plan, Wanted, make_plan
from sandboxagent.server.agents.install.registry import Snapshot
from sandboxagent.server.agents.install.registry_entries import Machine, parse
from sandboxagent.server.agents.manifest import Agent, load_manifest
from tests.support.package_index import entry, npx, uvx

LINUX = Machine("linux-x86_64", "linux-x64")
MAC = Machine("darwin-aarch64", "darwin-arm64")
ALPINE = Machine("linux-aarch64", "linux-arm64-musl")
WINDOWS = Machine("windows-x86_64", "windows-x64")


def agent(id: str) -> Agent:
    found = load_manifest(None).find(id)
    assert found is not None
    return found


def slug(id: str) -> Agent:
    """An agent that only the registry has."""
    return Agent(id=id, title=id, description="", source="registry", command=(), env={}, registry=(id,))


def listed(*entries: dict[str, Any]) -> Snapshot:
    content = parse(json.dumps({"version": "1.0.0", "agents": entries}).encode(), "https")
    assert content.rejected == ()
    return Snapshot(content.entries, "live", 0.0, None)


def planned(
    agent: Agent,
    *entries: dict[str, Any],
    version: str | None = None,
    process: str | None = None,
    machine: Machine = LINUX,
) -> Plan:
    return make_plan(agent, listed(*entries), None, Wanted(version, process), machine)


def archives(*platforms: str) -> dict[str, Any]:
    return {
        platform: {"archive": f"https://example.com/{platform}.tar.gz", "cmd": "./bin/it", "args": ["acp"]}
        for platform in platforms
    }


# --- where it comes from ----------------------------------------------------------------------------------------------


def test_the_registry_wins_over_our_pins() -> None:
    found = planned(agent("gemini"), npx("gemini", "@google/gemini-cli@9.0.0", args=["--new-acp"], env={"A": "b"}))

    assert (found.source, found.slug, found.version) == ("registry", "gemini", "9.0.0")
    assert (found.arguments, found.env) == (("--new-acp",), {"A": "b"})
    assert [(each.name, each.version, each.index) for each in found.packages] == [
        ("@google/gemini-cli", "9.0.0", "npm")
    ]


def test_an_agent_that_the_registry_lacks_comes_by_its_pins_and_is_marked() -> None:
    gemini = agent("gemini")
    found = planned(gemini, npx("another", "another@1.0.0"))

    assert (found.source, found.slug, found.version) == ("fallback", None, gemini.packages[0].version)
    assert found.packages == gemini.packages
    assert (found.program, found.arguments) == ("gemini", ("--acp",))


def test_why_the_registry_could_not_be_asked_is_noted() -> None:
    found = make_plan(agent("gemini"), None, "it is down", Wanted(), LINUX)

    assert (found.source, found.note) == ("fallback", "it is down")


def test_the_first_slug_that_the_registry_has_is_taken() -> None:
    old = npx("claude-code-acp", "claude-code-acp@1.0.0")

    assert planned(agent("claude"), old).slug == "claude-code-acp"
    assert planned(agent("claude"), old, npx("claude-acp", "claude-acp@2.0.0")).slug == "claude-acp"


def test_packages_are_preferred_to_archives_and_npm_to_pypi() -> None:
    all_ways = entry("it", npx={"package": "n@1"}, uvx={"package": "u==1"}, binary=archives("linux-x86_64"))

    assert planned(slug("it"), all_ways).packages[0].name == "n"
    del all_ways["distribution"]["npx"]
    assert (planned(slug("it"), all_ways).packages[0].name, planned(slug("it"), all_ways).archive) == ("u", None)


def test_a_package_of_pypi_is_started_by_its_own_name() -> None:
    found = planned(slug("it"), uvx("it", "py-agent[acp]==2.1", args=["serve"]))

    assert [(each.name, each.version, each.index) for each in found.packages] == [("py-agent[acp]", "2.1", "pypi")]
    assert (found.program, found.arguments) == ("py-agent", ("serve",))


def test_a_package_without_a_version_has_the_entrys() -> None:
    assert planned(slug("it"), entry("it", version="3.2.1", npx={"package": "@scope/name"})).version == "3.2.1"
    assert planned(slug("it"), npx("it", "@scope/name")).program == "name"


def test_what_we_know_of_a_package_holds_for_the_registrys_version_of_it_too() -> None:
    qwen = agent("qwen")
    pinned = f"@qwen-code/qwen-code@{qwen.packages[0].version}"
    same, newer = planned(qwen, npx("qwen-code", pinned)), planned(qwen, npx("qwen-code", "@qwen-code/qwen-code@99.0"))

    assert same.packages[0] == qwen.packages[0]
    assert (newer.packages[0].program, newer.packages[0].optional) == ("cli.js", False)
    assert newer.packages[0].integrity is None, "the pin is of another version"
    assert newer.program == "qwen"


def test_an_agent_that_nobody_has_a_package_for_says_why() -> None:
    with pytest.raises(UnsupportedAgent, match="it speaks no ACP"):
        planned(replace(agent("amp"), packages=(), supported=False, unsupported_reason="it speaks no ACP"))
    with pytest.raises(UnsupportedAgent, match="does not have it"):
        planned(slug("it"))


def test_the_registrys_adapter_wins_over_ours_unless_ours_is_asked_for_by_name(tmp_path: Path) -> None:
    listed = npx("amp-acp", "amp-acp@1.0.0")
    (tmp_path / "agents.toml").write_text("[agents.amp]\nregistry = []\n")
    ours = load_manifest(tmp_path / "agents.toml").find("amp")
    assert ours is not None

    assert planned(agent("amp"), listed).source == "registry"
    chosen = planned(ours, listed)
    assert (chosen.source, chosen.packages) == ("fallback", agent("amp").packages)


def test_a_users_own_slug_is_taken_instead_of_our_pins(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('[agents.gemini]\nregistry = "my-gemini"')
    mine = load_manifest(tmp_path / "agents.toml").find("gemini")
    assert mine is not None

    found = planned(mine, npx("gemini", "@google/gemini-cli@9"), npx("my-gemini", "mine@1.0.0"))

    assert (found.slug, found.packages[0].name) == ("my-gemini", "mine")
    with pytest.raises(UnsupportedAgent):
        planned(mine, npx("gemini", "@google/gemini-cli@9"))


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_that_is_asked_for_is_taken_without_the_pin_of_another() -> None:
    gemini = agent("gemini")
    for found in (
        planned(gemini, version="0.1.2"),
        planned(gemini, process="0.1.2"),
        planned(gemini, npx("gemini", "@google/gemini-cli@9"), version="0.1.2"),
    ):
        assert (found.version, found.packages[0].version, found.packages[0].integrity) == ("0.1.2", "0.1.2", None)
    assert planned(gemini, version=gemini.packages[0].version).packages[0].integrity is not None


def test_an_agent_that_is_one_program_has_one_version() -> None:
    assert planned(agent("gemini"), version="1.0.0", process="1.0.0").version == "1.0.0"
    with pytest.raises(UnknownVersion, match="is one program"):
        planned(agent("gemini"), version="1.0.0", process="2.0.0")


def test_an_adapter_and_the_agent_behind_it_have_versions_of_their_own() -> None:
    found = planned(agent("claude"), version="5.0.0", process="0.1.0")

    assert (found.version, found.packages[0].version) == ("0.1.0", "0.1.0")
    assert found.native is not None
    assert (found.native.name, found.native.version) == ("@anthropic-ai/claude-code-linux-x64", "5.0.0")
    assert planned(agent("claude")).native is None, "the adapter brings its own"


def test_an_adapter_that_brings_no_agent_gets_the_pinned_one() -> None:
    pi = agent("pi")
    assert pi.native is not None
    native, other = planned(pi).native, planned(pi, version="0.1.0").native

    assert native is not None
    assert other is not None
    assert (native.version, native.integrity) == (pi.native.version, pi.native.integrity)
    assert (other.version, other.integrity) == ("0.1.0", None)


def test_an_archive_has_no_other_version_than_the_registrys() -> None:
    it = entry("it", version="1.2.3", binary=archives("linux-x86_64"))

    assert planned(slug("it"), it, version="1.2.3").version == "1.2.3"
    with pytest.raises(UnknownVersion) as unknown:
        planned(slug("it"), it, version="1.2.4")
    assert unknown.value.fields["offered"] == ["1.2.3"]


def test_another_version_than_the_archives_comes_as_our_package_where_there_is_one() -> None:
    it = entry("opencode", version="9.0.0", binary=archives("linux-x86_64"))

    assert planned(agent("opencode"), it).archive is not None
    older = planned(agent("opencode"), it, version="1.0.0")
    assert (older.source, older.packages[0].name, older.version) == ("fallback", "opencode-linux-x64", "1.0.0")


@pytest.mark.parametrize(
    "version",
    [
        *("file:../x", "npm:evil", "npm:evil@1", "git+ssh://x/y", "https://x/y.tgz", "../x", "/etc", "~/x", "a/b"),
        *(
            "-g",
            "--registry=x",
            "",
            " ",
            "1 2",
            "1\n2",
            ">=1",
            "^1",
            "*",
            "1||2",
            "x@y",
            "1.0.tgz",
            "1.TAR.GZ",
            "1.tar",
        ),
        *("1" * 101, "ⅷ", "1;rm", "$(x)", "1\0"),
    ],
)
def test_what_is_not_a_version_is_refused_before_anybody_is_asked(version: str) -> None:
    for wanted in ({"agent": version}, {"process": version}):
        with pytest.raises(UnknownVersion, match="is not a version"):
            Wanted(**wanted)


@pytest.mark.parametrize("version", ["1.2.3", "1", "0.0.1-rc.1+build_5", "latest", "v1", "2025.1.1.dev3", "1" * 100])
def test_a_version_may_have_letters_dots_and_signs(version: str) -> None:
    assert Wanted(version).agent == version


# --- platforms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "package"),
    [
        (LINUX, "opencode-linux-x64"),
        (MAC, "opencode-darwin-arm64"),
        (ALPINE, "opencode-linux-arm64-musl"),
    ],
)
def test_a_package_by_platform_is_that_of_the_machine(machine: Machine, package: str) -> None:
    assert planned(agent("opencode"), machine=machine).packages[0].name == package


@pytest.mark.parametrize("machine", [LINUX, MAC, WINDOWS])
def test_an_archive_is_that_of_the_machine(machine: Machine) -> None:
    it = entry("it", binary=archives("linux-x86_64", "darwin-aarch64", "windows-x86_64"))

    found = planned(slug("it"), it, machine=machine)

    assert found.archive is not None
    assert found.archive.archive.endswith(f"/{machine.registry}.tar.gz")
    assert (found.program, found.arguments, found.packages) == ("./bin/it", ("acp",), ())


def test_an_archive_for_other_machines_only_is_refused_with_what_there_is() -> None:
    it = entry("it", binary=archives("linux-x86_64", "darwin-aarch64"))

    with pytest.raises(UnsupportedPlatform) as unsupported:
        planned(slug("it"), it, machine=WINDOWS)

    assert unsupported.value.fields == {
        "agent": "it",
        "platform": "windows-x86_64",
        "offered": ["darwin-aarch64", "linux-x86_64"],
    }


def test_an_archive_for_other_machines_does_not_keep_us_from_our_own_package() -> None:
    it = entry("opencode", binary=archives("windows-x86_64"))

    assert planned(agent("opencode"), it).source == "fallback"


def test_our_packages_say_which_machines_they_are_for() -> None:
    with pytest.raises(UnsupportedPlatform) as unsupported:
        planned(agent("claude"), machine=WINDOWS)

    assert unsupported.value.fields["offered"] == list(agent("claude").platforms)
    assert planned(agent("gemini"), machine=WINDOWS).source == "fallback", "it is JavaScript and nothing else"


def test_every_supported_agent_can_be_had_on_linux_and_on_a_mac() -> None:
    for each in load_manifest(None).agents:
        if each.installable and each.supported:
            for machine in (
                LINUX,
                Machine("linux-aarch64", "linux-arm64"),
                MAC,
                Machine("darwin-x86_64", "darwin-x64"),
            ):
                assert planned(each, machine=machine).packages, (each.id, machine)
