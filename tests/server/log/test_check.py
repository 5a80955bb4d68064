from itertools import count
from pathlib import Path

import pytest

from sandboxagent.server.log.check import SMALL_BATCH, inspect_meanwhile
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import Chunk, Direction
from sandboxagent.server.log.journal import Group


def test_an_inspection_beside_a_server_takes_a_twentieth_of_a_processor(tmp_path: Path) -> None:
    database = Database(tmp_path / "log.db")
    lines = [Chunk(at, [b"{}"], Direction.FROM_AGENT, "s", "", 1.0) for at in range(1, 10 * SMALL_BATCH + 1)]
    database.write(Group(lines))
    found: list[str] = []
    rests: list[float] = []
    # Each look at the clock is a second of work later.
    clock = count()

    inspect_meanwhile(tmp_path / "log.db", found.append, rests.append, lambda: float(next(clock))).join()

    database.close()
    assert not found
    # A second of work, nineteen of rest.
    assert rests == [pytest.approx(19)] * 10
