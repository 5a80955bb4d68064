"""How npm and uv are asked, what becomes of what they say, and what is looked for in what they leave."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import (
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    InstallFailed,
    SandboxAgentError,
    UnknownVersion,
    UnsupportedPlatform,
)
from sandboxagent.server.agents.install.packages import Located, Packages
from sandboxagent.server.agents.install.tools import Finished, ToolSettings, bundled_node
from sandboxagent.server.agents.manifest import Package

TINY = Package("tiny", "1.0.0")
PIN, OTHER = "sha512-" + "A" * 86 + "==", "sha512-" + "B" * 86 + "=="


@dataclass
class Played:
    """Runs nothing: says what it is given, and remembers what it was asked."""

    text: str = ""
    code: int | None = 0
    commands: list[list[str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Finished:
        self.commands.append(list(command))
        self.environment = dict(environment)
        for line in self.text.splitlines():
            tell(line)
        return Finished(self.code, self.text)


def packages(folder: Path, runner: Played | None = None, **environment: str) -> Packages:
    return Packages(runner or Played(), ToolSettings(environment), "it", folder, "linux-x64")  # type: ignore[arg-type]


def npm(folder: Path, runner: Played, *wanted: Package, told: list[str] | None = None, **environment: str) -> None:
    tell = (told if told is not None else []).append
    asyncio.run(packages(folder, runner, **environment).npm(wanted or (TINY,), tell))


def pypi(folder: Path, runner: Played) -> None:
    asyncio.run(packages(folder, runner).pypi([Package("py", "2.1", "pypi")], lambda _: None))


def put(folder: Path, name: str, **facts: object) -> Path:
    """A package as npm would leave it."""
    home = folder / "node_modules" / name
    home.mkdir(parents=True)
    (home / "package.json").write_text(json.dumps({"name": name, "version": "1.0.0", **facts}))
    return home


def locked(folder: Path, **integrity: str) -> None:
    (folder / "node_modules").mkdir(exist_ok=True)
    entries = {f"node_modules/{name}": {"integrity": digest} for name, digest in integrity.items()}
    (folder / "node_modules" / ".package-lock.json").write_text(json.dumps({"packages": entries}))


# --- asking -----------------------------------------------------------------------------------------------------------


def test_npm_is_ours_installs_into_the_folder_and_runs_no_scripts(tmp_path: Path) -> None:
    runner = Played()
    npm(tmp_path, runner, TINY, Package("@scope/other", "2.0.0"))

    (command,) = runner.commands
    node = bundled_node()
    assert command[:5] == [str(node.program), str(node.npm), "install", "--prefix", str(tmp_path)]
    assert {"--ignore-scripts", "--no-global", "--no-audit", "--include=optional"} <= set(command)
    assert {"--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none"} <= set(command)
    assert command[-2:] == ["tiny@1.0.0", "@scope/other@2.0.0"]
    assert json.loads((tmp_path / "package.json").read_text()) == {"private": True}


def test_npm_reads_settings_of_ours_alone_and_their_tokens_do_not_stay(tmp_path: Path) -> None:
    @dataclass
    class Reading(Played):
        npmrc: str = ""

        async def run(self, command: Sequence[str], *rest: object) -> Finished:
            (file,) = (Path(word.partition("=")[2]) for word in command if word.startswith("--userconfig="))
            assert file.stat().st_mode & 0o777 == 0o600
            self.npmrc = file.read_text()
            assert "--globalconfig=/dev/null" in command
            return Finished(0, "")

    runner = Reading()
    settings = ToolSettings({}, "//host/:_authToken=secret\n")
    asyncio.run(Packages(runner, settings, "it", tmp_path, "linux-x64").npm((TINY,), lambda _: None))  # type: ignore[arg-type]

    assert runner.npmrc == settings.npmrc
    assert [path.name for path in tmp_path.iterdir()] == ["package.json"]


def test_optional_parts_are_left_out_where_the_manifest_says_so(tmp_path: Path) -> None:
    runner = Played()
    npm(tmp_path, runner, Package("tiny", "1.0.0", optional=False))

    assert "--omit=optional" in runner.commands[0]
    assert "--include=optional" not in runner.commands[0]


def test_the_tools_give_up_after_a_while_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    runner = Played()
    npm(tmp_path, runner)
    assert runner.environment["npm_config_fetch_retries"] == "2"

    npm(tmp_path, runner, NPM_CONFIG_FETCH_RETRIES="7", ONLY="this")
    assert "npm_config_fetch_retries" not in runner.environment
    assert runner.environment["NPM_CONFIG_FETCH_RETRIES"] == "7"
    assert runner.environment["ONLY"] == "this"


def test_what_npm_fetches_is_counted_for_people(tmp_path: Path) -> None:
    told: list[str] = []
    npm(tmp_path, Played("npm http fetch GET 200 a\nnpm warn x\nnpm http fetch GET 200 b\nadded 2 packages"), told=told)

    assert told == ["1 files fetched", "2 files fetched"]


def test_uv_makes_an_environment_and_takes_wheels_only(tmp_path: Path) -> None:
    runner = Played()
    pypi(tmp_path, runner)

    make, install = runner.commands
    assert make[-1] == str(tmp_path / "venv")
    assert install[-3:] == ["--only-binary", ":all:", "py==2.1"]
    assert str(tmp_path / "venv/bin/python") in install


# --- failures of npm --------------------------------------------------------------------------------------------------


def failing(folder: Path, text: str, code: int | None = 1, index: str = "npm") -> SandboxAgentError:
    runner = Played(text, code)
    with pytest.raises(SandboxAgentError) as failed:
        npm(folder, runner) if index == "npm" else pypi(folder, runner)
    return failed.value


@pytest.mark.parametrize(
    ("code", "error"),
    [
        *((code, UnknownVersion) for code in ("ETARGET", "E404")),
        *(
            (code, DownloadFailed)
            for code in ("ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ERR_SOCKET_TIMEOUT")
        ),
        *((code, DownloadFailed) for code in ("EAI_AGAIN", "E500", "E503", "E401", "E403", "CERT_HAS_EXPIRED")),
        *((code, DownloadFailed) for code in ("SELF_SIGNED_CERT_IN_CHAIN", "Z_DATA_ERROR", "TAR_BAD_ARCHIVE")),
        *((code, InstallFailed) for code in ("EBADENGINE", "ERESOLVE", "EUSAGE", "EACCES", "WHATEVER")),
        ("EBADPLATFORM", UnsupportedPlatform),
        ("ENOSPC", DiskFull),
    ],
)
def test_failure_of_npm_has_an_error_of_its_own(tmp_path: Path, code: str, error: type[SandboxAgentError]) -> None:
    text = f"npm http fetch GET\nnpm error code {code}\nnpm error more"
    found = failing(tmp_path, text)

    assert type(found) is error
    if error in (UnknownVersion, DownloadFailed, InstallFailed):
        assert "tiny@1.0.0" in str(found)
        assert found.fields == {"agent": "it", "stderr": text}


def test_package_other_than_its_index_promised_is_a_mismatch_of_digests(tmp_path: Path) -> None:
    text = f"npm error code EINTEGRITY\nnpm error sha512 integrity checksum failed: wanted {PIN} but got {OTHER}. (9 b)"
    found = failing(tmp_path, text)

    assert isinstance(found, ChecksumMismatch)
    assert (found.fields["expected"], found.fields["actual"]) == (PIN, OTHER)


def test_npm_that_ends_without_a_word_or_by_a_signal_has_failed(tmp_path: Path) -> None:
    assert "exited with code 1" in str(failing(tmp_path, ""))
    assert "was killed" in str(failing(tmp_path, "", None))


# --- failures of uv ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cause: Because there is no version of py==2.1 and you require py==2.1, we can conclude …", UnknownVersion),
        ("cause: Because py was not found in the package registry and you require py==2.1", UnknownVersion),
        ("was not found in the package registry\nhint: An index returned a 403 Forbidden error", DownloadFailed),
        ("error: Request failed after 3 retries\n  cause: Failed to fetch: http://x/simple/py/", DownloadFailed),
        ("cause: error sending request for url", DownloadFailed),
        ("error: Failed to download `py==2.1`\n  cause: Invalid zip file structure", DownloadFailed),
        ("cause: Because py==2.1 has no usable wheels and you require py==2.1", InstallFailed),
        ("cause: No space left on device (os error 28)", DiskFull),
        ("error: something new", InstallFailed),
    ],
)
def test_failure_of_uv_has_an_error_of_its_own(tmp_path: Path, text: str, error: type[SandboxAgentError]) -> None:
    assert type(failing(tmp_path, text, index="pypi")) is error


# --- pins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pin", [PIN, {"linux-x64": PIN, "darwin-arm64": OTHER}, None, {"darwin-arm64": OTHER}])
def test_a_package_that_is_what_its_pin_says_is_taken(tmp_path: Path, pin: str | dict[str, str] | None) -> None:
    locked(tmp_path, tiny=PIN)

    npm(tmp_path, Played(), Package("tiny", "1.0.0", integrity=pin))


@pytest.mark.parametrize("pin", [OTHER, {"linux-x64": OTHER}])
def test_a_package_that_is_not_what_its_pin_says_is_refused(tmp_path: Path, pin: str | dict[str, str]) -> None:
    locked(tmp_path, tiny=PIN)

    with pytest.raises(ChecksumMismatch) as mismatch:
        npm(tmp_path, Played(), Package("tiny", "1.0.0", integrity=pin))

    assert mismatch.value.fields == {"name": "tiny@1.0.0", "expected": OTHER, "actual": PIN}


def test_a_pin_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch) as mismatch:
        npm(tmp_path, Played(), Package("tiny", "1.0.0", integrity=PIN))

    assert mismatch.value.fields["actual"] == "none"


def test_package_without_digest_is_named_unless_bundled_in_another(tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    packages_ = {
        "node_modules/tiny": {"integrity": PIN},
        "node_modules/tiny/node_modules/inside": {"inBundle": True},
        "node_modules/@scope/bare": {},
    }
    (tmp_path / "node_modules" / ".package-lock.json").write_text(json.dumps({"packages": packages_}))

    assert packages(tmp_path).unverified() == ["@scope/bare"]


# --- what is there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bin",
    [
        "cli.js",
        {"it": "cli.js"},
        {"another": "cli.js"},
        {"other": "x.js", "it": "./cli.js"},
    ],
)
def test_a_program_is_what_the_package_calls_so_or_its_only_one(tmp_path: Path, bin: object) -> None:
    home = put(tmp_path, "@scope/it", bin=bin)
    (home / "cli.js").write_text("x")

    assert packages(tmp_path).program(Package("@scope/it", "1.0.0"), "it") == home / "cli.js"


def test_a_program_may_be_named_by_its_path(tmp_path: Path) -> None:
    home = put(tmp_path, "it")
    (home / "bin").mkdir()
    (home / "bin" / "it").write_text("x")

    assert packages(tmp_path).program(Package("it", "1.0.0", program="bin/it"), "acp") == home / "bin" / "it"


@pytest.mark.parametrize(
    "bin",
    [
        *(None, {}, [], 3, {"it": 3}, {"a": "cli.js", "b": "cli.js"}, "missing.js", {"it": "missing.js"}, "."),
        *("../../../outside", {"it": "../../../outside"}, "/bin/sh", "link"),
    ],
)
def test_a_package_without_the_program_or_with_one_outside_is_refused(tmp_path: Path, bin: object) -> None:
    folder = tmp_path / "folder"
    home = put(folder, "it", bin=bin)
    (home / "cli.js").write_text("x")
    (home / "link").symlink_to("/bin/sh")
    (tmp_path / "outside").write_text("x")

    with pytest.raises(InstallFailed, match="has no program it"):
        packages(folder).program(Package("it", "1.0.0"), "it")


def test_facts_are_found_wherever_npm_has_put_a_package(tmp_path: Path) -> None:
    put(tmp_path / "node_modules" / "adapter", "native", version="5.0.0")
    locked(tmp_path, **{"adapter": PIN, "adapter/node_modules/native": PIN})
    assert packages(tmp_path).facts("native")["version"] == "5.0.0"

    put(tmp_path, "native", version="6.0.0")
    assert packages(tmp_path).facts("native")["version"] == "6.0.0"
    assert packages(tmp_path).facts("missing") == {}


def test_a_program_is_located_with_the_version_and_the_digest_of_its_package(tmp_path: Path) -> None:
    home = put(tmp_path / "node_modules" / "adapter", "inside", version="5.0.0")
    (home / "vendor" / "triple").mkdir(parents=True)
    (home / "vendor" / "triple" / "it").write_text("x")
    locked(tmp_path, **{"adapter": PIN, "adapter/node_modules/inside": PIN})

    found = packages(tmp_path).locate("inside", "vendor/*/it")

    assert found == Located(home / "vendor" / "triple" / "it", "5.0.0", PIN)
    assert packages(tmp_path).locate("inside", "vendor/it") is None
    assert packages(tmp_path).locate("missing", "it") is None


def test_a_program_that_leads_out_of_the_folder_is_not_located(tmp_path: Path) -> None:
    home = put(tmp_path / "folder", "it")
    (home / "link").symlink_to("/bin/sh")
    (tmp_path / "outside").write_text("x")

    assert packages(tmp_path / "folder").locate("it", "link") is None
    assert packages(tmp_path / "folder").locate("it", "../../../outside") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\0", '{"packages": null}'])
def test_what_npm_has_broken_is_as_good_as_not_there(tmp_path: Path, content: str) -> None:
    (tmp_path / "node_modules" / "it").mkdir(parents=True)
    (tmp_path / "node_modules" / "it" / "package.json").write_text(content)
    (tmp_path / "node_modules" / ".package-lock.json").write_text(content)

    assert packages(tmp_path).integrity("it") is None
    assert packages(tmp_path).facts("it").get("version") is None
