"""Write what a release has beside its packages: the context of an image, release notes and checksums."""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from sandboxagent import __version__

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHANGELOG = ROOT / "CHANGELOG.md"
IMAGE = f"sandboxagent-{__version__}-image.tar"
NOTES = "RELEASE-NOTES.md"
CHECKSUMS = "SHA256SUMS"
UNDATED = "not released"
"""What the changelog says in place of a date."""

_EPOCH = 1_580_601_600
"""Seconds: the time that hatchling gives to the files of packages, unless `SOURCE_DATE_EPOCH` says another one."""


def write_release(directory: Path) -> None:
    """Add to a directory with the packages all else that a release has. Equal sources make equal bytes."""
    (wheel,) = directory.glob("*.whl")
    (directory / IMAGE).write_bytes(pack_image(wheel, int(os.environ.get("SOURCE_DATE_EPOCH", _EPOCH))))
    (directory / NOTES).write_text(read_notes(CHANGELOG.read_text(), __version__)[1])
    files = sorted(file for file in directory.iterdir() if is_of_release(file))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (directory / CHECKSUMS).write_text("".join(sums))


def is_of_release(file: Path) -> bool:
    """Whether a file belongs to a release and has a checksum. `dist` also has the site of the docs, for example."""
    return file.name == NOTES or (file.name.startswith("sandboxagent-") and file.is_file())


def pack_image(wheel: Path, modified: int) -> bytes:
    """Return what images are built from: the files of `deploy` and the wheel, all modified at the same second."""
    files = {file.relative_to(DEPLOY).as_posix(): file for file in DEPLOY.rglob("*") if file.is_file()}
    files[wheel.name] = wheel
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in sorted(files.items()):
            content = file.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), modified, 0o644
            archive.addfile(entry, BytesIO(content))
    return packed.getvalue()


def read_notes(changelog: str, version: str) -> tuple[str, str]:
    """Return the date of a version and the text of its section. Raises ValueError if there is no section."""
    found = re.search(
        rf"^## {re.escape(version)} \((?P<date>[^)]*)\)\n(?P<text>.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section `## {version} (date)`")
    return found["date"], found["text"].strip() + "\n"


def find_obstacles() -> list[str]:
    """Say what keeps these sources from being a release: each sentence names one thing to do first."""
    date, _ = read_notes(CHANGELOG.read_text(), __version__)
    obstacles = [f"CHANGELOG.md has no date for {__version__}"] if date == UNDATED else []
    git = shutil.which("git")
    if git is not None and (ROOT / ".git").exists():
        changed, tags = _ask(git, "status", "--porcelain"), _ask(git, "tag", "--points-at", "HEAD").split()
        obstacles += ["there are changes that are not committed"] if changed else []
        obstacles += [] if f"v{__version__}" in tags else [f"the commit has no tag v{__version__}"]
    return obstacles


def _ask(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout
