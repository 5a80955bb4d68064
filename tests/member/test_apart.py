"""A server that joins no fleet has nothing of one."""

import re
from pathlib import Path

from tests.support.running import Server

FLEET = re.compile(r"\| +((?:sandbox_agent\.(?:bus|member|gateway)|nats|nkeys|websockets)\b.*)")


def test_a_server_that_stands_alone_imports_nothing_of_a_fleet(tmp_path: Path) -> None:
    with Server(anew=True, directory=tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        imported = server.stderr
    assert re.search(r"\| +sandbox_agent\.server\b", imported)
    assert FLEET.findall(imported) == []
