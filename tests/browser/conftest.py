"""What tests in a browser start with."""

from collections.abc import Generator

import pytest

from tests.browser.driving import Browser, Unavailable


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """One for all tests of a worker; without one they are skipped, and say why."""
    try:
        opened = Browser()
    except Unavailable as reason:
        pytest.skip(f"there is no browser: {reason}")
    with opened:
        yield opened
