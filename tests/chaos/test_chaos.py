"""Parts of a fleet are killed while turns run: a short one of what `./dev chaos fleet` does for minutes."""

from pathlib import Path

import pytest

from tests.chaos.rounds import Result, Row, world
from tests.support.client import run
from tests.support.nats import PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


def test_no_part_that_is_killed_costs_a_reader_an_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, nodes=2, readers=1) as fleet:
            for part in ("gateway", "node", "NATS leader"):
                result = Result(Row(part, "kill -9", 0))
                await fleet.play(result.row, result)
                assert result.acknowledged > 0
                assert (result.lost, result.doubled, result.disordered) == (0, 0, 0), result.remarks

    run(main())
