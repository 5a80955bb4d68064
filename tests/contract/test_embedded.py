"""A server for one program. Contract, section 11: it ends with that program, and leaves nothing."""

import os
import pty
import signal
import socket
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.client import Client, run
from tests.support.embedding import Embedded, Host, Place
from tests.support.program import Program, run_program
from tests.support.running import BOUND, Server, alive, eventually
from tests.support.saying import said

TIMEOUT = 60.0
"""For a program to start and to end on a busy machine."""
ESCAPED = {"double_fork": True, "setsid": True, "close_fds": True, "ignore_sigterm": True}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def client_of(server: Embedded | Host) -> Client:
    # It is told apart by nothing that a client uses.
    return Client(cast("Server", server))


def busy(server: Embedded | Host) -> list[int]:
    """A session in the middle of a turn; gives its agent's process, and a daemon that this has started."""

    async def main() -> list[int]:
        async with client_of(server) as client, client.stream() as events:
            session = await client.new_session(requestedSessionId="kept")
            pids = [int(text) for text in await said(client, session, ["pid"], ["daemon", ESCAPED])]
            params = client.prompt_params(session, [["say", "working"], ["wait_cancel"]])
            body = {"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": params}
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            await events.until(lambda event: event.text == "working")
            return pids

    pids = run(main())
    assert all(map(alive, pids))
    return pids


def gone(pids: Sequence[int]) -> None:
    eventually(lambda: not any(map(alive, pids)), f"the end of {pids}")


def health(server: Embedded | Host) -> int:
    async def main() -> int:
        client = client_of(server)
        async with client.http:
            return (await client.http.get("/v1/health")).status_code

    return run(main())


# --- ending -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.embedded-stdin", "11.embedded-data")
def test_it_ends_with_its_stdin_and_so_does_everything_it_has_started_or_written(place: Place) -> None:
    with Embedded(place) as server:
        [data] = place.leftovers
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        pids = busy(server)

        assert server.close_stdin() == 0

        gone(pids)
        assert place.leftovers == []
        assert not (place.directory / "share").exists()
        assert "Traceback" not in server.stderr


@pytest.mark.requirement("11.embedded-stdin")
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_killed_program_leaves_nothing_even_when_its_fork_holds_the_pipe(place: Place, how: str) -> None:
    with Host(place, how) as host:
        pids = busy(host)
        assert host.fork is None or alive(host.fork)

        host.kill()

        host.server_gone()
        gone(pids)
        eventually(lambda: place.leftovers == [], "the end of the temporary directory")
        assert host.fork is None or alive(host.fork)


@pytest.mark.requirement("11.embedded-stdin")
def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_the_program(place: Place) -> None:
    with Host(place, "thread") as host:
        busy(host)
        assert health(host) == 200
        # It is the signal that the end of a thread gives, and of no more use when it comes from elsewhere.
        os.kill(host.server, signal.SIGUSR1)
        assert health(host) == 200
        host.kill()
        host.server_gone()


@pytest.mark.requirement("11.embedded-stdin")
def test_what_the_program_writes_does_not_matter(place: Place) -> None:
    with Embedded(place) as server:
        assert server.process.stdin is not None
        server.process.stdin.write("hello\n" * 100_000)
        server.process.stdin.flush()
        assert health(server) == 200
        assert server.close_stdin() == 0


@pytest.mark.requirement("11.embedded-stdin")
def test_its_stdin_may_be_a_socket(place: Place) -> None:
    mine, theirs = socket.socketpair()
    with mine, Embedded(place, stdin=theirs) as server:
        theirs.close()
        assert health(server) == 200
        mine.close()
        assert server.process.wait(BOUND) == 0
    assert place.leftovers == []


@pytest.mark.requirement("11.embedded-data")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_well_and_leaves_nothing(place: Place, number: int) -> None:
    with Embedded(place) as server:
        server.process.send_signal(number)
        assert server.process.wait(BOUND) == 0
    assert place.leftovers == []


