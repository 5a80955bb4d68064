"""From a plan to a folder: packages of npm and PyPI, archives, adapters and the agents behind them."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec import UNSET

from sandboxagent.protocol.errors import ChecksumMismatch, InstallFailed, SandboxAgentError
from sandboxagent.server.agents.install.installer import InstallOutcome
from sandboxagent.server.agents.install.registry_entries import current_platform, npm_platform
from tests.server.agents.install.tiny import TINY, box
from tests.support.package_index import AGENT, PackageIndex, entry, npx, packed, uvx
from tests.support.workshop import Workshop, run

BODY = AGENT.partition("\n")[2]


def output_of(command: list[str]) -> str:
    """What a program writes that is started from elsewhere, and knows nothing."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd="/", env={"PATH": "/usr/bin:/bin"}
    )
    return done.stdout


def test_npm_package_is_installed_through_a_link_and_verified(tmp_path: Path, index: PackageIndex) -> None:
    """The package is verified by its digest and by a handshake."""
    digest = index.npm("tiny-agent")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    entry = npx("tiny", "tiny-agent@1.0.0", args=["--acp"], env={"A": "b"})

    async def main() -> None:
        async with Workshop(tmp_path, index, entry, agents_dir=tmp_path / "link") as shop:
            outcome = await shop.install("tiny")
            record = outcome.record
            assert outcome == InstallOutcome(record, already=False)
            assert (record.agent, record.version, record.source) == ("tiny", "1.0.0", "registry")
            assert (record.registry_slug, record.package, record.note) == ("tiny", "tiny-agent", None)
            assert record.capabilities == {"loadSession": False, "tiny": True}
            assert record.agent_info["version"] == "1.0.0"
            assert record.command[-1] == "--acp"
            assert record.env == {"A": "b"}
            (artifact,) = record.artifacts
            assert (artifact.kind, artifact.name, artifact.integrity) == ("agent_process", "tiny-agent", digest)
            assert artifact.path is not None
            assert Path(artifact.path).is_relative_to(shop.folders("tiny")[0])
            assert shop.catalog.record(await shop.catalog.find("tiny")) == record
            assert shop.installer.failure("tiny") is None

    run(main())


def test_a_package_of_pypi_is_installed_into_an_environment_of_its_own(tmp_path: Path, index: PackageIndex) -> None:
    index.pypi("py-agent", "2.1")

    async def main() -> None:
        async with Workshop(tmp_path, index, uvx("snake", "py-agent==2.1", args=["--no-list"])) as shop:
            record = (await shop.install("snake")).record
            assert (record.version, record.package) == ("2.1", "py-agent")
            assert record.capabilities["loadSession"] is True
            assert "list" not in record.capabilities["sessionCapabilities"]
            (program,) = (artifact.path for artifact in record.artifacts)
            assert program == str(shop.folders("snake")[0] / "venv/bin/py-agent")

    run(main())


def test_an_archive_is_fetched_unpacked_and_started(tmp_path: Path, index: PackageIndex) -> None:
    files = {"it/bin/tiny": AGENT, "it/bin/package.json": '{"name": "tiny", "version": "3.0.0"}'}
    url = index.archive("tiny.tar.gz", packed(files))
    target = {current_platform(): {"archive": url, "cmd": "./it/bin/tiny", "args": ["acp"]}}

    async def main() -> None:
        # Through a link: what a program resolves to is elsewhere than where we look for it.
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        agents = tmp_path / "link" / "agents"
        async with Workshop(tmp_path, index, entry("boxed", "3.0.0", binary=target), agents_dir=agents) as shop:
            record = (await shop.install("boxed")).record
            assert (record.version, record.package, record.source) == ("3.0.0", None, "registry")
            assert record.artifacts[0].path == str(shop.folders("boxed")[0] / "archive/it/bin/tiny")
            assert record.artifacts[0].version_inferred is True, "the registry says it of the archive"
            assert not list(shop.folders("boxed")[0].glob(".archive*")), "the archive itself is not kept"

    run(main())


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ({"cmd": "bin/other"}, InstallFailed),
        ({"cmd": "link"}, InstallFailed),
        ({"cmd": "bin"}, InstallFailed),
        ({"cmd": "bin/tiny", "sha256": "0" * 64}, ChecksumMismatch),
    ],
    ids=["no program", "a link that leads nowhere", "a folder", "another archive"],
)
def test_an_archive_that_is_not_what_the_registry_says_is_refused(
    tmp_path: Path, index: PackageIndex, target: dict[str, str], error: type[SandboxAgentError]
) -> None:
    url = index.archive("tiny.tar.gz", packed({"bin/tiny": AGENT}))
    binary = {current_platform(): {"archive": url, **target}}

    async def main() -> None:
        async with Workshop(tmp_path, index, entry("boxed", binary=binary)) as shop:
            with pytest.raises(error):
                await shop.install("boxed")
            assert shop.folders("boxed") == []

    run(main())


