"""Install npm and PyPI packages into a folder of their own.

Packages are never installed globally, and none may run a program of its own during the install.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from msgspec import Struct

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import (
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    InstallFailed,
    SandboxAgentError,
    UnknownVersion,
    UnsupportedPlatform,
)
from sandboxagent.server.agents.install.tools import Finished, Runner, ToolSettings, bundled_node
from sandboxagent.server.agents.manifest import Package

Tell = Callable[[str], None]

_NPM_FLAGS = (
    *("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--save-exact", "--loglevel=http"),
    # Overrides for the user's .npmrc: everything goes into the folder, with the record of its digests.
    *("--no-global", "--location=project", "--save", "--package-lock", "--no-dry-run"),
    # Packages from outside the index have no digest there, and git runs programs, which a package's .npmrc may name.
    *("--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none"),
    "--globalconfig=/dev/null",
)
# The tools' own defaults wait for minutes when the index is down. The user's environment may override these.
_RETRIES = {
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


class Located(Struct, frozen=True):
    """A program in a package that npm has installed."""

    program: Path
    version: str | None
    """Version of the package that has the program."""
    integrity: str | None
    """Digest that npm checked this package against."""


class Packages(Struct, frozen=True):
    """The packages of one agent, installed into one folder."""

    runner: Runner
    settings: ToolSettings
    agent: str
    folder: Path
    platform: str

    async def npm(self, packages: Sequence[Package], tell: Tell) -> None:
        """Install npm packages and their dependencies. Each must match its pin."""
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
        """Install PyPI packages into a virtual environment.

        Only wheels, because anything else runs code to be built.
        """
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
        retries = {name: value for name, value in _RETRIES.items() if name.lower() not in given}
        return await self.runner.run(command, retries | environment, self.folder, tell)

    @contextmanager
    def _npmrc(self) -> Generator[Path]:
        """Write the file that npm takes as the user's .npmrc.

        It may have tokens in it, so it exists only during the install.
        """
        path = self.folder / ".npmrc-of-user"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(self.settings.npmrc)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def integrity(self, name: str) -> str | None:
        """Return the digest that npm checked a package against."""
        return _text(self._locked().get(f"node_modules/{name}", {}).get("integrity"))

    def unverified(self) -> list[str]:
        """Return the packages for which npm's index had no digest.

        Bundled packages are covered by the digest of their package.
        """
        return [
            path.rpartition("node_modules/")[2]
            for path, facts in self._locked().items()
            if not facts.get("integrity") and not facts.get("inBundle")
        ]

    def facts(self, name: str) -> Object:
        """Return a package's own package.json, wherever npm has put it; empty when it is not there."""
        found = (_json(home / "package.json") for home in self._homes(name))
        return next(filter(None, found), dict[str, object]())

    def locate(self, name: str, pattern: str) -> Located | None:
        """Return a program of a package, wherever npm has put the package. `*` in the path stands for any folder.

        Return None when there is no such file, or when it leads out of the folder.
        """
        whole = self.folder.resolve()
        for home in self._homes(name):
            for file in sorted(home.glob(pattern)):
                if file.is_file() and file.resolve().is_relative_to(whole):
                    version = _json(home / "package.json").get("version")
                    integrity = self._locked().get(str(home.relative_to(self.folder)), {}).get("integrity")
                    return Located(file, _text(version), _text(integrity))
        return None

    def _homes(self, name: str) -> list[Path]:
        places = [path for path in sorted(self._locked()) if path.endswith(f"/node_modules/{name}")]
        return [self.folder / place for place in (f"node_modules/{name}", *places)]

    def _locked(self) -> dict[str, Object]:
        """Return the facts of each package that npm installed, by its place in the folder."""
        packages = _json(self.folder / "node_modules/.package-lock.json").get("packages")
        found = cast("dict[str, object]", packages) if isinstance(packages, dict) else {}
        return {path: cast("Object", facts) for path, facts in found.items() if isinstance(facts, dict)}

    def program(self, package: Package, command: str) -> Path:
        """Return the program of a package: the named file, or the one that the package gives for the command's name."""
        home = self.folder / "node_modules" / package.name
        path = package.program or _named_program(_json(home / "package.json").get("bin"), command)
        found = None if path is None else home / path
        # The package gives the path, which must stay in the folder.
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
    """Return the path that a package's `bin` gives for a command, or the only one there is."""
    if isinstance(programs, dict):
        named = cast("dict[str, object]", programs)
        programs = named.get(command, next(iter(named.values())) if len(named) == 1 else None)
    return programs if isinstance(programs, str) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(path: Path) -> Object:
    try:
        found: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("Object", found) if isinstance(found, dict) else {}
