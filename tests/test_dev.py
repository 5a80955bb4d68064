"""The project's own commands."""

import fcntl
import importlib.machinery
import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def dev() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev_program", str(ROOT / "dev"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def test_every_command_is_in_its_help_and_in_the_rules_of_the_house(dev: ModuleType) -> None:
    told = re.findall(r"^  ([a-z]+) ", dev.__doc__ or "", re.MULTILINE)
    listed = re.findall(r"^\| `\./dev ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert sorted(told) == sorted(listed) == sorted(dev.COMMANDS)


def test_types_are_checked_again_when_a_source_or_the_settings_have_changed(dev: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("dev", "pyproject.toml", "src/room/a.py", "src/b.pyi", "tools/c.py")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    seen = {dev.describe_typed(tmp_path)}
    for file in files:
        file.write_text("2")
        seen.add(dev.describe_typed(tmp_path))
    files[-1].rename(tmp_path / "tools" / "d.py")
    seen.add(dev.describe_typed(tmp_path))
    (tmp_path / "tools" / "e.py").touch()
    seen.add(dev.describe_typed(tmp_path))
    assert len(seen) == 1 + len(files) + 2


def test_bytecode_is_no_reason_to_check_types_again(dev: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    before = dev.describe_typed(tmp_path)
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "__pycache__" / "a.cpython-311.pyc").touch()
    assert dev.describe_typed(tmp_path) == before


def test_files_of_tests_are_in_memory_where_there_is_enough_of_it(dev: ModuleType, tmp_path: Path) -> None:
    assert dev.has_room(tmp_path, 1)
    assert not dev.has_room(tmp_path, 1 << 60)
    assert not dev.has_room(tmp_path / "nowhere", 1)


def test_files_of_tests_that_were_killed_are_removed_and_no_others(dev: ModuleType, tmp_path: Path) -> None:
    for name in (f"{dev.TESTS_PREFIX}abandoned", f"{dev.TESTS_PREFIX}in-use", "another's"):
        (tmp_path / name / "work").mkdir(parents=True)
    held = os.open(tmp_path / f"{dev.TESTS_PREFIX}in-use", os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        dev.remove_abandoned(tmp_path)
    finally:
        os.close(held)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another's", f"{dev.TESTS_PREFIX}in-use"]
