"""Run the compiled load client against a running server and read its figures."""

import itertools
import json
import subprocess
import time
from collections.abc import Sequence

import msgspec
from build import Tools
from servers import Failed, Running, Target

TIMEOUT = 45
IDLE_TIMEOUT = 3  # A burst is over when no reader has received anything for this long.
SETTLE_INTERVAL = 1.0

_tags = itertools.count(1)


class Posts(msgspec.Struct, frozen=True):
    answered: int
    wanted: int
    wrong: int
    seconds: float
    p50_us: float
    p99_us: float
    max_us: float


class Turns(Posts, frozen=True):
    early: int
    """Number of responses that came on a stream before the update of their turn."""


class Paced(msgspec.Struct, frozen=True):
    arrived: int
    wanted: int
    status: int
    p50_us: float
    p99_us: float
    max_us: float


class Burst(msgspec.Struct, frozen=True):
    delivered: int
    lost: int
    repeated: int
    reordered: int
    others: int
    resumed: int
    gone: int
    fewest: int
    seconds: float
    answered_after: float
    status: int
    timed_out: bool


class Held(msgspec.Struct, frozen=True):
    streams: int
    closed: int


class Load:
    """The load client, bound to one running server."""

    def __init__(self, tools: Tools, running: Running) -> None:
        self._tools = tools
        self._running = running

    def post(self, targets: list[Target], clients: int, requests: int, warmup: int) -> Posts:
        """Run that many clients, each with one request after another.

        Raises:
            Failed: a request got no answer, or a wrong one.
        """
        numbers = [clients, requests, warmup, TIMEOUT]
        posts = msgspec.json.decode(self._run("post", targets, numbers), type=Posts)
        if posts.answered != posts.wanted:
            raise Failed(f"{posts.answered} of {posts.wanted} requests answered, {posts.wrong} wrongly")
        return posts

    def turn(self, targets: list[Target], turns: int, warmup: int, headers: str) -> Turns:
        """Run a client for each target, each with one turn after another and its own stream.

        Raises:
            Failed: a turn was refused, or a part of it is missing.
        """
        numbers = [len(targets), turns, warmup, headers, TIMEOUT]
        done = msgspec.json.decode(self._run("turn", targets, numbers), type=Turns)
        if done.answered != done.wanted or done.wrong:
            raise Failed(f"{done.answered} of {done.wanted} turns taken, {done.wrong} refused")
        return done

    def pace(self, target: Target, count: int, rate: int) -> Paced:
        """Run one turn with `count` updates, at `rate` updates per second.

        Raises:
            Failed: the prompt was refused, or no update came.
        """
        paced = msgspec.json.decode(self._run("pace", [target], [count, rate, TIMEOUT]), type=Paced)
        if paced.status not in (200, 202) or paced.arrived == 0:
            raise Failed(f"prompt answered {paced.status}, {paced.arrived} updates arrived")
        return paced

    def burst(self, targets: list[Target], session: str, count: int, size: int) -> Burst:
        """Open a stream on each target, and send a prompt on the first that makes the agent send `count` updates.

        Raises:
            Failed: the prompt was refused, or nothing arrived at all.
        """
        tag = f"t{next(_tags)}"
        prompt = [{"type": "text", "text": f"burst {count} {size} {tag}"}]
        params = {"sessionId": session, "prompt": prompt}
        envelope = {"jsonrpc": "2.0", "id": 9, "method": "session/prompt", "params": params}
        file = self._running.folder / "prompt.json"
        file.write_text(json.dumps(envelope))
        numbers = [len(targets), count, tag, file, IDLE_TIMEOUT, TIMEOUT]
        burst = msgspec.json.decode(self._run("sse", targets, numbers), type=Burst)
        if burst.status not in (200, 202) or burst.delivered == 0:
            raise Failed(f"prompt answered {burst.status}, {burst.delivered} events delivered")
        if burst.timed_out:
            raise Failed(f"not over after {TIMEOUT} s: {burst.delivered} delivered, {burst.lost} missing")
        return burst

    def hold(self, targets: list[Target]) -> int:
        """Return the resident bytes of the server while it holds one idle stream on each target.

        Raises:
            Failed: a stream was refused or ended.
        """
        command = self._command("idle", targets, [len(targets), TIMEOUT])
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stderr is not None
            try:
                if holder.stdout.readline() != b"READY\n":
                    raise Failed(holder.stderr.read().decode().strip() or "the load client said nothing")
                time.sleep(SETTLE_INTERVAL)
                resident = self._running.resident()
                holder.stdin.close()
                held = msgspec.json.decode(holder.stdout.read(), type=Held)
            finally:
                holder.kill()
        if held.closed:
            raise Failed(f"{held.closed} of {held.streams} idle streams were closed by the server")
        return resident

    def _command(self, mode: str, targets: list[Target], arguments: Sequence[object]) -> list[str]:
        file = self._running.folder / "targets.txt"
        file.write_text("".join(target.line() + "\n" for target in targets))
        program = self._tools.turns if mode in ("turn", "pace") else self._tools.client
        return [str(program), mode, str(self._running.port), str(file), *map(str, arguments)]

    def _run(self, mode: str, targets: list[Target], arguments: Sequence[object]) -> bytes:
        command = self._command(mode, targets, arguments)
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT + 10, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"the load client did not end within {TIMEOUT + 10} s") from None
        if done.returncode != 0:
            complaint = done.stderr.decode(errors="replace").strip()
            raise Failed(complaint or f"the load client exited {done.returncode}")
        return done.stdout
