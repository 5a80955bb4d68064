"""Requests under keys that the disk may know: each is begun once, and no disk holds the event loop meanwhile."""

import asyncio

import pytest

from sandboxagent.protocol.envelope import Envelope, parse
from sandboxagent.protocol.errors import IdempotencyMismatch
from sandboxagent.server.sessions.idempotency import Idempotency
from sandboxagent.server.sessions.reply import Answer, Reply
from tests.server.log.test_seen import HangingDatabase
from tests.support.logs import opened, run

BODY = parse(b'{"jsonrpc":"2.0","id":1,"method":"x"}')
OTHER = parse(b'{"jsonrpc":"2.0","id":1,"method":"y"}')


class StartCounter:
    """Counts what was begun."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, reply: Reply) -> None:
        self.count += 1
        reply.set_result(Answer(b"{}"))


async def ask(requests: Idempotency, envelope: Envelope, begin: StartCounter) -> bytes:
    reply = Reply()
    requests.start("s", "key", envelope, reply, begin)
    return (await reply).line


@pytest.mark.requirement("3.idempotency-waits")
def test_requests_that_come_while_a_disk_hangs_at_their_key_are_begun_once() -> None:
    async def main() -> None:
        database = HangingDatabase()
        async with opened(database) as log:
            requests, begin = Idempotency(log, 10), StartCounter()
            # Nothing is known of any key: each has to be looked up.
            log._seen = None
            database.go.clear()
            asking = [asyncio.ensure_future(ask(requests, BODY, begin)) for _ in range(3)]
            different = asyncio.ensure_future(ask(requests, OTHER, begin))
            for _ in range(100):
                await asyncio.sleep(0)
            assert begin.count == 0
            database.go.set()
            assert [await each for each in asking] == [b"{}"] * 3
            with pytest.raises(IdempotencyMismatch):
                await different
            assert await ask(requests, BODY, begin) == b"{}"
            assert begin.count == 1

    run(main())


@pytest.mark.requirement("3.every-answer")
def test_a_request_is_answered_when_it_cannot_be_noted_that_it_was_begun() -> None:
    async def main() -> None:
        async with opened(HangingDatabase()) as log:
            requests, begin = Idempotency(log, 10), StartCounter()

            class Failing:
                """A log that fails as nothing of ours does."""

                def __getattr__(self, name: str) -> object:
                    return getattr(log, name)

                def when_flushed(self, _: object) -> None:
                    raise ZeroDivisionError("injected")

            requests._log = Failing()  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(ZeroDivisionError):
                await ask(requests, BODY, begin)
            requests._log = log
            # It may come again under the same key.
            assert await ask(requests, BODY, begin) == b"{}"
            assert begin.count == 1

    run(main())
