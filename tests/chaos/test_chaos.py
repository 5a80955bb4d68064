"""Parts of a fleet are killed while turns run: a short one of what `./dev chaos fleet` does for minutes."""

from pathlib import Path

import pytest

from tests.chaos.rounds import ELECTION, Result, Row, world
from tests.support.client import run
from tests.support.nats import PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


def test_no_part_that_is_killed_costs_an_event_a_turn_or_an_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, nodes=2, readers=1) as fleet:
            for part in ("gateway", "node", "NATS leader"):
                result = Result(Row(part, "kill -9", ELECTION, 0))
                await fleet.play(result.row, result)
                assert result.count.finished > 0
                assert result.count.once == result.count.finished
                assert result.count.is_clean, result.remarks
            # The hostile node was heard, and has tried everything.
            assert {"log", "facts", "beat"} <= set(fleet.hostile.sent)

    run(main())
