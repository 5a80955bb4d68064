"""Processes and what they fork: contract, section 10 (the whole tree dies with the agent, and with the server)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxagent.server.processes.cgroup import open_cgroup
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.processes.proc import children_of
from tests.support.running import BOUND

ESCAPING_AGENT = Path(__file__).parents[2] / "support" / "escaping_agent.py"

SERVER = """
import subprocess, sys, time
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.processes.cgroup import open_cgroup
children = ProcessTrees(sys.argv[1], open_cgroup(sys.argv[1]))
with children.spawning("agent"):
    agent = subprocess.Popen(
        sys.argv[2:], env=children.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, preexec_fn=children.preexec("agent"))
    program = children.register("agent", agent.pid)
print(agent.pid, program, agent.stdout.readline().decode(), flush=True)
time.sleep(60)
"""

PID_1 = """
import os, subprocess, sys, time
from sandboxagent.server.processes.children import ProcessTrees
print(os.getpid())
children = ProcessTrees("owner")
with children.spawning("agent"):
    agent = subprocess.Popen(
        sys.argv[1:], env=children.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, preexec_fn=children.preexec("agent"))
    program = children.register("agent", agent.pid)
daemon = int(agent.stdout.readline())
stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
os.kill(program, 9)
agent.wait()
children.forget("agent")
while os.path.exists(f"/proc/{daemon}"):
    time.sleep(0.005)
    children.reap()
try:
    print("stranger", stranger.wait(0.3))
except subprocess.TimeoutExpired:
    print("stranger alive")
"""

FORKING_AGENT = """
import os, resource, sys
print("ready", flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 40, 1 << 40))
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
"""

COMET = """
import os, time
end = time.monotonic() + 10  # Should it escape, it must not fly for ever.
if os.fork() != 0:
    os._exit(0)
print("ready", flush=True)
while time.monotonic() < end:
    if os.fork() != 0:
        os._exit(0)
"""


RELAY = """
import os, resource, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 40, 1 << 40))
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(writer, str(os.getpid()).encode())
                os.execve("/bin/sleep", ["sleep", "60"], {})
    os._exit(0)
os.wait()
print(os.read(reader, 20).decode(), flush=True)
time.sleep(60)
"""


TRACED = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
def sleeper():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(60)
    return pid
stopped, traced = sleeper(), sleeper()
os.kill(stopped, signal.SIGSTOP)
reader, writer = os.pipe()
tracer = os.fork()
if tracer == 0:
    os.setsid()
    seized = libc.ptrace(16, traced, None, None)  # PTRACE_ATTACH
    os.write(writer, b"%d" % (seized == 0))
    time.sleep(60)
attached = os.read(reader, 1) == b"1"
print(stopped, traced, tracer if attached else 0, flush=True)
time.sleep(60)
"""


