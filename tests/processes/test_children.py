"""Processes and what they fork: contract, section 10 (the whole tree dies with the agent, and with the server)."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox_agent.processes.children import Children

ESCAPING_AGENT = Path(__file__).parent.parent / "support" / "escaping_agent.py"

SERVER = """
import subprocess, sys, time
from sandbox_agent.processes.children import Children
children = Children(sys.argv[1])
with children.spawning("agent"):
    agent = subprocess.Popen(
        sys.argv[2:], env=children.environment("agent"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, preexec_fn=children.preexec("agent"))
    children.register("agent", agent.pid)
print(agent.pid, agent.stdout.readline().decode(), flush=True)
time.sleep(60)
"""

PID_1 = """
import os, subprocess, sys, time
from sandbox_agent.processes.children import Children
print(os.getpid())
children = Children("owner")
with children.spawning("agent"):
    agent = subprocess.Popen(
        sys.argv[1:], env=children.environment("agent"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, preexec_fn=children.preexec("agent"))
    children.register("agent", agent.pid)
daemon = int(agent.stdout.readline())
stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
agent.kill()
agent.wait()
children.ended("agent")
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


class Agents:
    """Starts agents as the server does, without an event loop."""

    def __init__(self) -> None:
        self.children = Children(f"test-{uuid.uuid4()}")
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, key: str, *command: str) -> list[int]:
        """The pids that the agent printed, when it did."""
        with self.children.spawning(key):
            agent = subprocess.Popen(
                command,
                env={**os.environ, **self.children.environment(key)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=self.children.preexec(key),  # noqa: PLW1509
            )
            self.children.register(key, agent.pid)
        self.running[key] = agent
        assert agent.stdout
        return [int(word) for word in agent.stdout.readline().split() if word.isdigit()]

    def escape(self, key: str, *kinds: str) -> list[int]:
        return self.start(key, sys.executable, str(ESCAPING_AGENT), *kinds)

    def wait(self, key: str) -> int:
        agent = self.running.pop(key)
        code = agent.wait(5)
        self.children.ended(key)
        for pipe in (agent.stdin, agent.stdout):
            if pipe:
                pipe.close()
        return code

    def end(self, key: str) -> int:
        self.running[key].kill()
        return self.wait(key)


@pytest.fixture
def agents() -> Iterator[Agents]:
    agents = Agents()
    yield agents
    for key in list(agents.running):
        agents.children.kill(key)
        agents.wait(key)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
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
    """Starts are told apart by clock ticks."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > now + 0.02)


def test_a_tree_is_what_descends_shares_the_session_or_has_the_marker(agents: Agents) -> None:
    pids = agents.escape("one", "marked", "child", "stripped")
    others = agents.escape("two", "marked", "child", "stripped")

    tree = {process.pid for process in agents.children.descendants("one")}

    assert tree == {agents.running["one"].pid, *pids}
    assert tree.isdisjoint(others)


def test_kill_leaves_nothing_of_the_tree_and_all_of_another(agents: Agents) -> None:
    pids = agents.escape("one", "marked", "child", "stripped")
    others = agents.escape("two", "marked", "child", "stripped")

    assert agents.children.kill("one") == 4

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


def test_orphans_that_ended_are_waited_for(agents: Agents) -> None:
    pids = agents.escape("one", "naked", "marked")

    os.kill(pids[0], signal.SIGKILL)
    assert eventually(lambda: agents.children.reap() == 1)

    assert state(pids[0]) == ""
    assert alive(pids[1])


def test_a_daemon_dies_with_its_agent_although_an_older_one_lives(agents: Agents) -> None:
    others = agents.escape("one", "naked", "marked", "child", "stripped")
    daemons = agents.escape("two", "naked", "marked")

    agents.end("two")

    assert eventually(lambda: not any(map(alive, daemons)))
    assert all(map(alive, others))


def test_a_nameless_orphan_dies_although_a_younger_agent_lives(agents: Agents) -> None:
    (orphan,) = agents.escape("one", "nameless")
    assert next_tick()
    others = agents.escape("two", "nameless", "naked", "marked", "child", "stripped")

    agents.end("one")

    assert eventually(lambda: not alive(orphan))
    assert all(map(alive, others))


def test_a_nameless_orphan_lives_as_long_as_any_agent_that_may_have_started_it(agents: Agents) -> None:
    agents.escape("one")
    (orphan,) = agents.escape("two", "nameless")

    agents.end("two")
    assert alive(orphan)

    agents.end("one")
    assert eventually(lambda: not alive(orphan))


def test_the_nameless_orphans_of_two_agents_die_with_the_last(agents: Agents) -> None:
    orphans = agents.escape("one", "nameless") + agents.escape("two", "nameless")

    agents.end("two")
    agents.end("one")

    assert eventually(lambda: not any(map(alive, orphans)))


def test_no_orphan_is_looked_for_while_a_child_is_being_started(agents: Agents) -> None:
    (orphan,) = agents.escape("one", "nameless")

    with agents.children.spawning("two"):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        agents.end("one")
        assert agents.children.reap() == 0
        assert alive(child.pid)
        assert alive(orphan)
        agents.children.register("two", child.pid)
        agents.running["two"] = child

    # The orphan may be of the same tick as the new child.
    agents.end("two")
    assert eventually(lambda: not alive(orphan))


def test_no_exit_status_is_taken_while_a_child_is_being_started(agents: Agents) -> None:
    with agents.children.spawning("one"):
        child = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
        assert eventually(lambda: state(child.pid) == "Z")
        assert agents.children.reap() == 0
        assert child.wait(5) == 7


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

    assert ended.wait(5) == 7
    assert busy.poll() is None
    busy.kill()
    busy.wait(5)


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


def test_a_process_that_never_stays_is_killed_with_its_group(agents: Agents) -> None:
    agents.start("one", sys.executable, "-c", COMET)
    group = agents.running["one"].pid

    agents.end("one")

    # Zombies belong to their group until they are waited for.
    assert eventually(lambda: agents.children.reap() == 0 and not has_members(group))


def test_a_child_dies_with_the_server(agents: Agents) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, "owner", sys.executable, str(ESCAPING_AGENT)], stdout=subprocess.PIPE
    )
    assert server.stdout
    with server, server.stdout:
        agent = int(server.stdout.readline())
        server.kill()

    assert eventually(lambda: not alive(agent))


def test_sweep_kills_what_a_killed_server_of_the_same_owner_left(agents: Agents) -> None:
    owner, other = f"test-{uuid.uuid4()}", f"test-{uuid.uuid4()}"
    left: dict[str, list[int]] = {}
    for name in (owner, other):
        command = [sys.executable, "-c", SERVER, name, sys.executable, str(ESCAPING_AGENT), "naked", "marked"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout
        with server, server.stdout:
            agent, *left[name] = map(int, server.stdout.readline().split())
            server.kill()
        assert eventually(lambda agent=agent: not alive(agent))
    assert all(map(alive, left[owner] + left[other]))

    assert Children(owner).sweep() == 2

    assert eventually(lambda: not any(map(alive, left[owner])))
    assert all(map(alive, left[other]))
    assert Children(other).sweep() == 2
    assert Children(owner).sweep() == 0


def test_sweep_spares_the_server_and_its_ancestors_whatever_they_inherited() -> None:
    owner = f"test-{uuid.uuid4()}"
    server = f"from sandbox_agent.processes.children import Children; print(Children({owner!r}).sweep())"
    # The shell is an ancestor of the server, the sleep is its brother: all three have the marker.
    script = 'sleep 60 >/dev/null & "$0" -c "$1"; echo survived'

    done = subprocess.run(
        ["sh", "-c", script, sys.executable, server],
        env={**os.environ, "SANDBOX_AGENT_OWNER": owner},
        capture_output=True,
        text=True,
        timeout=10,
    )

    assert done.stdout.split() == ["1", "survived"]


def test_a_server_inside_an_agent_of_another_has_a_tree_of_its_own(agents: Agents) -> None:
    inside = [sys.executable, "-c", SERVER, "inner", sys.executable, str(ESCAPING_AGENT), "naked", "marked"]
    pids = agents.start("outer", *inside)

    assert {process.pid for process in agents.children.descendants("outer")} == {agents.running["outer"].pid, *pids}
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
        timeout=20,
    )

    assert done.stdout.split() == ["1", "stranger", "alive"], done.stderr


def test_a_dead_first_thread_does_not_hide_a_process(agents: Agents) -> None:
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: (print(flush=True), time.sleep(60))).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit, of this thread alone
    )
    agents.start("one", sys.executable, "-c", script)
    pid = agents.running["one"].pid
    assert eventually(lambda: state(pid) == "Z")

    assert agents.children.kill("one") == 1

    assert agents.wait("one") == -signal.SIGKILL
