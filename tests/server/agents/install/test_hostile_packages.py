"""Packages that try to run something, or to bring what their index never saw, when they are installed."""

import hashlib
import json
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec import UNSET

from sandboxagent.protocol.errors import HashMissing, InstallFailed
from sandboxagent.server.agents.catalog import read_facts
from sandboxagent.server.agents.install.registry_entries import current_platform
from tests.support.package_index import AGENT, PackageIndex, entry, npx, packed, uvx
from tests.support.workshop import Workshop, run

TINY = npx("tiny", "tiny-agent@1.0.0")
SNAKE = uvx("snake", "snake-agent==1.0.0")


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with PackageIndex() as index:
        yield index


def repository(folder: Path, mark: Path) -> str:
    """A package in a git repository that has npm run its own program as git; gives its address."""
    folder.mkdir()
    evil = folder / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    evil.chmod(0o755)
    (folder / ".npmrc").write_text("git=./evil.sh\nignore-scripts=false\n")
    needs = {"other": "git+file:///nonexistent/other.git"}
    about = {"name": "evil", "version": "1.0.0", "scripts": {"prepare": f"touch {mark}"}, "devDependencies": needs}
    (folder / "package.json").write_text(json.dumps(about))
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    return f"git+file://{folder}"


def refused(directory: Path, index: PackageIndex, id: str = "tiny") -> InstallFailed:
    failures: list[InstallFailed] = []

    async def main() -> None:
        async with Workshop(directory, index, TINY, SNAKE) as shop:
            with pytest.raises(InstallFailed) as failed:
                await shop.install(id)
            failures.append(failed.value)

    run(main())
    return failures[0]


def test_a_dependency_from_git_is_refused_and_its_npmrc_runs_nothing(tmp_path: Path, index: PackageIndex) -> None:
    mark = tmp_path / "ran"
    index.npm("tiny-agent", dependencies={"evil": repository(tmp_path / "evil", mark)})

    error = refused(tmp_path, index)

    assert "comes from git, an address or a directory instead of the index" in str(error)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["address", "file", "directory"])
def test_a_dependency_that_no_index_has_is_refused(tmp_path: Path, index: PackageIndex, kind: str) -> None:
    archive = packed({"package/package.json": json.dumps({"name": "evil", "version": "1.0.0"})})
    (tmp_path / "evil.tgz").write_bytes(archive)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "package.json").write_text(json.dumps({"name": "evil", "version": "1.0.0"}))
    where = {
        "address": index.archive("evil.tgz", archive),
        "file": f"{tmp_path}/evil.tgz",
        "directory": f"{tmp_path}/evil",
    }
    index.npm("tiny-agent", dependencies={"evil": where[kind]})

    assert "comes from git, an address or a directory instead of the index" in str(refused(tmp_path, index))
    assert "/archives/evil.tgz" not in index.asked


@pytest.mark.parametrize("scheme", ["git+file", "http"])
def test_a_requirement_from_git_or_an_address_is_refused(tmp_path: Path, index: PackageIndex, scheme: str) -> None:
    mark = tmp_path / "ran"
    evil = (
        repository(tmp_path / "evil", mark)
        if scheme == "git+file"
        else f"{index.url}/wheels/evil-1.0.0-py3-none-any.whl"
    )
    index.pypi("evil", "1.0.0")
    index.pypi("snake-agent", "1.0.0", requires=[f"evil @ {evil}"])

    refused(tmp_path, index, "snake")

    assert not mark.exists()
    assert not any(path.endswith("evil-1.0.0-py3-none-any.whl") for path in index.asked)


@pytest.mark.parametrize("hashed", [True, False], ids=["with a hash", "without a hash"])
def test_archive_without_hash_is_unverified_or_refused_by_require_hashes(
    tmp_path: Path, index: PackageIndex, hashed: bool
) -> None:
    archive = packed({"bin/tiny": AGENT, "bin/package.json": json.dumps({"name": "tiny", "version": "1.0.0"})})
    target = {"archive": index.archive("tiny.tar.gz", archive), "cmd": "bin/tiny"}
    if hashed:
        target["sha256"] = hashlib.sha256(archive).hexdigest()
    boxed = entry("boxed", binary={current_platform(): target})

    async def main() -> None:
        async with Workshop(tmp_path, index, boxed) as shop:
            record = (await shop.install("boxed")).record
            assert [each.unverified for each in record.artifacts] == [UNSET if hashed else True]
            (known,) = read_facts(await shop.catalog.find("boxed"), shop.catalog, {}).install.artifacts
            assert known.unverified == record.artifacts[0].unverified
        async with Workshop(tmp_path, index, boxed, agents_dir=tmp_path / "strict", require_hashes=True) as strict:
            if hashed:
                await strict.install("boxed")
                return
            asked = list(index.asked)
            with pytest.raises(HashMissing, match=r"no hash is known for tiny\.tar\.gz and --require-hashes is set"):
                await strict.install("boxed")
            assert index.asked == asked, "nothing was fetched"

    run(main())


def test_package_without_hash_is_unverified_or_refused_by_require_hashes(tmp_path: Path, index: PackageIndex) -> None:
    index.npm("tiny-agent", dependencies={"bare": "1.0.0"})
    index.npm("bare")
    index.forget_hash("bare", "1.0.0")

    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            assert (await shop.install("tiny")).record.artifacts[0].unverified is True
        async with Workshop(tmp_path, index, TINY, agents_dir=tmp_path / "strict", require_hashes=True) as strict:
            with pytest.raises(HashMissing, match="no hash is known for bare"):
                await strict.install("tiny")
            assert strict.folders("tiny") == []

    run(main())
