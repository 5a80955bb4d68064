"""What `./dev pack` makes is a release: complete, reproducible, and enough to install from."""

import hashlib
import json
import os
import re
import shlex
import sys
import tarfile
from datetime import UTC, date, datetime
from pathlib import Path
from zipfile import ZipFile

import pytest
from uv import find_uv_bin

from sandboxagent import __version__
from tests.docs.pages import pages
from tests.support.dockerfile import instructions
from tests.support.installing import ROOT, SAID, build_packages, install_or_skip, run, set_up_by_dev
from tools.release import CHANGELOG, CHECKSUMS, IMAGE, NOTES, UNDATED, pack_image, read_notes

pytestmark = [
    pytest.mark.xdist_group("the release"),
    pytest.mark.skipif(not set_up_by_dev(), reason="./dev has not set this environment up, and would change it"),
]
FILES = {f"sandboxagent-{__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".tgz")} | {IMAGE, NOTES}
DOCKERFILES = {"Dockerfile": "server", "fleet.Dockerfile": "fleet"}
"""The files that images are built from, with the extra that each installs."""
NEEDED = ("ca-certificates", "git")
"""What agents need of a system."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_packages(tmp_path_factory)


@pytest.fixture(scope="module")
def image(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an engine would build from."""
    return unpack(release / IMAGE, tmp_path_factory.mktemp("image"))


def unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as opened:
        # As an attribute: the first versions of Python 3.11 know no filters.
        opened.extraction_filter = lambda member, path: member
        opened.extractall(directory)
    return directory


# --- complete ---------------------------------------------------------------------------------------------------------


def test_a_release_has_every_file_and_its_checksum(release: Path) -> None:
    lines = [line.split("  ") for line in (release / CHECKSUMS).read_text().splitlines()]

    assert {path.name for path in release.iterdir()} - {SAID, CHECKSUMS} == FILES
    assert {name: total for total, name in lines} == {
        name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in FILES
    }


def test_the_page_about_releases_names_every_file_that_one_has() -> None:
    page = (ROOT / "RELEASING.md").read_text()
    table = {name.replace("<version>", __version__) for name in re.findall(r"`([^`\s]+)`", page)}

    assert sorted((FILES | {CHECKSUMS}) - table) == []


def test_the_release_notes_are_the_versions_section_of_the_changelog(release: Path) -> None:
    notes = (release / NOTES).read_text()
    found, text = read_notes(CHANGELOG.read_text(), __version__)

    assert found == UNDATED or date.fromisoformat(found)
    assert notes == text
    assert "\n## " not in notes
    assert len(notes.splitlines()) > 3


def test_notes_end_where_another_version_begins() -> None:
    changelog = (
        "# Changelog\n\n## 0.2.0 (not released)\n\n- New.\n\n### More\n\n- B.\n\n## 0.1.0 (2026-01-02)\n\n- Old.\n"
    )

    assert read_notes(changelog, "0.2.0") == ("not released", "- New.\n\n### More\n\n- B.\n")
    assert read_notes(changelog, "0.1.0") == ("2026-01-02", "- Old.\n")
    with pytest.raises(ValueError, match=r"0\.3\.0"):
        read_notes(changelog, "0.3.0")


def test_pages_name_files_of_this_version() -> None:
    named = re.compile(r"sandboxagent-(\d+\.\d+\.\d+)")
    texts = {page: page.read_text() for page in [*pages(), ROOT / "deploy" / "README.md"]}
    versions = {page.name: set(named.findall(text)) for page, text in texts.items() if named.search(text)}

    assert "quickstart.md" in versions
    assert {name: found for name, found in versions.items() if found != {__version__}} == {}


# --- reproducible -----------------------------------------------------------------------------------------------------


def test_the_sdist_builds_the_same_wheel(release: Path, tmp_path: Path) -> None:
    source = unpack(release / f"sandboxagent-{__version__}.tar.gz", tmp_path) / f"sandboxagent-{__version__}"
    built = tmp_path / "built"
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built), cwd=source)
    (wheel,), (released,) = built.glob("*.whl"), release.glob("*.whl")

    assert read(wheel) == read(released)
    assert wheel.read_bytes() == released.read_bytes()


def test_the_image_is_built_from_the_same_bytes_each_time(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with tarfile.open(release / IMAGE) as image, ZipFile(wheel) as packed:
        (modified,) = {each.mtime for each in image}
        times = {each.date_time for each in packed.infolist()}

    assert pack_image(wheel, modified) == (release / IMAGE).read_bytes()
    assert times == {datetime.fromtimestamp(modified, UTC).timetuple()[:6]}, "as in the wheel"


def read(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_image_has_the_files_of_deploy_and_the_wheel_of_the_release(release: Path, image: Path) -> None:
    deployed = {path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy").rglob("*") if path.is_file()}
    (wheel,), (released,) = image.glob("*.whl"), release.glob("*.whl")

    assert {path.relative_to(image) for path in image.rglob("*") if path.is_file()} == deployed | {Path(wheel.name)}
    assert wheel.read_bytes() == released.read_bytes()


@pytest.mark.parametrize(("name", "extra"), DOCKERFILES.items())
def test_what_an_image_installs_runs_a_prompt(name: str, extra: str, image: Path, tmp_path: Path) -> None:
    """Its steps, without an engine: COPY, and RUN with a `pip` that installs into a new environment."""
    steps = instructions((image / name).read_text())
    (copied,) = [text.split() for step, text in steps if step == "COPY"]
    (installs,) = [text for step, text in steps if step == "RUN" and "pip install" in text]
    copy = tmp_path / "copied"
    copy.mkdir()
    for source in image.glob(copied[0]):
        (copy / source.name).write_bytes(source.read_bytes())
    environment = tmp_path / "venv"
    run(find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(environment))
    shim = tmp_path / "shim"
    shim.mkdir()
    words = [find_uv_bin(), "--system-certs", "--quiet", "pip", "install", "--python", str(environment / "bin/python")]
    (shim / "pip").write_text(f'#!/bin/sh\nshift 2\nexec {shlex.join(words)} "$@"\n')
    (shim / "pip").chmod(0o755)
    line = installs.partition("&& useradd")[0].replace(copied[1], f"{copy}/")
    install_or_skip(["env", f"PATH={shim}:{os.defpath}", "sh", "-ec", line], [*words, "--dry-run", "msgspec"], tmp_path)
    program = environment / "bin" / "sandbox-agent"

    assert f"[{extra}]" in installs
    assert all(any(f" {tool} " in f"{text} " for _, text in steps) for tool in NEEDED)
    assert list(copy.iterdir()) == [], "the wheel does not stay in the image"
    home = {"HOME": str(tmp_path), "PATH": os.defpath, "LANG": "C.UTF-8"}
    assert "You said: hello" in run(str(program), "run", "--no-daemon", "mock", "hello", cwd=tmp_path, env=home)
    (started,) = [text for step, text in steps if step in ("CMD", "ENTRYPOINT")]
    assert json.loads(started)[0] == program.name
