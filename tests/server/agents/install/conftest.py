"""An index of packages on this machine."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.package_index import PackageIndex


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with PackageIndex() as running:
        running.npm("tiny-agent")
        yield running


@pytest.fixture(autouse=True)
def no_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all that is fetched here comes over plain HTTP: reading the system's certificates would be most of it."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
