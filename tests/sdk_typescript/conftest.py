"""The TypeScript SDK, built; and Node to run it."""

import pytest

from tests.sdk_typescript.node import build


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    build()