class Agents:
    """Starts agents as the server does, without an event loop."""

    def __init__(self) -> None:
        self.children = ProcessTrees(f"test-{uuid.uuid4()}")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        """Their reapers, which end as they do."""
        self.programs: dict[str, int] = {}

    def start(self, key: str, *command: str, linger: float = 0) -> list[int]:
        """The pids that the agent printed, when it did."""
        with self.children.spawning(key):
            agent = subprocess.Popen(
                command,
                env={**os.environ, **self.children.environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=self.children.preexec(key, linger),  # noqa: PLW1509
            )
            self.programs[key] = self.children.register(key, agent.pid)
        self.running[key] = agent
        assert agent.stdout
        return [int(word) for word in agent.stdout.readline().split() if word.isdigit()]

    def escape(self, key: str, *kinds: str) -> list[int]:
        return self.start(key, sys.executable, str(ESCAPING_AGENT), *kinds)

    def wait(self, key: str) -> int:
        agent = self.running.pop(key)
        code = agent.wait(BOUND)
        self.children.forget(key)
        for pipe in (agent.stdin, agent.stdout):
            if pipe:
                pipe.close()
        return code

    def end(self, key: str) -> int:
        os.kill(self.programs[key], signal.SIGKILL)
        return self.wait(key)


@pytest.fixture
def agents() -> Iterator[Agents]:
    agents = Agents()
    yield agents
    for key in list(agents.running):
        agents.children.kill(key)
        agents.wait(key)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BOUND
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def state(pid: int) -> str:
    """The letter of /proc; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z")


def running(token: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def next_tick() -> bool:
    """Clock ticks tell starts apart."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > now + 0.02)


def test_a_tree_is_all_that_comes_from_a_program_whatever_it_did_to_itself(agents: Agents) -> None:
    pids = agents.escape("one", "nameless", "naked", "marked", "child", "stripped")
    others = agents.escape("two", "nameless", "naked", "marked", "child", "stripped")

    tree = {process.pid for process in agents.children.descendants("one")}

    assert tree == {agents.programs["one"], *pids}
    assert tree.isdisjoint(others)


def test_kill_leaves_nothing_of_the_tree_and_all_of_another(agents: Agents) -> None:
    pids = agents.escape("one", "nameless", "marked", "child", "stripped")
    others = agents.escape("two", "nameless", "marked", "child", "stripped")

    assert agents.children.kill("one") == 5

    assert agents.wait("one") == -signal.SIGKILL
    assert eventually(lambda: not any(map(alive, pids)))
    assert all(map(alive, others))


def test_terminate_asks_the_whole_tree(agents: Agents) -> None:
    agents.start("one", "sh", "-c", "sleep 60 & setsid sleep 60 & echo; wait")
    assert eventually(lambda: len(agents.children.descendants("one")) == 3)
    tree = {process.pid for process in agents.children.descendants("one")}

    agents.children.terminate("one")

    assert agents.wait("one") == -signal.SIGTERM
    assert eventually(lambda: not any(map(alive, tree)))


def test_a_child_that_exits_takes_its_daemons_along(agents: Agents) -> None:
    pids = agents.escape("one", "naked", "nameless", "marked", "child", "stripped")

    agents.end("one")

    assert eventually(lambda: not any(map(alive, pids)))


def test_daemons_that_ended_are_waited_for(agents: Agents) -> None:
    pids = agents.escape("one", "naked", "marked")

    os.kill(pids[0], signal.SIGKILL)

    assert eventually(lambda: state(pids[0]) == "")
    assert alive(pids[1])


def test_a_daemon_dies_with_its_agent_although_an_older_one_lives(agents: Agents) -> None:
    others = agents.escape("one", "naked", "marked", "child", "stripped")
    daemons = agents.escape("two", "naked", "marked")

    agents.end("two")

    assert eventually(lambda: not any(map(alive, daemons)))
    assert all(map(alive, others))


@pytest.mark.parametrize("dying", ["one", "two"])
def test_a_daemon_without_any_mark_dies_with_its_agent_and_no_others(agents: Agents, dying: str) -> None:
    kinds = ("nameless", "naked", "marked", "child", "stripped")
    daemons = {"one": agents.escape("one", *kinds), "two": agents.escape("two", *kinds)}
    (living,) = {"one", "two"} - {dying}

    agents.end(dying)

    assert eventually(lambda: not any(map(alive, daemons[dying])))
    agents.children.reap()
    assert all(map(alive, daemons[living]))
    assert alive(agents.programs[living])


def test_an_orphan_is_killed_although_the_event_loop_has_ended_its_threads(agents: Agents) -> None:
    (orphan,) = agents.escape("one", "nameless")

    async def end() -> None:
        await asyncio.get_running_loop().shutdown_default_executor()
        # Nothing but the server is there to kill it.
        agents.running["one"].kill()
        agents.wait("one")
        agents.children.reap()

    asyncio.run(end())

    assert eventually(lambda: not alive(orphan))


def test_a_daemon_that_is_started_by_a_daemon_dies_as_well(agents: Agents) -> None:
    (pid,) = agents.start("one", sys.executable, "-c", RELAY)
    assert alive(pid)

    agents.end("one")

    assert eventually(lambda: not alive(pid))


def test_a_process_that_kills_its_reaper_dies_with_it(agents: Agents) -> None:
    pids = agents.escape("one", "nameless", "naked", "marked", "child", "stripped")
    others = agents.escape("two", "nameless", "naked", "marked", "child", "stripped")

    agents.running["one"].kill()
    agents.wait("one")

    assert eventually(lambda: not any(map(alive, [*pids, agents.programs["one"]])))
    assert all(map(alive, others))


def test_a_reaper_that_was_stopped_does_not_save_what_is_below_it(agents: Agents) -> None:
    pids = agents.escape("one", "nameless", "marked")
    os.kill(agents.running["one"].pid, signal.SIGSTOP)

    assert eventually(lambda: agents.children.kill("one") == 0 or agents.running["one"].poll() is not None)

    agents.wait("one")
    assert not any(map(alive, pids))


def test_what_was_stopped_is_asked_to_end_as_well(agents: Agents) -> None:
    script = "trap 'exit 7' TERM; echo; while :; do sleep 0.01; done"
    agents.start("one", "sh", "-c", script)
    for pid in (agents.programs["one"], agents.running["one"].pid):
        os.kill(pid, signal.SIGSTOP)

    agents.children.terminate("one")

    assert agents.wait("one") == 7


def test_a_tree_in_which_processes_trace_and_stop_each_other_is_killed_whole(agents: Agents) -> None:
    (stopped, traced, tracer) = agents.start("one", sys.executable, "-c", TRACED)
    if not tracer:
        pytest.skip("processes may not trace each other here")

    assert eventually(lambda: agents.children.kill("one") == 0 or agents.running["one"].poll() is not None)

    agents.wait("one")
    assert eventually(lambda: not any(map(alive, [stopped, traced, tracer])))


def test_a_program_that_leaves_processes_that_trace_each_other_ends_with_them(agents: Agents) -> None:
    pids = agents.start("one", sys.executable, "-c", TRACED)

    os.kill(agents.programs["one"], signal.SIGKILL)

    assert agents.wait("one") == -signal.SIGKILL
    assert eventually(lambda: not any(pid and alive(pid) for pid in pids))


def test_a_program_ends_as_it_did_whatever_it_leaves(agents: Agents) -> None:
    for code in (0, 7, 255):
        agents.start("one", "sh", "-c", f"setsid sleep 60 & echo; exit {code}")
        assert agents.wait("one") == code
    for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL, signal.SIGRTMAX):
        agents.start("one", "sh", "-c", f"setsid sleep 60 & echo; kill -{number} $$")
        assert agents.wait("one") == -number


