"""Looks at failures once more when the tests that failed have no neighbours.

A test may fail because the machine had too much to do with the others, and one such failure among thousands would fail
the whole run. With `--second-look`, tests that failed beside others run again, alone. If all of them pass, so does the
run, which names them: each is a defect of the suite that is to be mended. A test that fails again fails the run; so do
more than a few failures, a worker that crashed, and a module that cannot be collected: these are not chance.

A test that is marked `measures` says what something costs, which neighbours change: what it says beside them is no
verdict, and no defect of its own. It is measured again, alone, and what it says then counts.
"""

import subprocess
import sys
from collections.abc import Generator, Sequence

import pytest

MOST = 5
"""Failures that are looked at again. More are no accident."""
_LONGEST = 600.0
"""Seconds that the second look may take."""
_STAGES = {"setup", "call", "teardown"}
_PASSED_ON = ("--all-agents", "--gateway", "--opencode-itself")
_SESSION = pytest.StashKey[pytest.Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-look", action="store_true", help="run few tests that failed beside others again, alone")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SESSION] = session


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> Generator[None]:
    """After all that pytest has to say except for its closing line, which counts what was flaky."""
    yield
    session = config.stash[_SESSION]
    beside_others = bool(config.getoption("numprocesses", None))
    if not config.getoption("--second-look") or not beside_others or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    stats = terminalreporter.stats
    failed = [*stats.get("failed", []), *stats.get("error", [])]
    chosen = chosen_of(failed)
    # With -x, other tests have not run at all.
    if not chosen or session.shouldfail or session.shouldstop:
        return
    terminalreporter.write_line(f"\na second look, alone, at: {', '.join(chosen)}")
    options = [each for each in _PASSED_ON if config.getoption(each, False)]
    command = [sys.executable, "-m", "pytest", "-n", "0", *options, *chosen]
    try:
        again = subprocess.run(
            command, cwd=config.invocation_params.dir, capture_output=True, text=True, timeout=_LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        terminalreporter.write_line(f"it did not end within {_LONGEST:.0f} s")
        return
    if again.returncode:
        terminalreporter.write_line(f"{again.stdout}{again.stderr}\nit failed again")
        return
    for each in chosen_of([report for report in failed if not measures(report)]):
        terminalreporter.write_line(f"flaky: {each} failed beside others and passed alone; mend it", yellow=True)
    stats.pop("failed", None)
    stats.pop("error", None)
    stats["flaky"] = [each for each in failed if not measures(each)]
    stats["passed alone"] = [each for each in failed if measures(each)]
    session.exitstatus = pytest.ExitCode.OK


def chosen_of(failed: Sequence[object]) -> list[str]:
    """The tests that run again; none when the failures are too many, or not those of tests."""
    reports = [each for each in failed if isinstance(each, pytest.TestReport)]
    # A worker that crashed is reported as a failure at an unknown stage of its test.
    accidents = sum(not measures(each) for each in reports)
    if len(reports) != len(failed) or accidents > MOST or any(each.when not in _STAGES for each in reports):
        return []
    # What fails at the end of a test may be what its module shares, and any test of it the cause.
    ids = [each.nodeid.partition("::")[0] if each.when == "teardown" else each.nodeid for each in reports]
    return list(dict.fromkeys(ids))


def measures(report: object) -> bool:
    """Whether a test says what something costs."""
    return isinstance(report, pytest.TestReport) and "measures" in report.keywords
