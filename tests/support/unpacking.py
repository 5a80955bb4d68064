"""Unpacking an archive into a folder, and what is beside it afterwards."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.protocol.errors import InstallFailed, UnsafeArchive
from sandboxagent.server.agents.install.archive import extract

MIB = 1 << 20


def unpack(archive: Path, *, name: str | None = None, max_bytes: int = MIB, max_entries: int = 50) -> Path:
    """Unpack into a new folder beside the archive; gives that."""
    into = archive.parent / "into"
    shutil.rmtree(into, ignore_errors=True)
    extract(archive, into, name=name or archive.name, max_bytes=max_bytes, max_entries=max_entries)
    return into


def refusal(archive: Path, **limits: Any) -> tuple[str, str]:
    """The entry and the rule for which an archive is refused; nothing outside of its folder has changed."""
    before = beside(archive)
    with pytest.raises(UnsafeArchive) as refused:
        unpack(archive, **limits)
    assert beside(archive) == before
    assert archive.name in str(refused.value)
    return str(refused.value.fields["entry"]), str(refused.value.fields["rule"])


def damage(archive: Path, **limits: Any) -> str:
    with pytest.raises(InstallFailed) as failed:
        unpack(archive, **limits)
    assert archive.name in str(failed.value)
    return str(failed.value)


def listing(directory: Path) -> dict[Path, bytes | Path | None]:
    """All that is below a directory: content of files, targets of links, None for folders."""

    def what(path: Path) -> bytes | Path | None:
        return path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None

    return {path.relative_to(directory): what(path) for path in directory.rglob("*")}


def beside(archive: Path) -> dict[Path, bytes | Path | None]:
    """All that is beside an archive and its folder."""
    return {path: what for path, what in listing(archive.parent).items() if path.parts[0] != "into"}
