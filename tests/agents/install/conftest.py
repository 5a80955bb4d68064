"""An index of packages on this machine."""

from collections.abc import Generator

import pytest

from tests.support.package_index import PackageIndex


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with PackageIndex() as running:
        running.npm("tiny-agent")
        yield running
