"""The package as others get it: what is in it, what it needs, and that it can be used from where it is installed."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from sandboxagent import __version__
from tests.sdk_typescript.node import LONGEST, SDK, node, npm, tsc

CONSUMER = """
import { RequestError, SandboxAgent, type SessionItem, textOf } from "sandboxagent";
const chat = async (url: string): Promise<string> => {
  const client = await SandboxAgent.connect(url, { token: "t", onPermission: (request) => request.allow() });
  const session = await client.sessions.create("mock", { cwd: "/" });
  let text = "";
  for await (const item of session.prompt("hello")) text += textOf(item satisfies SessionItem);
  await client.close();
  return text;
};
console.log(typeof chat, typeof SandboxAgent.start, RequestError.name);
export {};
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has the package, unpacked from what `npm pack` makes of it."""
    project = tmp_path_factory.mktemp("consumer")
    packed = run(*npm(), "pack", "--ignore-scripts", "--json", "--pack-destination", str(project), cwd=SDK)
    described = json.loads(packed)
    # Newer ones give an object, by the name of the package.
    [one] = described if isinstance(described, list) else described.values()
    modules = project / "node_modules"
    modules.mkdir()
    with tarfile.open(project / one["filename"]) as archive:
        # As an attribute: the first versions of Python 3.11 know no filters.
        archive.extraction_filter = lambda member, path: member
        archive.extractall(modules)
    (modules / "package").rename(modules / "sandboxagent")
    for name in ("@agentclientprotocol", "zod", "@types", "csstype", "undici-types"):
        (modules / name).symlink_to(SDK / "node_modules" / name)
    (project / "package.json").write_text('{"type": "module"}')
    return project


def test_the_package_has_modules_types_and_maps_and_nothing_else(installed: Path) -> None:
    package = installed / "node_modules" / "sandboxagent"
    names = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    sources = SDK / "src"
    modules = {path.relative_to(sources).with_suffix("").as_posix() for path in sources.rglob("*.ts*")}

    expected = {f"dist/{name}{end}" for name in modules for end in (".js", ".js.map", ".d.ts", ".d.ts.map")}
    assert names == expected | {"dist/browser.js", "package.json", "README.md", "LICENSE"}


def test_a_map_has_its_source(installed: Path) -> None:
    package = installed / "node_modules" / "sandboxagent"

    for name in (package / "dist").rglob("*.js.map"):
        assert json.loads(name.read_text())["sourcesContent"][0], name


def test_a_program_can_use_it(installed: Path) -> None:
    (installed / "program.ts").write_text(CONSUMER)
    strict = ["--strict", "--exactOptionalPropertyTypes", "--target", "es2022", "--lib", "es2023,dom,esnext.disposable"]
    # The declarations themselves are checked by the next test, which resolves modules as bundlers do.
    quick = ["--skipLibCheck", "--types", "node"]
    run(node(), tsc(), "program.ts", "--module", "nodenext", *strict, *quick, cwd=installed)

    assert run(node(), "program.js", cwd=installed) == "function function RequestError\n"


def test_it_needs_no_types_of_node(installed: Path) -> None:
    (installed / "browser.ts").write_text(CONSUMER)
    options = {"strict": True, "target": "es2022", "module": "esnext", "moduleResolution": "bundler", "noEmit": True}
    libraries = {"types": [], "lib": ["es2023", "dom", "esnext.disposable"]}
    settings = {"compilerOptions": options | libraries, "files": ["browser.ts"]}
    (installed / "tsconfig.json").write_text(json.dumps(settings))

    run(node(), tsc(), cwd=installed)


def test_no_module_imports_anything_of_node_when_it_is_loaded(installed: Path) -> None:
    for module in (installed / "node_modules" / "sandboxagent" / "dist").rglob("*.js"):
        assert re.findall(r"^(?:import|export)\b.*[\"']node:.*", module.read_text(), re.MULTILINE) == [], module


def test_a_module_and_its_types_load_without_require(installed: Path) -> None:
    (installed / "old.cjs").write_text(
        'import("sandboxagent").then(({ SandboxAgent }) => console.log(SandboxAgent.name));'
    )

    assert run(node(), "old.cjs", cwd=installed) == "SandboxAgent\n"


def test_a_package_that_was_not_built_cannot_be_installed_and_says_what_to_do(tmp_path: Path) -> None:
    """npm runs the same script when a project installs the folder."""
    copy = tmp_path / "typescript"
    shutil.copytree(SDK, copy, ignore=shutil.ignore_patterns("dist*", "node_modules", ".build", ".npmrc", "tests"))
    done = subprocess.run(
        [*npm(), "pack", "--dry-run"], cwd=copy, env=with_node(), capture_output=True, text=True, timeout=LONGEST
    )

    assert done.returncode != 0
    assert "./dev pack" in done.stderr


def test_the_licence_is_that_of_the_project() -> None:
    assert (SDK / "LICENSE").read_bytes() == (SDK.parents[1] / "LICENSE").read_bytes()


def test_the_version_is_that_of_the_server() -> None:
    package = json.loads((SDK / "package.json").read_text())

    assert package["version"] == __version__
    assert f'"{__version__}"' in (SDK / "src" / "version.ts").read_text()
    assert json.loads((SDK / "package-lock.json").read_text())["version"] == __version__


def test_the_lock_has_a_hash_for_every_package_and_no_address() -> None:
    text = (SDK / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]

    assert "://" not in text
    assert [name for name, facts in packages.items() if name and not facts.get("integrity")] == []


def test_what_is_built_is_not_in_git() -> None:
    git = shutil.which("git")
    if git is None or not (SDK.parents[1] / ".git").exists():
        pytest.skip("not a git checkout")

    assert run(git, "ls-files", "dist", "dist-test", "node_modules", ".build", cwd=SDK) == ""


def with_node() -> dict[str, str]:
    """The environment, with our Node first on the path: npm runs scripts by a shell."""
    return {**os.environ, "PATH": f"{Path(node()).parent}:{os.environ['PATH']}"}


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
