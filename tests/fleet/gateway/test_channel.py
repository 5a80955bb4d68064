"""One channel of a feed: who follows it, and who waits for it."""

from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.fleet.gateway.channel import Channel, Holding
from sandboxagent.server.log.event import session_channel
from tests.support.client import run


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=20))
def test_a_channel_has_each_follower_once_until_it_leaves(steps: list[tuple[bool, int]]) -> None:
    channel, all_of_them = Channel(session_channel("s")), [Holding() for _ in range(4)]
    following: set[Holding] = set()
    for comes, number in steps:
        follower = all_of_them[number]
        (channel.add if comes else channel.discard)(follower)
        (following.add if comes else following.discard)(follower)
        assert len(channel.followers) == len(following)
        assert set(channel.followers) == following
        assert channel.is_followed == bool(following)


def test_channel_wakes_only_those_whose_position_is_reached() -> None:
    async def main() -> None:
        channel = Channel(session_channel("s"))
        soon, late = channel.reached(2), channel.reached(9)
        channel.move_on(1)
        assert not soon.done()
        channel.move_on(5)
        await soon
        assert not late.done()
        assert channel.reached(5).done()
        channel.move_on(9)
        await late
        assert not channel.waiting

    run(main())


def test_what_is_said_about_a_connection_is_not_kept_for_readers() -> None:
    assert Channel("ev.c.g123456789.n").is_kept
    assert Channel(session_channel("s")).is_kept
    assert not Channel("ev.w.g123456789.n").is_kept
