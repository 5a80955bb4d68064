"""What `http/protocol.py` relies on inside uvicorn. A release that changes it fails here, before it fails in the field.

When a digest differs: read what changed in that module, see that the protocol still does what its tests say, and
put the new digest here and the next minor release into `pyproject.toml`.
"""

import hashlib
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from uvicorn.protocols.http import flow_control, httptools_impl

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
DIGESTS = {
    httptools_impl: "1d4e1c579df4168433a61a01f10c628b31c1790e72dd9769d2b8633b22214033",
    flow_control: "d39d16560df512f3ce907c329c2a0c3f5cd7165fef3b753876eae5739bf2a785",
}


def test_the_modules_that_the_protocol_builds_on_are_as_they_were_when_it_was_written() -> None:
    found = {module.__name__: hashlib.sha256(inspect.getsource(module).encode()).hexdigest() for module in DIGESTS}

    assert found == {module.__name__: digest for module, digest in DIGESTS.items()}


def test_only_the_minor_release_that_was_looked_at_is_allowed() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    (pin,) = (each for each in extras["server"] if each.startswith("uvicorn"))
    match = re.fullmatch(r"uvicorn>=0\.(\d+),<0\.(\d+)", pin)
    assert match is not None, pin
    minor = int(version("uvicorn").split(".")[1])
    assert (int(match[1]), int(match[2])) == (minor, minor + 1)
