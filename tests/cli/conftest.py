"""What the tests of the command line share."""

from pathlib import Path

import pytest

from tests.cli.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
