"""What all tests of examples start with."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.browser.driving import Browser, Unavailable
from tests.examples.staging import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """One for all tests of a worker; without one they are skipped, and say why."""
    try:
        opened = Browser()
    except Unavailable as reason:
        pytest.skip(f"there is no browser: {reason}")
    with opened:
        yield opened
