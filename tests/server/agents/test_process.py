"""One agent process: contract, sections 5 (lines, stderr) and 10 (the whole tree dies)."""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import AgentExited, AgentNotReading
from sandboxagent.server.agents.process import MAX_STDERR_LOG_BYTES, AgentProcess, StderrLog
from sandboxagent.server.processes.children import ProcessTrees
from tests.support.running import BOUND
from tests.support.spawning import Powerless, Raising, Recorder, Run, Spawn, alive, escape, eventually, python

ECHO = ("cat",)
NEVER_READS = ("sh", "-c", "trap '' TERM; while :; do sleep 60; done")


@pytest.fixture
def processes() -> list[AgentProcess]:
    """All that a test started."""
    return []


@pytest.fixture
def run(processes: list[AgentProcess]) -> Run:
    """Runs a coroutine on a loop as the server has one; it is done within seconds, or the test fails."""

    async def bounded(main: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            async with asyncio.timeout(BOUND):
                await main()
        finally:
            await asyncio.gather(*(process.stop(0) for process in processes))
            # A loop that closes before it has seen a process die complains, some time later and in another test.
            assert await eventually(lambda: all(one._transport.get_returncode() is not None for one in processes))

    def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded(main))

    return run


@pytest.fixture
def children() -> ProcessTrees:
    return ProcessTrees(f"test-{uuid.uuid4()}")


@pytest.fixture
def spawn(children: ProcessTrees, processes: list[AgentProcess]) -> Spawn:
    async def spawn(*command: str, listener: Recorder, **options: object) -> AgentProcess:
        settings: dict[str, object] = {
            "agent": "test",
            "key": uuid.uuid4().hex,
            "environment": {"PATH": os.environ["PATH"]},
            "directory": None,
            "children": children,
        }
        process = await AgentProcess.spawn(command=command, listener=listener, **(settings | options))
        processes.append(process)
        return process

    return spawn


