import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rerun_alone import MOST, chosen_of
from tests.support.running import BOUND

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from pathlib import Path

def test_flaky():
    assert was_tried("flaky"), "the first time"

@pytest.mark.measures
def test_dear():
    assert was_tried("dear"), "beside others"

def test_well():
    pass

def was_tried(name):
    mark = Path(__file__).with_name(name)
    was_there = mark.exists()
    mark.touch()
    return was_there
"""


def run(directory: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest in a project of its own."""
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = measures\n")
    (directory / "conftest.py").write_text('pytest_plugins = ["tests.support.rerun_alone"]\n')
    (directory / "test_it.py").write_text(tests)
    # The plugins of others take half of the time.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **plugins},
        capture_output=True,
        text=True,
        timeout=5 * BOUND,
    )


def test_flaky_test_passes_the_run_and_is_named_unless_it_measures(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS, "-n", "1", "--second-look")
    assert done.returncode == 0, done.stdout
    *_, told, closing = done.stdout.strip().splitlines()
    assert told == "flaky: test_it.py::test_flaky failed beside others and passed alone; mend it"
    assert "flaky: test_it.py::test_dear" not in done.stdout
    assert re.search(r"1 passed, 1 flaky, 1 passed alone in ", closing), closing
    assert "AssertionError: the first time" in done.stdout


@pytest.mark.parametrize("mark", ["", "@pytest.mark.measures"], ids=["any", "one that measures"])
def test_what_fails_again_fails_the_run(tmp_path: Path, mark: str) -> None:
    done = run(tmp_path, f"{TESTS}\n\n{mark}\ndef test_wrong():\n    assert False\n", "-n", "1", "--second-look")
    assert done.returncode == 1, done.stdout
    assert "flaky:" not in done.stdout
    assert re.search(r"3 failed, 1 passed in ", done.stdout.strip().splitlines()[-1]), done.stdout


def test_a_worker_that_crashes_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_crash():\n    __import__('os')._exit(3)\n", "-n", "1", "--second-look")
    assert done.returncode == 1, done.stdout
    assert "a second look" not in done.stdout


def failure(id: str, when: str = "call", *keywords: str) -> pytest.TestReport:
    return pytest.TestReport(id, ("f", 1, id), dict.fromkeys(keywords, 1), "failed", "wrong", when)  # type: ignore[arg-type]


def test_each_test_that_failed_runs_again_once() -> None:
    failed = [failure("a.py::t[1]"), failure("a.py::t[1]"), failure("a.py::u", "setup")]
    assert chosen_of(failed) == ["a.py::t[1]", "a.py::u"]


def test_what_fails_at_the_end_of_a_test_runs_again_with_its_module() -> None:
    assert chosen_of([failure("a.py::t", "teardown")]) == ["a.py"]


def test_many_failures_crashes_and_uncollected_modules_are_not_rerun() -> None:
    assert chosen_of([]) == []
    assert len(chosen_of([failure(f"a.py::t{n}") for n in range(MOST)])) == MOST
    assert chosen_of([failure(f"a.py::t{n}") for n in range(MOST + 1)]) == []
    measured = [failure(f"a.py::m{n}", "call", "measures") for n in range(MOST)]
    assert len(chosen_of([failure("a.py::t"), *measured])) == MOST + 1
    assert chosen_of([failure("a.py::t"), failure("a.py::u", "???")]) == []
    broken = pytest.CollectReport("a.py", "failed", None, [])  # type: ignore[arg-type]
    assert chosen_of([failure("a.py::t"), broken]) == []
