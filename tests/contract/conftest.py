"""Fixtures of the contract's tests."""

from collections.abc import Generator

import pytest

from tests.support.pids import Pids


@pytest.fixture
def pids() -> Generator[Pids]:
    found = Pids()
    yield found
    found.kill()
