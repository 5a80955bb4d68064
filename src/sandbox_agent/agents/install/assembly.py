"""From a plan to a folder that has everything in it, and the record of what that is."""

import asyncio
import hashlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from sandbox_agent.agents.install.entries import current_platform
from sandbox_agent.agents.install.packages import Packages
from sandbox_agent.agents.install.plan import Job, Plan
from sandbox_agent.agents.install.record import FOLDER, NODE, PYTHON, SHIMS, Record, now
from sandbox_agent.agents.install.registry import BinaryTarget
from sandbox_agent.agents.install.tools import bundled_node
from sandbox_agent.agents.manifest import Agent, Package
from sandbox_agent.install_errors import HashMissing, InstallFailed
from sandbox_agent.wire.agents import Artifact

MAX_ARCHIVE, MAX_UNPACKED, MAX_ENTRIES = 2 << 30, 8 << 30, 200_000


class Assembly(Struct, frozen=True):
    """Puts one agent together in one folder."""

    agent: Agent
    plan: Plan
    folder: Path
    packages: Packages
    job: Job
    require_hashes: bool = False

    async def record(self) -> Record:
        """Fetch all of it, and say what there is. Not verified yet."""
        fetched = None
        archive = self.plan.archive
        if archive is not None and archive.sha256 is None:
            self._check_hashes([archive.archive.rpartition("/")[2]])
        await self._install_packages()
        self._check_hashes(await asyncio.to_thread(self.packages.unverified))
        if self.plan.archive is not None:
            program, fetched = await self._unpack(self.plan.archive)
        else:
            program = self._program(self.plan.packages[0])
        artifacts = [await self._artifact("agent_process", program, fetched, self._first())]
        env = dict(self.plan.env)
        if self.agent.native is not None:
            artifacts += await self._native(env)
        return Record(
            agent=self.agent.id,
            folder=self.folder.name,
            title=self.agent.title,
            description=self.agent.description,
            source=self.plan.source,
            version=artifacts[0].version or self.plan.version,
            command=self._build_command(program, artifacts[0], env),
            env=env,
            artifacts=artifacts,
            installed_at=now(),
            verified_at="",
            platform=current_platform(),
            node=bundled_node().version,
            registry_slug=self.plan.slug,
            package=first.name if (first := self._first()) else None,
            native_version=artifacts[1].version if len(artifacts) > 1 else None,
            note=self.plan.note,
        )

    def _check_hashes(self, without: Sequence[str]) -> None:
        if without and self.require_hashes:
            raise HashMissing(self.agent.id, without)

    async def _install_packages(self) -> None:
        packages = [*self.plan.packages, *([self.plan.native] if self.plan.native else [])]
        names = " and ".join(f"{each.name}@{each.version}" for each in packages)

        def tell(message: str) -> None:
            self.job.tell("fetching", f"{names}: {message:.200}")

        npm = [each for each in packages if each.index == "npm"]
        pypi = [each for each in packages if each.index == "pypi"]
        if packages:
            tell("asking for it")
        if npm:
            await self.packages.npm(npm, tell)
        if pypi:
            await self.packages.pypi(pypi, tell)

    def _program(self, package: Package) -> Path:
        if package.index == "npm":
            return self.packages.program(package, self.plan.program)
        script = self.folder / "venv/bin" / self.plan.program
        if not script.is_file():
            raise InstallFailed(f"the package {package.name} has no program {self.plan.program}", agent=self.agent.id)
        return script

    async def _unpack(self, target: BinaryTarget) -> tuple[Path, str]:
        from sandbox_agent.agents.install.archive import extract, fetch

        name = target.archive.rpartition("/")[2].partition("?")[0]
        archive = self.folder / ".archive"

        def progress(bytes: int, total: int | None) -> None:
            self.job.tell("fetching", f"fetching {name}", bytes, total)

        progress(0, None)
        sha256 = await fetch(target.archive, archive, sha256=target.sha256, max_bytes=MAX_ARCHIVE, progress=progress)
        self.job.tell("unpacking", f"unpacking {name}")
        into = self.folder / "archive"
        into.mkdir()
        await asyncio.to_thread(extract, archive, into, name=name, max_bytes=MAX_UNPACKED, max_entries=MAX_ENTRIES)
        archive.unlink()
        program = into / target.cmd
        alone = list(into.iterdir())
        if not program.exists() and len(alone) == 1 and alone[0].is_file():  # A plain program, named as its address.
            program = alone[0]
        if not program.is_file() or not program.resolve().is_relative_to(into.resolve()):
            raise InstallFailed(f"the archive {name} has no program {target.cmd}", agent=self.agent.id)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program, sha256

    async def _native(self, env: dict[str, str]) -> list[Artifact]:
        """The agent behind the adapter: a program of its own, or what the adapter brought."""
        native, package = self.agent.native, self.plan.native
        assert native is not None
        if package is not None:
            program = self.packages.program(package, package.name)
            env[native.env] = f"{FOLDER}/bin/{self._wrap(program, native.env.lower())}"
            return [await self._artifact("native", program, None, package)]
        name = native.inside or native.name
        facts = await asyncio.to_thread(self.packages.facts, name)
        version = facts.get(native.version_field)
        if not isinstance(version, str):
            return []
        where = (native.found_in or name).replace("{platform}", self.packages.platform)
        program = await asyncio.to_thread(self.packages.find_file, where, native.program)
        return [
            Artifact(
                kind="native",
                name=name,
                version=version,
                path=None if program is None else self._placed(program),
                source=self.plan.source,
                unverified=await asyncio.to_thread(self._unverified, None),
            )
        ]

    def _build_command(self, program: Path, artifact: Artifact, env: dict[str, str]) -> tuple[str, ...]:
        """How what was fetched is started: by itself, or by our adapter, which gets its place in `env`."""
        adapter = self.agent.adapter
        if adapter is None or self.plan.source == "registry":
            return (*self._find_command(program), *self.plan.arguments)
        env[adapter.env] = f"{FOLDER}/bin/{self._wrap(program, adapter.env.lower())}"
        env[f"{adapter.env}_VERSION"] = artifact.version or self.plan.version
        return PYTHON, "-m", adapter.module

    def _first(self) -> Package | None:
        return self.plan.packages[0] if self.plan.packages else None

    async def _artifact(
        self,
        kind: Literal["agent_process", "native"],
        program: Path,
        sha256: str | None,
        package: Package | None,
    ) -> Artifact:
        # In a thread: a tree may have thousands of packages, and a program hundreds of megabytes.
        version, integrity = await asyncio.to_thread(self._read_version, package)
        return Artifact(
            kind=kind,
            name=package.name if package else program.name,
            version=version,
            path=self._placed(program),
            source=self.plan.source,
            sha256=sha256 or await asyncio.to_thread(_sha256, program),
            integrity=integrity or UNSET,
            unverified=await asyncio.to_thread(self._unverified, package),
        )

    def _unverified(self, package: Package | None) -> Literal[True] | UnsetType:
        """Whether there was no hash for what was fetched: uv always checks those of its index."""
        archive = self.plan.archive
        fetched = package is None and archive is not None and archive.sha256 is None
        return True if fetched or self.packages.unverified() else UNSET

    def _read_version(self, package: Package | None) -> tuple[str, str | None]:
        """The version that came, which may not be what was asked for (`latest`), and what npm checked it against."""
        if package is None:
            return self.plan.version, None
        if package.index == "pypi":
            return package.version, None
        version = self.packages.facts(package.name).get("version")
        return version if isinstance(version, str) else package.version, self.packages.integrity(package.name)

    def _placed(self, program: Path) -> str:
        return f"{FOLDER}/{program.relative_to(self.folder)}"

    def _find_command(self, program: Path) -> tuple[str, ...]:
        """A script of Node by our Node, anything else by itself."""
        if _is_node(program):
            return NODE, self._placed(program)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return (self._placed(program),)

    def _wrap(self, program: Path, name: str) -> str:
        """A program that others start by its path, and that starts this one with our Node."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        wrapper = folder / name
        path = program.relative_to(self.folder)
        node = f'"$(dirname "$0")/../../../{SHIMS}/node" ' if _is_node(program) else ""
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        wrapper.write_text(f'#!/bin/sh\nexec {node}"$(dirname "$0")/../{path}" "$@"\n')
        wrapper.chmod(0o755)
        return name


def _is_node(program: Path) -> bool:
    with program.open("rb") as stream:
        line = stream.readline(200)
    return (line.startswith(b"#!") and b"node" in line) or program.suffix in (".js", ".mjs", ".cjs")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
