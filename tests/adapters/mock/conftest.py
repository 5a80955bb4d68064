"""What tests of the mock agent share."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.mocking import Shared, started


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """One process of the mock agent for tests that only open sessions."""
    with asyncio.Runner() as runner:
        process = started(tmp_path_factory.mktemp("state"))
        yield Shared(runner, runner.run(process.__aenter__()))
        runner.run(process.__aexit__(None, None, None))
