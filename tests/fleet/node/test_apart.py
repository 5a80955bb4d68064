"""A server that joins no fleet has nothing of one."""

import re
from pathlib import Path

from tests.support.running import Server

FLEET = re.compile(r"\| +((?:sandboxagent\.fleet\.(?:bus|node|gateway)|nats|nkeys|websockets)\b.*)")


def test_a_server_that_stands_alone_imports_nothing_of_a_fleet(tmp_path: Path) -> None:
    with Server(anew=True, directory=tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        imported = server.stderr
    assert re.search(r"\| +sandboxagent\.server\.main\b", imported)
    assert FLEET.findall(imported) == []
