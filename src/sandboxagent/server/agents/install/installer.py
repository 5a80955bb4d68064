"""Install an agent: lock it, fetch it into a new folder, verify it, and put it in place at once.

Equal requests share one install and one result. The install continues when its callers leave. A failed install leaves
nothing behind. `Assembly` makes a complete folder from a plan, and the record of its content.
"""

import asyncio
import errno
import hashlib
import logging
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from msgspec import UNSET, Struct, UnsetType, structs

from sandboxagent.protocol.envelope import object_at
from sandboxagent.protocol.errors import (
    AgentBootFailed,
    AgentTimeout,
    DiskFull,
    HashMissing,
    InstallFailed,
    RegistryUnavailable,
    SandboxAgentError,
    ShuttingDown,
)
from sandboxagent.protocol.views import Artifact
from sandboxagent.server.agents.handshake import Handshake
from sandboxagent.server.agents.install.packages import Packages
from sandboxagent.server.agents.install.plan import Job, Plan, Wanted, make_plan
from sandboxagent.server.agents.install.record import FOLDER, NODE, PYTHON, SHIMS, Record, Store, now
from sandboxagent.server.agents.install.registry import Registry, Snapshot
from sandboxagent.server.agents.install.tools import Runner, bundled_node, read_tool_settings
from sandboxagent.server.agents.launch import Launch
from sandboxagent.server.agents.manifest import Agent, Package

if TYPE_CHECKING:
    from sandboxagent.server.agents.install.registry_entries import BinaryTarget

logger = logging.getLogger(__name__)

LOCK_INTERVAL = 0.1

P = ParamSpec("P")
T = TypeVar("T")
Verify = Callable[[Agent, Launch], Awaitable[Handshake]]


class InstallOutcome(Struct, frozen=True):
    """The result of an install."""

    record: Record
    already: bool


class _Request(Struct, frozen=True):
    wanted: Wanted
    reinstall: bool


class _Running(Struct):
    request: _Request
    job: Job
    task: "asyncio.Task[InstallOutcome]"