def test_agent_behind_an_adapter_is_installed_beside_it_and_named_to_it(tmp_path: Path, index: PackageIndex) -> None:
    adapter = "@agentclientprotocol/claude-agent-acp"
    index.npm(
        adapter, "9.0.0", dependencies={"@anthropic-ai/claude-agent-sdk": "1.0.0"}, bin={"claude-agent-acp": "cli.js"}
    )
    inside = f"@anthropic-ai/claude-agent-sdk-{npm_platform()}"
    digest = index.npm_files(inside, "1.0.0", {"claude": "#!/bin/sh\n"})
    sdk = "@anthropic-ai/claude-agent-sdk"
    index.npm_files(sdk, "1.0.0", {}, claudeCodeVersion="4.5.6", dependencies={inside: "1.0.0"})
    native = f"@anthropic-ai/claude-code-{npm_platform()}"
    index.npm_files(native, "5.0.0", {"claude": "#!/bin/sh\necho native $1\n"})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            brought = (await shop.install("claude", None, "9.0.0")).record
            assert (brought.source, brought.registry_slug, brought.note) == ("fallback", None, None)
            assert (brought.native_version, brought.env) == ("4.5.6", {})
            found = brought.artifacts[1]
            program = shop.store.folder(brought) / "node_modules" / inside / "claude"
            assert (found.kind, found.name, found.path) == ("native", inside, str(program))
            assert (found.version, found.version_inferred, found.package_version) == ("4.5.6", True, "1.0.0")
            assert brought.artifacts[0].version_inferred is UNSET
            assert found.sha256 == sha256(program.read_bytes()).hexdigest()
            assert found.integrity == digest
            asked = (await shop.install("claude", "5.0.0", "9.0.0")).record
            assert (asked.version, asked.native_version) == ("9.0.0", "5.0.0")
            assert [artifact.kind for artifact in asked.artifacts] == ["agent_process", "native"]
            launch = shop.catalog.launch(await shop.catalog.find("claude"))
            assert launch is not None
            wrapper = launch.env["CLAUDE_CODE_EXECUTABLE"]
            assert output_of([wrapper, "works"]) == "native works\n"
            assert (await shop.install("claude")).already, "any version will do"
            assert (await shop.install("claude", "5.0.0")).already

    run(main())


@pytest.mark.parametrize(
    ("agent", "package", "binary", "path"),
    [
        ("copilot", "@github/copilot", "@github/copilot-{platform}", "copilot"),
        ("goose", "@aaif/goose-acp", "@aaif/goose-binary-{platform}", "bin/goose"),
    ],
)
def test_the_program_that_a_script_starts_is_named_with_its_package_and_hash(
    tmp_path: Path, index: PackageIndex, agent: str, package: str, binary: str, path: str
) -> None:
    name = binary.replace("{platform}", npm_platform())
    digest = index.npm_files(name, "9.0.1", {path: "the program itself"})
    index.npm(package, "9.0.0", dependencies={name: "9.0.1"}, bin={agent: "cli.js"})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            record = (await shop.install(agent, "9.0.0")).record
            script, program = record.artifacts
            assert (script.kind, script.name, script.version) == ("agent_process", package, "9.0.0")
            assert (program.kind, program.name, program.version) == ("binary", name, "9.0.1")
            assert program.path == str(shop.store.folder(record) / "node_modules" / name / path)
            assert program.sha256 == sha256(b"the program itself").hexdigest()
            assert program.integrity == digest
            assert record.native_version is None

    run(main())