def test_what_lingers_may_finish(agents: Agents) -> None:
    script = "(read line; echo done) <&3 & echo $!; exit 3"
    reader, writer = os.pipe()
    pids = agents.start("one", "sh", "-c", f"exec 3</proc/{os.getpid()}/fd/{reader}; {script}", linger=60)
    assert eventually(lambda: not alive(agents.programs["one"]))
    assert all(map(alive, pids))

    os.write(writer, b"line\n")

    assert agents.wait("one") == 3
    os.close(reader)
    os.close(writer)


def test_lingering_process_is_killed_when_it_is_hurried(agents: Agents) -> None:
    pids = agents.start("one", "sh", "-c", "sleep 60 & echo $!; exit 3", linger=60)
    assert eventually(lambda: not alive(agents.programs["one"]))
    assert all(map(alive, pids))

    agents.children.end_linger("one")

    assert agents.wait("one") == 3
    assert not any(map(alive, pids))


def test_no_orphan_is_looked_for_while_a_child_is_being_started(agents: Agents) -> None:
    (orphan,) = agents.escape("one", "nameless")

    with agents.children.spawning("two"):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        # Nothing but the server is there to kill it.
        agents.running["one"].kill()
        agents.wait("one")
        assert agents.children.reap() == 0
        assert alive(child.pid)
        assert alive(orphan)
        agents.programs["two"] = agents.children.register("two", child.pid)
        agents.running["two"] = child

    assert eventually(lambda: not alive(orphan))
    assert alive(child.pid)


def test_no_exit_status_is_taken_while_a_child_is_being_started(agents: Agents) -> None:
    with agents.children.spawning("one"):
        child = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
        assert eventually(lambda: state(child.pid) == "Z")
        assert agents.children.reap() == 0
        assert child.wait(BOUND) == 7


def test_the_exit_status_of_a_registered_child_is_left_to_others(agents: Agents) -> None:
    agents.start("one", "sh", "-c", "exit 7")
    assert eventually(lambda: state(agents.running["one"].pid) == "Z")

    assert agents.children.reap() == 0
    assert agents.wait("one") == 7


def test_what_the_server_runs_in_its_own_session_is_left_alone(agents: Agents) -> None:
    ended = subprocess.Popen(["sh", "-c", "exit 7"])
    busy = subprocess.Popen(["sleep", "60"])
    assert eventually(lambda: state(ended.pid) == "Z")
    agents.escape("one", "naked")

    agents.end("one")
    agents.children.reap()

    assert ended.wait(BOUND) == 7
    assert busy.poll() is None
    busy.kill()
    busy.wait(BOUND)