class Installer:
    """All installs of one server, or of one command line."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        runner: Runner,
        verify: Verify,
        environ: Mapping[str, str],
        timeout: float,
        *,
        require_hashes: bool = False,
    ) -> None:
        self._store = store
        self._registry = registry
        self._runner = runner
        self._verify = verify
        self._environ = environ
        self._timeout = timeout
        self._require_hashes = require_hashes
        self._running: dict[str, _Running] = {}
        self._failures: dict[str, str] = {}
        self._closed = False

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def job(self, agent: str) -> Job | None:
        """Return the agent's install under way, if there is one."""
        running = self._running.get(agent)
        return running.job if running else None

    def failure(self, agent: str) -> str | None:
        """Return why the last install failed; None when there was none, or it succeeded."""
        return self._failures.get(agent)

    async def install(self, agent: Agent, wanted: Wanted | None = None, *, reinstall: bool = False) -> InstallOutcome:
        """Install the agent in the wanted versions. Raises the error that prevents it."""
        return await asyncio.shield(self.begin(agent, wanted, reinstall=reinstall)[1])

    def begin(
        self, agent: Agent, wanted: Wanted | None = None, *, reinstall: bool = False
    ) -> tuple[Job, "asyncio.Task[InstallOutcome]"]:
        """Begin an install, and return its job and its task. The task is shared between callers: shield it."""
        if self._closed:
            raise ShuttingDown
        request = _Request(wanted or Wanted(), reinstall)
        running = self._running.get(agent.id)
        if running is not None and running.request == request:
            return running.job, running.task
        job = Job()
        # Not a `Shared`: another request for the same agent replaces this one, and callers want the job as well.
        task = asyncio.create_task(self._run(agent, request, job, running), name=f"install {agent.id}")
        mine = self._running[agent.id] = _Running(request, job, task)
        task.add_done_callback(lambda _: self._forget(agent.id, mine))
        return job, task

    async def uninstall(self, agent: str) -> bool:
        """Remove the installation of an agent. Folders of running processes go with the next start or install."""
        job = Job()
        with self._translate_errors(agent, job):
            async with asyncio.timeout(self._timeout), self._locked(agent, job):
                return await _to_its_end(self._store.remove, agent)

    async def close(self) -> None:
        """Cancel all installs under way, and begin no more."""
        self._closed = True
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, agent: str, mine: _Running) -> None:
        if self._running.get(agent) is mine:
            del self._running[agent]
        if mine.task.cancelled():
            return
        error = mine.task.exception()
        if error is None:
            self._failures.pop(agent, None)
        elif not isinstance(error, ShuttingDown):
            self._failures[agent] = str(error)
            known = isinstance(error, SandboxAgentError)
            logger.warning("install failed agent=%s error=%s", agent, error, exc_info=None if known else error)

    async def _run(self, agent: Agent, request: _Request, job: Job, before: _Running | None) -> InstallOutcome:
        with self._translate_errors(agent.id, job):
            if before is not None:  # Another version is being installed: wait for it to finish.
                await asyncio.wait({before.task})
            async with asyncio.timeout(self._timeout), self._locked(agent.id, job):
                outcome = await self._install_if_needed(agent, request, job)
        record = outcome.record
        if not outcome.already:
            logger.info("installed agent=%s version=%s source=%s", agent.id, record.version, record.source)
        return outcome

    @contextmanager
    def _translate_errors(self, agent: str, job: Job) -> Generator[None]:
        """Translate each failure of an install into an error of the protocol."""
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise ShuttingDown from None
            raise
        except TimeoutError:
            text = f"agent {agent} was not ready within {self._timeout:g} s ({job.progress.message})"
            raise InstallFailed(f"{text}; --install-timeout sets the limit", agent=agent) from None
        except DiskFull as error:
            # Name the agents directory: the folder of the attempt is already gone.
            raise DiskFull(str(self._store.directory)) from error
        except OSError as error:
            directory = str(self._store.directory)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(directory) from error
            text = f"agent {agent} cannot be installed into {directory}: {error.strerror}"
            raise InstallFailed(text, agent=agent, directory=directory) from error

    @asynccontextmanager
    async def _locked(self, agent: str, job: Job) -> AsyncGenerator[None]:
        """Wait until no other install of this agent runs, in any process."""
        while True:
            with self._store.locked(agent) as ours:
                if ours:
                    yield
                    return
            job.tell("waiting", "another process is installing it")
            await asyncio.sleep(LOCK_INTERVAL)

    async def _install_if_needed(self, agent: Agent, request: _Request, job: Job) -> InstallOutcome:
        await _to_its_end(self._store.clean, agent.id)
        there = self._store.record(agent.id)
        if there is not None and not request.reinstall and _satisfies(there, request.wanted, agent):
            return InstallOutcome(there, already=True)
        record = await self._install(agent, request.wanted, job)
        await _to_its_end(self._store.clean, agent.id)
        return InstallOutcome(record, already=False)

    async def _install(self, agent: Agent, wanted: Wanted, job: Job) -> Record:
        job.tell("resolving", "looking it up in the ACP registry")
        snapshot, note = await self._snapshot(agent)
        from sandboxagent.server.agents.install.registry_entries import this_machine

        chosen = make_plan(agent, snapshot, note, wanted, this_machine())
        folder = self._store.begin(agent.id)
        try:
            fetched = await self._assemble(agent, chosen, folder, job)
            job.tell("verifying", "starting it to see that it works")
            verified = await self._verify_record(agent, fetched)
            await _to_its_end(self._store.write, verified)
            # No await from here on: the installation is in place, and a cancellation must not delete its folder.
            record = self._store.commit(verified)
        except BaseException:
            # The folder is renamed first, so that a thread that still unpacks into it does not find it.
            await _to_its_end(self._store.clean, agent.id)
            raise
        job.tell("done", f"{agent.id} {record.version} is installed")
        return record

    async def _snapshot(self, agent: Agent) -> tuple[Snapshot | None, str | None]:
        if not agent.registry:
            return None, None
        try:
            snapshot = await self._registry.snapshot()
        except RegistryUnavailable as error:
            if not agent.packages:
                raise
            return None, str(error)
        return snapshot, snapshot.problem

    async def _assemble(self, agent: Agent, chosen: Plan, folder: Path, job: Job) -> Record:
        from sandboxagent.server.agents.install.registry_entries import npm_platform

        settings = await asyncio.to_thread(read_tool_settings, self._environ)
        environment = settings.environment
        shims = await asyncio.to_thread(self._store.shims)
        environment["PATH"] = f"{shims}{os.pathsep}{environment.get('PATH', os.defpath)}"
        # Use the machine's own certificates, as pip and uv do: behind a proxy, Node's bundled ones are not enough.
        environment.setdefault("NODE_USE_SYSTEM_CA", "1")
        packages = Packages(self._runner, settings, agent.id, folder, npm_platform())
        return await Assembly(agent, chosen, folder, packages, job, self._require_hashes).record()

    async def _verify_record(self, agent: Agent, record: Record) -> Record:
        """Start the agent, and return the record with the facts of its handshake.

        Raises InstallFailed when the start fails.
        """
        try:
            handshake = await self._verify(agent, self._store.launch(record, agent, self._environ))
        except (AgentBootFailed, AgentTimeout) as error:
            text = f"agent {agent.id} was fetched but does not work: {error}; nothing was installed"
            raise InstallFailed(text, **error.fields) from error
        info = object_at(handshake.facts, "agentInfo")
        return structs.replace(record, verified_at=now(), agent_info=info, capabilities=handshake.capabilities)


