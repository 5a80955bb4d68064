"""What becomes of a request: accepted, then answered, each once, and told to all who asked."""

import asyncio

import pytest

from sandboxagent.protocol.envelope import parse
from sandboxagent.protocol.errors import AgentTimeout, InternalError, InvalidParams
from sandboxagent.server.sessions.reply import Answer, Reply

ASKED = parse(b'{"jsonrpc":"2.0","id":7,"method":"x/y"}')
ANSWER = Answer(b"{}", 5)


class Heard:
    """What a reply has called back with."""

    def __init__(self, reply: Reply) -> None:
        self.said: list[object] = []
        reply.when_accepted(self.said.append)
        reply.when_answered(self.said.append)


def test_it_is_accepted_then_answered_and_what_comes_later_is_ignored() -> None:
    reply = Reply()
    early = Heard(reply)
    reply.accept(3)
    reply.accept(4)
    assert (early.said, reply.result) == ([3], None)
    reply.set_result(ANSWER)
    reply.set_result(Answer(b"another"))
    reply.set_exception(InvalidParams("late"))
    assert early.said == Heard(reply).said == [3, ANSWER]
    assert reply.result is not None


def test_reply_answered_at_once_counts_as_accepted() -> None:
    reply = Reply()
    reply.set_result(ANSWER)
    assert Heard(reply).said == [5, ANSWER]


def test_failure_before_acceptance_reaches_both_callbacks() -> None:
    reply, error = Reply(ASKED), AgentTimeout("too late")
    early = Heard(reply)
    reply.set_exception(error)
    reply.accept(1)
    assert early.said == Heard(reply).said == [error, error]


def test_a_failure_of_the_method_is_its_answer_and_nothing_foreign_is_told() -> None:
    for error, slug in ((InvalidParams("wrong"), "invalid-params"), (ZeroDivisionError("secret"), InternalError.slug)):
        reply = Reply(ASKED)
        reply.set_exception(error)
        assert isinstance(reply.result, Answer)
        response = parse(reply.result.line)
        assert (response.id, response.error().get("data")) == (b"7", {"type": slug})
        assert b"secret" not in reply.result.line


def test_a_callback_that_raises_keeps_nothing_from_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    reply = Reply()
    reply.when_accepted(fail)
    reply.when_answered(fail)
    heard = Heard(reply)
    reply.set_result(ANSWER)
    assert heard.said == [5, ANSWER]
    assert len([one for one in caplog.records if one.exc_info is not None]) == 2


def test_following_reply_has_the_same_outcome_even_when_it_comes_later() -> None:
    first, error = Reply(), AgentTimeout("too late")
    early, late = Reply(), Reply()
    early.follow(first)
    first.accept(2)
    first.set_exception(error)
    late.follow(first)
    assert Heard(early).said == Heard(late).said == [2, error]


def test_awaited_reply_survives_a_waiter_that_leaves() -> None:
    async def main() -> None:
        reply = Reply()

        async def wait() -> Answer:
            await reply.accepted()
            return await reply

        leaving, staying = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        reply.accept(1)
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        reply.set_result(ANSWER)
        assert await staying is ANSWER
        assert leaving.cancelled()
        assert (await reply.accepted(), await reply) == (1, ANSWER)
        failed = Reply()
        failed.set_exception(AgentTimeout("never"))
        for waiting in (failed.accepted(), failed):
            with pytest.raises(AgentTimeout):
                await waiting

    asyncio.run(main())
