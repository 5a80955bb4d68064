"""What all tests of examples start with."""

from pathlib import Path

import pytest

from tests.examples.staging import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