async def _to_its_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, and wait for its end even when cancelled: it needs the lock."""
    thread = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise


def _satisfies(record: Record, wanted: Wanted, agent: Agent) -> bool:
    """Whether the installation matches the request."""
    native = record.native_version if agent.native else record.version
    return record.is_of(agent) and wanted.process in (None, record.version) and wanted.agent in (None, native)


MAX_ARCHIVE_BYTES, MAX_UNPACKED_BYTES, MAX_ENTRIES = 2 << 30, 8 << 30, 200_000


class Assembly(Struct, frozen=True):
    """The assembly of one agent in one folder."""

    agent: Agent
    plan: Plan
    folder: Path
    packages: Packages
    job: Job
    require_hashes: bool = False

    async def record(self) -> Record:
        """Fetch all parts, and return the record of them. The agent is not verified yet."""
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
        artifacts += await self._binary()
        from sandboxagent.server.agents.install.registry_entries import current_platform

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
            native_version=next((each.version for each in artifacts if each.kind == "native"), None),
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

    async def _unpack(self, target: "BinaryTarget") -> tuple[Path, str]:
        from sandboxagent.server.agents.install.archive import extract, fetch

        name = target.archive.rpartition("/")[2].partition("?")[0]
        archive = self.folder / ".archive"

        def progress(bytes: int, total: int | None) -> None:
            self.job.tell("fetching", f"fetching {name}", bytes, total)

        progress(0, None)
        sha256 = await fetch(
            target.archive, archive, sha256=target.sha256, max_bytes=MAX_ARCHIVE_BYTES, progress=progress
        )
        self.job.tell("unpacking", f"unpacking {name}")
        into = self.folder / "archive"
        into.mkdir()
        await asyncio.to_thread(
            extract, archive, into, name=name, max_bytes=MAX_UNPACKED_BYTES, max_entries=MAX_ENTRIES
        )
        archive.unlink()
        program = into / target.cmd
        alone = list(into.iterdir())
        if not program.exists() and len(alone) == 1 and alone[0].is_file():  # A plain program, named after its address.
            program = alone[0]
        if not program.is_file() or not program.resolve().is_relative_to(into.resolve()):
            raise InstallFailed(f"the archive {name} has no program {target.cmd}", agent=self.agent.id)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program, sha256

    async def _native(self, env: dict[str, str]) -> list[Artifact]:
        """Return the agent behind the adapter: a program of its own, or the one that the adapter brought."""
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
        found = await asyncio.to_thread(self._brought, "native", native.found_in or name, native.program, version)
        unknown = Artifact(
            kind="native", name=name, version=version, version_inferred=True, path=None, source=self.plan.source
        )
        return [found or unknown]

    async def _binary(self) -> list[Artifact]:
        """Return the program for this machine that a script of the packages starts, if there is one."""
        binary = self.agent.binary
        if binary is None:
            return []
        found = await asyncio.to_thread(self._brought, "binary", binary.package, binary.program)
        return [] if found is None else [found]

    def _brought(
        self, kind: Literal["native", "binary"], package: str, program: str, version: str | None = None
    ) -> Artifact | None:
        """Return a program of a package that another one brought, or None when it is not there.

        `version` is the program's version, if it is not that of its package.
        """
        name = package.replace("{platform}", self.packages.platform)
        found = self.packages.locate(name, program)
        if found is None:
            return None
        return Artifact(
            kind=kind,
            name=name,
            version=version or found.version,
            version_inferred=True if version else UNSET,
            package_version=found.version if version and found.version and found.version != version else UNSET,
            path=self._placed(found.program),
            source=self.plan.source,
            sha256=_sha256(found.program),
            integrity=found.integrity or UNSET,
            unverified=self._unverified(None),
        )

    def _build_command(self, program: Path, artifact: Artifact, env: dict[str, str]) -> tuple[str, ...]:
        """Return the command that starts the program: directly, or by our adapter, which finds its path in `env`."""
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
            version_inferred=True if package is None else UNSET,
            path=self._placed(program),
            source=self.plan.source,
            sha256=sha256 or await asyncio.to_thread(_sha256, program),
            integrity=integrity or UNSET,
            unverified=await asyncio.to_thread(self._unverified, package),
        )

    def _unverified(self, package: Package | None) -> Literal[True] | UnsetType:
        """Return True if a part was fetched without a hash, else UNSET. uv always checks the hashes of its index."""
        archive = self.plan.archive
        fetched = package is None and archive is not None and archive.sha256 is None
        return True if fetched or self.packages.unverified() else UNSET

    def _read_version(self, package: Package | None) -> tuple[str, str | None]:
        """Return the fetched version, and the digest that npm checked it against.

        The version may not be the requested one (`latest`).
        """
        if package is None:
            return self.plan.version, None
        if package.index == "pypi":
            return package.version, None
        version = self.packages.facts(package.name).get("version")
        return version if isinstance(version, str) else package.version, self.packages.integrity(package.name)

    def _placed(self, program: Path) -> str:
        return f"{FOLDER}/{program.relative_to(self.folder)}"

    def _find_command(self, program: Path) -> tuple[str, ...]:
        """Return the command of a program: a script of Node runs with our Node, anything else by itself."""
        if _is_node(program):
            return NODE, self._placed(program)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return (self._placed(program),)

    def _wrap(self, program: Path, name: str) -> str:
        """Make a wrapper that others can start by its path, and that starts a program with our Node.

        Return its name.
        """
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
