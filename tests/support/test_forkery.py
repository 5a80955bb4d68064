import os
from pathlib import Path

from tests.support.forkery import Forkery
from tests.support.running import alive, eventually


def test_what_was_forked_ends_with_the_tests_however_they_end(tmp_path: Path) -> None:
    forkery = Forkery()
    places = ["--data-dir", str(tmp_path / "data"), "--config-dir", str(tmp_path)]
    with (tmp_path / "out").open("w") as out, Path(os.devnull).open() as nothing:
        descriptors = [nothing.fileno(), out.fileno(), out.fileno()]
        server = forkery.fork(["server", "--port", "0", "--no-persist", *places], os.environ, descriptors)
    eventually(lambda: "listening" in (tmp_path / "out").read_text(), "the start of the server")

    forkery._close()

    eventually(lambda: not alive(server.pid), "the end of the server")