def test_a_key_is_for_one_child_at_a_time(agents: Agents) -> None:
    agents.escape("one")

    with pytest.raises(ValueError, match="one"), agents.children.spawning("one"):
        pass

    agents.end("one")
    agents.escape("one")


def test_a_tree_that_forks_all_the_time_is_killed_whole(agents: Agents) -> None:
    token = f"60.{uuid.uuid4().int % 10**9:09}"
    # An older agent that lives on: what is not found with its parent would be taken for its.
    agents.escape("other")
    agents.start("one", sys.executable, "-c", FORKING_AGENT, token)
    assert eventually(lambda: running(token))

    assert eventually(lambda: agents.children.kill("one") == 0 or not alive(agents.running["one"].pid))

    agents.wait("one")
    assert eventually(lambda: not running(token))


def test_a_process_that_never_stays_is_killed(agents: Agents) -> None:
    agents.start("one", sys.executable, "-c", COMET)

    agents.wait("one")

    assert not has_members(agents.programs["one"])


class Crash:
    """A server that ran one agent until it was killed."""

    def __init__(self, owner: str, *kinds: str, with_reaper: bool = False, stopped: bool = False) -> None:
        command = [sys.executable, "-c", SERVER, owner, sys.executable, str(ESCAPING_AGENT), *kinds]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout
        with server, server.stdout:
            reaper, self.agent, *self.daemons = map(int, server.stdout.readline().split())
            if stopped:
                os.kill(reaper, signal.SIGSTOP)
            if with_reaper:
                # First, and with a server that cannot see it: the death of the server would wake the reaper.
                server.send_signal(signal.SIGSTOP)
                os.kill(reaper, signal.SIGKILL)
            server.kill()


def test_a_tree_dies_with_a_server_that_was_killed() -> None:
    crash = Crash("owner", "nameless", "naked", "marked", "child", "stripped")

    assert eventually(lambda: not any(map(alive, [crash.agent, *crash.daemons])))


def test_a_tree_whose_reaper_was_stopped_dies_with_a_server_that_was_killed() -> None:
    crash = Crash("owner", "nameless", "naked", "marked", "child", "stripped", stopped=True)

    assert eventually(lambda: not any(map(alive, [crash.agent, *crash.daemons])))


def test_sweep_kills_what_goes_on_stopping_its_reaper_after_the_server_was_killed() -> None:
    owner = f"test-{uuid.uuid4()}"
    crash = Crash(owner, "naked", "stopper", stopped=True)

    assert eventually(lambda: ProcessTrees(owner).kill_leftovers() == 0)

    assert not any(map(alive, [crash.agent, *crash.daemons]))


def test_sweep_kills_what_a_server_left_that_was_killed_with_its_reapers() -> None:
    owner, other = f"test-{uuid.uuid4()}", f"test-{uuid.uuid4()}"
    left = {name: Crash(name, "naked", "marked", with_reaper=True) for name in (owner, other)}
    assert eventually(lambda: not any(alive(crash.agent) for crash in left.values()))
    assert all(map(alive, left[owner].daemons + left[other].daemons))

    assert ProcessTrees(owner).kill_leftovers() == 2

    assert eventually(lambda: not any(map(alive, left[owner].daemons)))
    assert all(map(alive, left[other].daemons))
    assert ProcessTrees(other).kill_leftovers() == 2
    assert ProcessTrees(owner).kill_leftovers() == 0


def test_in_a_cgroup_sweep_kills_what_has_thrown_away_all_that_marks_it() -> None:
    owner = f"test-{uuid.uuid4()}"
    cgroup = open_cgroup(owner)
    if cgroup is None:
        pytest.skip("needs a cgroup of version 2 that is ours to make")
    crash = Crash(owner, "nameless", "naked", with_reaper=True)
    assert eventually(lambda: not alive(crash.agent))
    assert all(map(alive, crash.daemons))
    children = ProcessTrees(owner, cgroup)

    assert children.kill_leftovers() == 2

    assert not any(map(alive, crash.daemons))
    children.close()