@pytest.mark.requirement("11.embedded-data")
def test_a_start_that_fails_leaves_nothing(place: Place) -> None:
    (place.config / "permissions.toml").write_text("[[rules]]\ntool = '*'\n")
    result = refused(place, subprocess.PIPE)
    assert "permissions.toml" in result
    assert place.leftovers == []


@pytest.mark.requirement("11.embedded-data")
def test_what_a_server_that_was_killed_has_left_goes_when_the_next_one_starts(place: Place) -> None:
    kept = place.temporary / "sandbox-agent-mine"
    with Embedded(place, "--data-dir", str(kept)) as server:
        assert server.close_stdin() == 0
    with Embedded(place) as neighbour, Embedded(place) as killed:
        pids = busy(killed)
        killed.process.kill()
        killed.process.wait()
        assert len(place.leftovers) == 3
        with Embedded(place) as server:
            # Neither that of a server that runs, nor what merely has such a name.
            assert len(place.leftovers) == 3
            assert health(neighbour) == 200
            gone(pids)
            assert server.close_stdin() == 0
        assert neighbour.close_stdin() == 0
    assert place.leftovers == [kept]


# --- what it goes by --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.embedded-data")
def test_with_a_data_directory_that_is_given_sessions_are_kept(place: Place) -> None:
    data = place.directory / "data"

    async def sessions(server: Embedded) -> list[Any]:
        async with client_of(server) as client:
            return [one["alias"] for one in (await client.http.get("/v1/sessions")).json()["sessions"]]

    with Embedded(place, "--data-dir", str(data)) as server:
        pids = busy(server)
        assert server.close_stdin() == 0
        gone(pids)
    assert (data / "log.db").exists()
    with Embedded(place, "--data-dir", str(data)) as server:
        assert run(sessions(server)) == ["kept"]
        assert server.close_stdin() == 0
    assert place.leftovers == []


@pytest.mark.requirement("11.embedded-own")
def test_where_the_users_own_server_is_does_not_matter(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, data = taken.getsockname()[1], place.directory / "data"
        (place.config / "config.toml").write_text(f'port = {port}\nhost = "192.0.2.1"\nno_token = true\n')
        variables = {"SANDBOX_AGENT_PORT": str(port), "SANDBOX_AGENT_DATA_DIR": str(data)}
        with Embedded(place, environment=variables) as first, Embedded(place, environment=variables) as second:
            assert first.url != second.url
            assert [health(first), health(second)] == [200, 200]
            assert len(place.leftovers) == 2
            assert not data.exists()


# --- refusing ---------------------------------------------------------------------------------------------------------


def refused(place: Place, stdin: int) -> str:
    """The last line of a server that did not start."""
    with Program(place.arguments(), place.environment, stdin=stdin, text=True) as server:
        out, err = server.communicate(timeout=TIMEOUT)
        assert (server.returncode, out) == (2, ""), err
    assert "Traceback" not in err
    return err.splitlines()[-1]


@pytest.mark.requirement("11.embedded-refused")
def test_a_closed_stdin_is_refused(place: Place) -> None:
    file = place.directory / "file"
    file.touch()
    with file.open() as regular:
        assert "stdin is a file" in refused(place, regular.fileno())
    assert "stdin is a device" in refused(place, subprocess.DEVNULL)
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *place.command()],
        capture_output=True,
        text=True,
        env=place.environment,
        timeout=TIMEOUT,
    )
    assert closed.returncode == 2
    assert "stdin is closed" in closed.stderr
    assert place.leftovers == []


@pytest.mark.requirement("11.embedded-refused")
def test_a_terminal_is_refused_and_told_what_to_do(place: Place) -> None:
    master, terminal = pty.openpty()
    try:
        complaint = refused(place, terminal)
    finally:
        os.close(master)
        os.close(terminal)
    assert "--embedded: stdin is a terminal" in complaint
    assert "Leave out --embedded" in complaint


@pytest.mark.requirement("11.embedded-stdin")
def test_a_pipe_that_has_ended_already_ends_it(place: Place) -> None:
    result = run_program(place.arguments(), place.environment, input="", text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    assert place.leftovers == []