def test_both_the_script_behind_an_adapter_and_its_program_are_named(tmp_path: Path, index: PackageIndex) -> None:
    program, script = f"@openai/codex-{npm_platform()}", "@openai/codex"
    index.npm_files(program, "4.5.6-linux", {"vendor/some-triple/bin/codex": "the program itself"})
    index.npm_files(script, "4.5.6", {"bin/codex.js": "//"}, dependencies={program: "4.5.6-linux"})
    index.npm("@agentclientprotocol/codex-acp", "9.0.0", dependencies={script: "4.5.6"}, bin={"codex-acp": "cli.js"})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            record = (await shop.install("codex", None, "9.0.0")).record
            assert [(each.kind, each.name, each.version) for each in record.artifacts[1:]] == [
                ("native", script, "4.5.6"),
                ("binary", program, "4.5.6-linux"),
            ]
            assert all(each.sha256 and each.integrity for each in record.artifacts)
            assert record.native_version == "4.5.6"

    run(main())


def test_an_agent_that_speaks_no_acp_is_started_by_our_adapter(tmp_path: Path, index: PackageIndex) -> None:
    script = "#!/usr/bin/env node\nconsole.log('amp', ...process.argv.slice(2))\n"
    index.npm_files("@sourcegraph/amp", "9.9.9", {"main.js": script}, bin={"amp": "main.js"})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            record = (await shop.install("amp", "9.9.9")).record
            assert record.agent_info == {"name": "amp", "title": "Amp", "version": "9.9.9"}
            launch = shop.catalog.launch(shop.catalog.agent("amp"))
            assert launch is not None
            assert launch.command == (sys.executable, "-m", "sandboxagent.adapters.amp")
            assert output_of([launch.env["AMP_CLI"], "works"]) == "amp works\n"

    run(main())


def test_a_script_behind_an_adapter_is_run_by_our_node(tmp_path: Path, index: PackageIndex) -> None:
    index.npm("pi-acp", "9.0.0")
    index.npm_files("@earendil-works/pi-coding-agent", "9.1.0", {"dist/bundle/cli.js": "console.log(process.version)"})

    async def main() -> None:
        async with Workshop(tmp_path, index) as shop:
            await shop.install("pi", "9.1.0", "9.0.0")
            launch = shop.catalog.launch(await shop.catalog.find("pi"))
            assert launch is not None
            assert output_of([launch.env["PI_ACP_PI_COMMAND"]]).startswith("v")

    run(main())


def test_the_version_that_came_is_recorded_and_not_what_was_asked_for(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, npx("tiny", "tiny-agent@latest")) as shop:
            assert (await shop.install("tiny")).record.version == "1.0.0"
            index.npm("tiny-agent", "1.2.0")
            assert (await shop.install("tiny")).record.version == "1.0.0"
            newest = await shop.install("tiny", "latest")
            assert (newest.already, newest.record.version, newest.record.artifacts[0].version) == (
                False,
                "1.2.0",
                "1.2.0",
            )

    run(main())


def test_npm_settings_of_the_environment_redirect_nothing_and_run_no_script(
    tmp_path: Path, index: PackageIndex
) -> None:
    mark = tmp_path / "ran"
    scripts = dict.fromkeys(("preinstall", "install", "postinstall", "prepare"), f"touch {mark}")
    told = {
        "npm_config_ignore_scripts": "false",
        "npm_config_global": "true",
        "npm_config_location": "global",
        "npm_config_package_lock": "false",
        "npm_config_save": "false",
        "npm_config_omit": "optional",
        "npm_config_prefix": "/nonexistent",
        "npm_config_dry_run": "true",
    }
    needs = {"tiny-part": "1.0.0"}
    index.npm("tiny-agent", program=f"require('tiny-part');{BODY}", optionalDependencies=needs, scripts=scripts)
    index.npm("tiny-part", program="", main="cli.js", scripts=scripts)

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY, environment=told) as shop:
            record = (await shop.install("tiny")).record
            assert record.artifacts[0].integrity, "its digest is known"
            assert not mark.exists()

    run(main())


def test_a_banner_before_the_handshake_does_no_harm(tmp_path: Path, index: PackageIndex) -> None:
    boxed = box(index, f"#!/usr/bin/env node\nconsole.log('Welcome!\\n{{not json');{BODY}")

    async def main() -> None:
        async with Workshop(tmp_path, index, boxed) as shop:
            assert (await shop.install("tiny")).record.verified_at

    run(main())