def test_an_empty_cgroup_of_a_server_that_runs_is_not_taken_for_a_leftover() -> None:
    owner = f"test-{uuid.uuid4()}"
    cgroup = open_cgroup(owner)
    if cgroup is None:
        pytest.skip("needs a cgroup of version 2 that is ours to make")
    other = open_cgroup(f"{owner}-other")
    assert other is not None
    other.close()

    daemons = Crash(owner, "nameless", with_reaper=True).daemons

    assert cgroup.kill() >= 1, "what was started later is in it all the same"
    assert not any(map(alive, daemons))
    cgroup.close()


def test_sweep_spares_the_server_and_its_ancestors_whatever_they_inherited() -> None:
    owner = f"test-{uuid.uuid4()}"
    server = (
        "from sandboxagent.server.processes.children import ProcessTrees; "
        f"print(ProcessTrees({owner!r}).kill_leftovers())"
    )
    # The shell is an ancestor of the server, the sleep is its brother: all three have the marker.
    script = 'sleep 60 >/dev/null & "$0" -c "$1"; echo survived'

    done = subprocess.run(
        ["sh", "-c", script, sys.executable, server],
        env={**os.environ, "SANDBOX_AGENT_OWNER": owner},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["1", "survived"]


def test_a_server_inside_an_agent_of_another_has_a_tree_of_its_own(agents: Agents) -> None:
    inside = [sys.executable, "-c", SERVER, "inner", sys.executable, str(ESCAPING_AGENT), "naked", "marked"]
    pids = agents.start("outer", *inside)

    tree = {process.pid for process in agents.children.descendants("outer")}
    assert tree == {agents.programs["outer"], *pids}
    agents.end("outer")

    assert eventually(lambda: not any(map(alive, pids)))


def test_as_pid_1_a_server_spares_the_daemons_of_strangers() -> None:
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a pid namespace of its own")

    done = subprocess.run(
        [*alone, sys.executable, "-c", PID_1, sys.executable, str(ESCAPING_AGENT), "naked"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["1", "stranger", "alive"], done.stderr


def test_a_dead_first_thread_does_not_hide_a_process(agents: Agents) -> None:
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: (print(flush=True), time.sleep(60))).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit, of this thread alone
    )
    agents.start("one", sys.executable, "-c", script)
    assert eventually(lambda: state(agents.programs["one"]) == "Z")

    assert agents.children.kill("one") == 1

    assert agents.wait("one") == -signal.SIGKILL


WALKS = """
import asyncio, json, os, signal, subprocess, sys, threading
from sandboxagent.server.processes.children import ProcessTrees
walks = {"here": 0, "elsewhere": 0}
def hook(event, arguments):
    if event == "os.scandir" and arguments[0] == "/proc":
        walks["here" if threading.current_thread() is threading.main_thread() else "elsewhere"] += 1
children = ProcessTrees("walks-" + str(os.getpid()))
def start(key):
    with children.spawning(key):
        agent = subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, **children.environment()},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=children.preexec(key))
        return agent, children.register(key, agent.pid), int(agent.stdout.readline())
def is_there(pid):
    return os.path.exists(f"/proc/{pid}")
async def main():
    agents = {key: start(key) for key in "abc"}
    sys.addaudithook(hook)
    for key in "ab":
        agent, program, daemon = agents[key]
        os.kill(program, signal.SIGKILL)
        agent.wait()
        children.forget(key)
        assert not is_there(daemon), "its reaper has killed it"
    quiet = dict(walks)
    agent, program, daemon = agents["c"]
    agent.kill()
    agent.wait()
    for _ in range(20):
        children.reap()
    children.forget("c")
    while is_there(daemon) or is_there(program):
        await asyncio.sleep(0.005)
        children.reap()
    print(json.dumps([quiet, walks]))
asyncio.run(main())
"""


def test_end_of_a_child_scans_no_processes_on_the_event_loop() -> None:
    """A quiet end scans no processes anywhere; orphans cost a few scans, off the event loop."""
    if children_of(os.getpid()) is None:
        pytest.skip("this kernel has no list of a process's children")
    done = subprocess.run(
        [sys.executable, "-c", WALKS, str(ESCAPING_AGENT), "nameless"], capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0, done.stderr
    quiet, in_all = json.loads(done.stdout)
    assert quiet == {"here": 0, "elsewhere": 0}
    assert in_all["here"] == 0
    # One after another, however often an orphan was seen.
    assert 0 < in_all["elsewhere"] < 40