def test_a_line_goes_there_and_back(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        begun = time.time()
        process = await spawn(*ECHO, listener=listener)

        process.send(b'{"id":1}')
        process.send(b'{"id":2}')

        assert await listener.line() == b'{"id":1}'
        assert await listener.line() == b'{"id":2}'
        assert process.alive
        assert process.pid > 0
        assert begun - 1 <= process.started_at <= time.time() + 1
        assert await process.stop() == process.exit
        assert not process.alive

    run(main)


def test_a_line_of_63_mib_goes_there_and_back(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*ECHO, listener=listener)
        line = os.urandom(1 << 20).replace(b"\n", b" ") * 63

        process.send(line)

        await listener.until(lambda: len(listener.blob) > len(line), seconds=20)
        assert listener.blob == line + b"\n"
        await process.stop()

    run(main)


def test_bytes_that_are_not_utf_8_come_back_as_they_are(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*ECHO, listener=listener)

        process.send(bytes(range(10)) + bytes(range(11, 256)))

        assert await listener.line() == bytes(range(10)) + bytes(range(11, 256))
        await process.stop()

    run(main)


def test_an_oversized_line_is_reported_and_its_neighbours_come_through(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*ECHO, listener=listener, max_line=10_000)

        for line in (b"before", b"x" * 1_000_000, b"after"):
            process.send(line)

        assert await listener.line() == b"before"
        assert await listener.line() == b"after"
        assert listener.heads == [b"x" * 4096]
        await process.stop()

    run(main)


def test_the_last_line_needs_no_newline_and_comes_before_the_exit(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn("printf", "one\ntwo", listener=listener)

        await process.exited()

        assert listener.blob == b"one\ntwo\n"
        assert listener.bytes_at_exit == len(listener.blob)

    run(main)


def test_everything_written_before_the_exit_is_delivered(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*python("import os; os.write(1, b'x' * 60_000 + b'\\n'); os._exit(0)"), listener=listener)
        process.pause_reading()

        await process.exited()

        assert len(listener.blob) == 60_001
        assert listener.bytes_at_exit == 60_001

    run(main)


@pytest.mark.parametrize(
    ("command", "code", "name"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("kill -KILL $$", None, "SIGKILL"),
        ("kill -TERM $$", None, "SIGTERM"),
        ("kill -40 $$", None, "SIG40"),
    ],
)
def test_the_exit_says_code_or_signal_and_comes_once(
    run: Run, spawn: Spawn, command: str, code: int | None, name: str | None
) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn("sh", "-c", command, listener=listener)

        exit = await process.exited()

        assert (exit.code, exit.signal) == (code, name)
        assert process.exit is exit
        assert await process.stop() is exit
        assert await process.exited() is exit
        assert listener.exits == [exit]

    run(main)


def test_the_exit_has_head_and_tail_of_stderr_and_the_log_all_of_it(run: Run, spawn: Spawn, tmp_path: Path) -> None:
    async def main() -> None:
        log, pool = tmp_path / "logs" / "agent.log", Pool("test", 1)
        process = await spawn("sh", "-c", "seq 100 >&2", listener=Recorder(), stderr_log=StderrLog(log, pool))

        stderr = (await process.exited()).stderr
        await pool.run(int)

        assert stderr.head == [str(number) for number in range(1, 21)]
        assert stderr.tail == [str(number) for number in range(51, 101)]
        assert stderr.truncated
        assert stderr.total_lines == 100
        assert log.read_text().split() == [str(number) for number in range(1, 101)]
        assert log.stat().st_mode & 0o777 == 0o600

    run(main)


def test_the_log_of_stderr_starts_anew_when_it_is_full(run: Run, spawn: Spawn, tmp_path: Path) -> None:
    async def main() -> None:
        pool = Pool("test", 1)
        log = StderrLog(tmp_path / "agent.log", pool)
        process = await spawn("sh", "-c", "seq 600000 >&2", listener=Recorder(), stderr_log=log)

        await process.exited()
        await pool.run(int)

    run(main)
    both = (tmp_path / "agent.log.1").read_bytes() + (tmp_path / "agent.log").read_bytes()
    assert both.endswith(b"\n599999\n600000\n")
    assert MAX_STDERR_LOG_BYTES / 2 < len(both) <= 2 * MAX_STDERR_LOG_BYTES
    assert {path.name for path in tmp_path.iterdir()} == {"agent.log", "agent.log.1"}


def test_a_log_that_cannot_be_written_changes_nothing_else(
    run: Run, spawn: Spawn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        (tmp_path / "file").touch()
        pool = Pool("test", 1)
        log = StderrLog(tmp_path / "file" / "log", pool)
        process = await spawn("sh", "-c", "echo oops >&2", listener=Recorder(), stderr_log=log)

        assert (await process.exited()).stderr.head == ["oops"]
        await pool.run(int)
        assert len(caplog.records) == 1

    run(main)


def test_a_disk_that_hangs_at_the_log_of_stderr_does_not_hold_the_event_loop(
    run: Run, spawn: Spawn, tmp_path: Path
) -> None:
    async def main() -> None:
        # Opening one to write waits for a reader.
        path, pool = tmp_path / "agent.log", Pool("test", 2)
        os.mkfifo(path)
        listener, log = Recorder(), StderrLog(path, pool)
        script = "echo hello >&2; echo alive; read line; seq 600000 >&2; echo done"
        process = await spawn("sh", "-c", script, listener=listener, stderr_log=log)
        process.send(b"go on")
        await process.exited()
        written = await asyncio.to_thread(path.read_bytes)
        await pool.run(int)
        assert listener.blob == b"alive\ndone\n"
        assert b"are left out here" in written
        assert written.endswith(b"\n600000\n")
        assert len(written) < 2 * MAX_STDERR_LOG_BYTES

    run(main)


def test_a_program_that_does_not_exist_is_an_error_for_the_caller(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        for command, directory in ((("no-such-program",), None), (("cat",), "/no/such/directory")):
            with pytest.raises(FileNotFoundError):
                await spawn(*command, listener=Recorder(), directory=directory)

    run(main)


def test_a_process_gets_its_directory_and_no_environment_but_what_is_given(
    run: Run, spawn: Spawn, children: ProcessTrees, tmp_path: Path
) -> None:
    async def main() -> None:
        listener = Recorder()
        given = {"PATH": os.environ["PATH"], "ONE": "1"}
        process = await spawn("env", listener=listener, environment=given, key="k")
        await process.exited()
        assert dict(line.split("=", 1) for line in listener.blob.decode().splitlines()) == {
            **given,
            **children.environment(),
        }

        listener = Recorder()
        process = await spawn("pwd", listener=listener, directory=str(tmp_path))
        await process.exited()
        assert listener.blob.decode().strip() == str(tmp_path)

    run(main)


def test_a_listener_that_raises_is_logged_and_goes_on_hearing(
    run: Run, spawn: Spawn, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        listener = Raising()
        process = await spawn(*ECHO, listener=listener)

        process.send(b"one")
        assert await listener.line() == b"one"
        process.send(b"two")
        assert await listener.line() == b"two"
        await process.stop()

        assert len(listener.exits) == 1
        assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
            "a bug in lines",
            "a bug in lines",
            "a bug in exited",
        ]

    run(main)


def test_the_listener_can_be_another_one_later(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        first, second = Recorder(), Recorder()
        process = await spawn(*ECHO, listener=first)
        process.send(b"one")
        assert await first.line() == b"one"

        process.listener = second
        process.send(b"two")

        assert await second.line() == b"two"
        await process.stop()
        assert (len(first.exits), len(second.exits)) == (0, 1)

    run(main)


def test_nothing_is_read_while_reading_is_paused(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn("sh", "-c", "read go; seq 1000000; echo end >&2; read go", listener=listener)
        process.pause_reading()
        process.pause_reading()

        process.send(b"go")
        # It is blocked: it sleeps in a write to a full pipe.
        assert await eventually(lambda: any(p.state == "S" for p in children_of(process)))
        assert listener.blob == b""

        process.resume_reading()
        process.resume_reading()
        await listener.until(lambda: listener.blob.endswith(b"\n1000000\n"))
        await process.stop()
        process.pause_reading()
        process.resume_reading()

    def children_of(process: AgentProcess) -> list["Stat"]:
        return [stat for path in Path("/proc").glob("[0-9]*/stat") if (stat := Stat(path)).parent == process.pid]

    run(main)


class Stat:
    def __init__(self, path: Path) -> None:
        self.state, self.parent = "", 0
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            self.state, self.parent = state, int(parent)


def test_an_agent_that_does_not_read_is_refused_more_and_can_be_stopped(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*NEVER_READS, listener=listener, stdin_limit=4 << 20)

        for _ in range(3):
            process.send(b"x" * (1 << 20))
        with pytest.raises(AgentNotReading) as refused:
            process.send(b"x" * (2 << 20))
        assert refused.value.fields == {"agent": "test"}
        process.send(b"x")

        exit = await process.stop(grace=0.2)
        assert (exit.code, exit.signal) == (None, "SIGKILL")

    run(main)


def test_sending_to_a_dead_process_says_how_it_died(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        process = await spawn("sh", "-c", "echo oops >&2; exit 3", listener=Recorder())
        await process.exited()

        with pytest.raises(AgentExited) as refused:
            process.send(b"line")
        assert refused.value.fields["agent"] == "test"
        assert refused.value.fields["exitCode"] == 3
        assert refused.value.fields["stderr"] == {"head": ["oops"], "tail": [], "truncated": False, "totalLines": 1}

    run(main)


def test_sending_to_a_process_that_closed_its_stdin_is_refused_in_the_end(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn("sh", "-c", "exec <&-; echo closed; sleep 60", listener=listener)
        assert await listener.line() == b"closed"

        def refused() -> bool:
            try:
                process.send(b"line")
            except AgentExited:
                return True
            return False

        assert await eventually(refused)
        assert process.alive
        await process.stop()

    run(main)


def test_sending_after_stop_began_is_refused(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        process = await spawn(*NEVER_READS, listener=Recorder())
        stopping = asyncio.create_task(process.stop(0.1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        with pytest.raises(AgentExited):
            process.send(b"line")
        await stopping

    run(main)


def test_the_end_of_stdin_is_enough_for_a_polite_agent(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        process = await spawn(*ECHO, listener=Recorder())

        exit = await process.stop(grace=60)

        assert (exit.code, exit.signal) == (0, None)

    run(main)


def test_sigterm_comes_before_sigkill(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"
        process = await spawn("sh", "-c", script, listener=listener)
        assert await listener.line() == b"ready"

        exit = await process.stop(grace=5)

        assert (exit.code, exit.signal) == (7, None)

    run(main)


def test_all_who_stop_share_one_stop(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*NEVER_READS, listener=listener)
        first = asyncio.create_task(process.stop(0.1))
        await asyncio.sleep(0)
        first.cancel()

        exits = await asyncio.gather(process.stop(60), process.stop(60))

        assert exits == [process.exit, process.exit]
        assert await process.stop() is process.exit
        assert len(listener.exits) == 1

    run(main)


def test_stop_comes_back_from_a_process_that_cannot_be_killed(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        powerless = Powerless(f"test-{uuid.uuid4()}")
        process = await spawn(*NEVER_READS, listener=listener, children=powerless)

        exit = await process.stop(grace=0.1)

        assert (exit.code, exit.signal) == (None, "SIGKILL")
        assert not process.alive
        os.kill(process.pid, signal.SIGKILL)
        assert await eventually(lambda: not powerless.descendants(process.key))
        assert len(listener.exits) == 1

    run(main)


@pytest.mark.parametrize("end", ["exit", "stop", "kill"])
def test_nothing_an_agent_started_outlives_it(run: Run, spawn: Spawn, children: ProcessTrees, end: str) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*escape("naked", "nameless", "marked", "child", "stripped"), listener=listener)
        pids = [int(pid) for pid in (await listener.line()).split()]
        assert all(map(alive, pids))

        match end:
            case "exit":
                process.send(b"exit 3")
                assert (await process.exited()).code == 3
            case "stop":
                assert (await process.stop(grace=0.1)).signal == "SIGKILL"
            case _:
                os.kill(process.pid, signal.SIGKILL)
                assert (await process.exited()).signal == "SIGKILL"

        assert await eventually(lambda: not any(map(alive, pids)))
        # Nor is there a zombie.
        assert await eventually(lambda: children.reap() == 0 and not any(Path(f"/proc/{pid}").exists() for pid in pids))

    run(main)


def test_a_process_has_no_descriptors_of_the_server(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)

        process = await spawn("sh", "-c", "ls /proc/$$/fd", listener=listener)
        await process.exited()

        assert listener.blob.split() == [b"0", b"1", b"2"]
        os.close(reader)
        os.close(writer)

    run(main)


def test_the_exit_does_not_wait_for_a_grandchild_that_holds_stdout(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn(*escape("child"), listener=listener)
        await listener.line()

        process.send(b"exit 0")
        # The grandchild would hold it for twice as long.
        async with asyncio.timeout(BOUND / 2):
            await process.exited()

    run(main)


def test_the_end_of_stdout_is_not_the_end_of_the_process(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listener = Recorder()
        process = await spawn("sh", "-c", "exec >&- 2>&-; read go; exit 4", listener=listener)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await process.exited()
        assert process.alive

        process.send(b"go")
        assert (await process.exited()).code == 4

    run(main)


def test_the_tree_of_a_living_agent_survives_the_death_of_another(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        listeners = Recorder(), Recorder()
        one = await spawn(*escape("naked", "nameless", "marked"), listener=listeners[0])
        dying = [int(pid) for pid in (await listeners[0].line()).split()]
        # Clock ticks tell starts apart.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert await eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > now + 0.02)
        two = await spawn(*escape("naked", "nameless", "marked", "child", "stripped"), listener=listeners[1])
        staying = [int(pid) for pid in (await listeners[1].line()).split()]

        os.kill(one.pid, signal.SIGKILL)
        await one.exited()

        assert await eventually(lambda: not any(map(alive, dying)))
        assert all(map(alive, staying))
        assert two.alive
        await two.stop(0)
        assert await eventually(lambda: not any(map(alive, staying)))

    run(main)


def test_a_start_that_nobody_waits_for_any_more_leaves_no_process(
    run: Run, spawn: Spawn, children: ProcessTrees
) -> None:
    async def main() -> None:
        for steps in range(6):
            listener = Recorder()
            starting = asyncio.ensure_future(spawn(*NEVER_READS, listener=listener, key=f"key{steps}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

            assert await eventually(lambda key=f"key{steps}": not children.descendants(key))

    run(main)


def test_many_short_lived_processes_are_all_accounted_for(run: Run, spawn: Spawn) -> None:
    async def main() -> None:
        processes = await asyncio.gather(*(spawn("sh", "-c", f"exit {n}", listener=Recorder()) for n in range(30)))

        exits = await asyncio.gather(*(process.exited() for process in processes))

        assert [exit.code for exit in exits] == list(range(30))

    run(main)
