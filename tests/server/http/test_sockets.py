"""How long a socket may keep the server waiting, and how many may show no token. Contract, sections 3 and 10."""

import time

import pytest

from sandboxagent.server.http.sockets import MAX_TICK_INTERVAL, SocketLimits, Sockets, Wait

LIMITS = SocketLimits(anonymous=4, head_timeout=30, body_timeout=60, idle_timeout=75)


class Pretended:
    """A socket that waits for what a test says."""

    def __init__(self, wait: Wait = Wait.REQUEST) -> None:
        self.wait = wait
        self.waited_since = -1.0
        self.timed_out: list[Wait] = []
        self.aborted = False

    def waits_for(self) -> Wait:
        return self.wait

    def time_out(self, wait: Wait) -> None:
        self.timed_out.append(wait)

    def abort(self) -> None:
        self.aborted = True


class Clock:
    """Ticks for as long as a test says, in steps that do not count as being held up."""

    def __init__(self, sockets: Sockets) -> None:
        self.sockets = sockets
        self.now = time.monotonic()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + MAX_TICK_INTERVAL, end)
            self.sockets.tick(self.now)


def one(wait: Wait, *, anonymous: bool = True) -> tuple[Pretended, Clock]:
    sockets, socket = Sockets(LIMITS), Pretended(wait)
    sockets.add(socket)
    if not anonymous:
        sockets.mark_authenticated(socket)
    return socket, Clock(sockets)


@pytest.mark.requirement("3.slow-request-408", "3.idle-socket")
@pytest.mark.parametrize("anonymous", [True, False], ids=["without a token", "with a token"])
@pytest.mark.parametrize(
    ("wait", "timeout"), [(Wait.REQUEST, 75), (Wait.HEAD, 30), (Wait.BODY, 60), (Wait.CLOSING, 75)]
)
def test_a_socket_that_keeps_the_server_waiting_is_given_up(wait: Wait, timeout: float, anonymous: bool) -> None:
    socket, clock = one(wait, anonymous=anonymous)
    clock.run(timeout - 2)
    assert not socket.timed_out
    clock.run(4)
    assert wait in socket.timed_out


@pytest.mark.requirement("3.slow-request-408")
def test_every_byte_of_a_body_gives_it_time_again() -> None:
    socket, clock = one(Wait.BODY)
    for _ in range(20):
        clock.run(50)
        socket.waited_since = clock.sockets.clock
    assert not socket.timed_out


@pytest.mark.requirement("3.idle-socket")
def test_a_client_that_waits_for_the_server_waits_as_long_as_it_takes() -> None:
    socket, clock = one(Wait.SERVER, anonymous=False)
    clock.run(10_000)
    assert not socket.timed_out
    socket.wait = Wait.BODY
    clock.run(50)
    assert not socket.timed_out, "the client's own time begins when it is its turn"


@pytest.mark.requirement("10.anonymous-sockets")
def test_a_stranger_that_does_not_take_its_answer_is_given_up() -> None:
    socket, clock = one(Wait.SERVER)
    clock.run(70)
    assert Wait.SERVER in socket.timed_out


def test_no_clients_time_runs_while_the_server_is_held_up() -> None:
    socket, clock = one(Wait.HEAD)
    clock.now += 3600
    clock.sockets.tick(clock.now)
    assert not socket.timed_out
    assert clock.sockets.clock <= MAX_TICK_INTERVAL


@pytest.mark.requirement("10.anonymous-sockets")
def test_the_oldest_that_showed_no_token_are_closed_first() -> None:
    sockets = Sockets(LIMITS)
    all_of_them = [Pretended() for _ in range(7)]
    for socket in all_of_them:
        sockets.add(socket)
    sockets.mark_authenticated(all_of_them[0])
    assert not any(socket.aborted for socket in all_of_them), "they have a moment to show one"
    sockets.tick(time.monotonic())
    assert [socket.aborted for socket in all_of_them] == [False, True, True, False, False, False, False]


@pytest.mark.requirement("10.anonymous-sockets")
def test_no_burst_keeps_more_than_twice_as_many_open() -> None:
    sockets = Sockets(LIMITS)
    clients = [Pretended() for _ in range(10)]
    for client in clients:
        sockets.add(client)
        sockets.mark_authenticated(client)
    strangers = [Pretended() for _ in range(100)]
    for stranger in strangers:
        sockets.add(stranger)
    assert [stranger.aborted for stranger in strangers] == [True] * 92 + [False] * 8
    assert not any(client.aborted for client in clients)


def test_what_is_closed_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    socket, clock = one(Wait.HEAD)
    clock.sockets.remove(socket)
    clock.sockets.remove(socket)
    clock.run(100)
    assert not socket.timed_out
    assert not caplog.records


def test_a_flood_is_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    sockets = Sockets(LIMITS)
    clock = Clock(sockets)
    for _ in range(50):
        for _ in range(100):
            sockets.add(Pretended())
        clock.run(1)
    assert len(caplog.records) == 1


@pytest.mark.requirement("11.idle-exit")
def test_a_server_is_in_use_while_a_socket_that_showed_the_token_is_open() -> None:
    sockets, stranger, client = Sockets(LIMITS), Pretended(), Pretended()
    sockets.add(stranger)
    sockets.add(client)
    assert not sockets.in_use
    sockets.mark_authenticated(client)
    assert sockets.in_use
    sockets.remove(client)
    assert not sockets.in_use
