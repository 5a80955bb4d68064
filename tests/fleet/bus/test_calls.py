"""Requests from member to member."""

import asyncio

import pytest

from sandboxagent.fleet.bus.interface import NoSubscriber, Unreachable
from tests.fleet.bus.conftest import Members
from tests.support.client import run


def test_a_request_is_answered_by_the_one_that_serves_its_subject(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [server, client]:

            async def answer(subject: str, body: bytes) -> bytes:
                return subject.encode() + b" " + body

            await server.serve(f"up.*.*.{unique}", answer)
            assert await client.request(f"up.n1.log.{unique}", b"x", 60) == f"up.n1.log.{unique} x".encode()
            answers = await asyncio.gather(
                *(client.request(f"up.n{place}.log.{unique}", b"", 60) for place in range(50))
            )
            assert [one.split(b".")[1] for one in answers] == [b"n%d" % place for place in range(50)]

    run(main())


def test_request_that_nothing_serves_fails(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [client]:
            with pytest.raises(NoSubscriber):
                await client.request(f"up.n1.log.{unique}", b"", 60)

    run(main())


def test_request_without_answer_fails_in_time(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [server, client]:
            never = asyncio.Event()

            async def wait(subject: str, body: bytes) -> bytes:
                await never.wait()
                return b""

            await server.serve(unique, wait)
            with pytest.raises(Unreachable):
                await client.request(unique, b"", 0.05)

    run(main())


def test_a_handler_that_fails_costs_its_caller_an_answer_and_others_nothing(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [server, client]:

            async def answer(subject: str, body: bytes) -> bytes | None:
                return body or None

            await server.serve(unique, answer)
            with pytest.raises(Unreachable):
                await client.request(unique, b"", 0.2)
            assert await client.request(unique, b"x", 60) == b"x"

    run(main())
