"""The guard of the message path: turns and updates may not become a quarter dearer than `baseline.toml` says.

It measures CPU time of one thread, as a ratio to a piece of work that has nothing to do with the server, taken right
before and after, so that the machine's pace does not matter. That work goes through as much code as the server does:
neighbours that take caches away slow both down alike. What the thread of the log does for a turn is measured by
itself (`groups`): how dear it is to change threads is the machine's affair. Of a batch of short samples a good one
counts, and of several batches the best. It looks for a better one until the bound is met, for a bounded time. When it
is not met and the machine was busy with something else meanwhile, the test is skipped: after every wait caches are
cold, and nothing can be said. When it fails beside other tests, `./dev test` measures it again, alone. How many
functions are called for each is the same on every machine: a twentieth more is noticed.
"""

import asyncio
import gc
import inspect
import shlex
import sys
import textwrap
import time
import tomllib
from collections.abc import Awaitable, Callable, Generator
from configparser import RawConfigParser
from contextlib import contextmanager
from email import message_from_string
from fractions import Fraction
from html.parser import HTMLParser
from json import dumps
from pathlib import Path
from string import Template
from types import FrameType
from urllib.parse import quote, urlencode

import pytest
import uvloop

from sandboxagent.server.main import GC_THRESHOLDS
from tests.support.message_path import MessagePath, message_path

BASELINE = Path(__file__).with_name("baseline.toml")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
DEARER = 1.2
"""Less than a quarter: of several batches one is lucky."""
MORE_CALLS = 1.05
CLIENTS = 4
BATCH = 60
COUNTED = 20
TIMEOUT = 3.0
"""Seconds of CPU time in which to find a good batch."""
QUIET = 0.95
"""The part of its time that work has a processor for, on a machine with nothing else to do."""

Sample = Callable[[MessagePath], Awaitable[int]]


async def session_calls(path: MessagePath) -> int:
    """A request with a session, of every client, that its agent answers."""
    responses = await asyncio.gather(*(client.request("x/echo", '"x":1') for client in path.clients))
    assert all(response.startswith(b"HTTP/1.1 200") for response in responses)
    return len(responses)


async def turns(path: MessagePath) -> int:
    """A turn of every client, side by side."""
    responses = await asyncio.gather(*(client.take_turn() for client in path.clients))
    assert all(response.startswith(b"HTTP/1.1 200") for response in responses)
    return len(responses)


async def keyed_turns(path: MessagePath) -> int:
    """The same under an idempotency key, as SDKs do."""
    responses = await asyncio.gather(*(client.take_turn(path.next_key()) for client in path.clients))
    assert all(response.startswith(b"HTTP/1.1 200") for response in responses)
    return len(responses)


async def updates(path: MessagePath) -> int:
    """Single updates, each of which goes to a reader of its own."""
    for client in path.clients * 5:
        path.update(client.session)
        await asyncio.sleep(0)
    for _ in range(4):
        await asyncio.sleep(0)
    return len(path.clients) * 5


async def groups(path: MessagePath) -> int:
    """What a turn leaves in the log, in a transaction of its own."""
    for _ in range(4):
        path.write_group()
    return 4


_TOML = '[a]\nb = 1\nc = "two"\nd = [1, 2, {x = 3.5}]\n[a.e]\nf = 2026-01-01T00:00:00Z\n'
_MAIL = "From: a@example.com\nSubject: hello\nContent-Type: text/plain; charset=utf-8\n\nhello\n"


def reference() -> float:
    """CPU time of a tour through the standard library: much code, each part of it once, as in the server."""
    began = time.thread_time()
    tomllib.loads(_TOML)
    time.strptime("18 Nov 2026 06:46:27", "%d %b %Y %H:%M:%S")
    dumps({"a": [1, 2.5, None], "b": {"c": "d"}}, indent=1)
    shlex.split("a 'b c' --d=e f")
    textwrap.wrap("one two three four five six seven", 12)
    message_from_string(_MAIL).get_content_type()
    quote(urlencode({"a": "b c", "d": "é"}))
    str(Fraction(3, 7) + Fraction(2, 5))
    HTMLParser().feed("<p class='a'>hello <b>you</b></p>")
    RawConfigParser().read_string("[a]\nb=1\nc: 2\n")
    Template("$a and ${b}").substitute(a=1, b=2)
    inspect.signature(textwrap.wrap)
    return time.thread_time() - began


async def good_ratio(path: MessagePath, sample: Sample) -> float:
    """CPU time of one of what was sampled in that of the reference: of a batch, what one in ten was better than."""
    ratios: list[float] = []
    for _ in range(BATCH):
        before = reference()
        began = time.thread_time()
        done = await sample(path)
        spent = time.thread_time() - began
        ratios.append(spent / done / (before + reference()) * 2)
    return sorted(ratios)[BATCH // 10]


def share_of_the_machine() -> float:
    """The part of its time for which some work had a processor."""
    spent = time.thread_time()
    began = time.perf_counter()
    for _ in range(200):
        reference()
    return (time.thread_time() - spent) / (time.perf_counter() - began)


def measured(sample: Sample, folder: Path, bound: float) -> float:
    """The best ratio of all batches; stops looking once it is below the bound."""

    async def main() -> float:
        async with message_path(folder, CLIENTS) as path:
            await good_ratio(path, sample)
            best, until = float("inf"), time.thread_time() + TIMEOUT
            with garbage_as_in_the_server():
                while best > bound and time.thread_time() < until:
                    best = min(best, await good_ratio(path, sample))
            return best

    return uvloop.run(main())


@contextmanager
def garbage_as_in_the_server() -> Generator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def counted(sample: Sample, folder: Path) -> float:
    """How many functions one of what is sampled calls, those written in C included. The machine's mood is not in it.

    The least of several samples counts: in others the log's thread was late, and the event loop went round once more.
    """
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def main() -> float:
        nonlocal calls
        found: list[float] = []
        async with message_path(folder, CLIENTS) as path:
            await sample(path)
            for _ in range(COUNTED):
                calls = 0
                sys.setprofile(count)
                try:
                    done = await sample(path)
                finally:
                    sys.setprofile(None)
                found.append(calls / done)
        return min(found)

    return uvloop.run(main())


def baseline(name: str, kind: str = "time") -> float:
    baselines = tomllib.loads(BASELINE.read_text())
    if VERSION not in baselines:
        pytest.skip(f"{BASELINE.name} has no figures for Python {VERSION}")
    return baselines[VERSION][kind][name]


SAMPLES = [session_calls, turns, keyed_turns, updates, groups]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.__name__)
def test_the_message_path_makes_no_more_calls(sample: Sample, tmp_path: Path) -> None:
    expected = baseline(sample.__name__, "calls")
    assert counted(sample, tmp_path) <= expected * MORE_CALLS, f"{sample.__name__} made {expected} calls of functions"


def test_the_guard_notices_a_turn_that_makes_more_calls(tmp_path: Path) -> None:
    expected = baseline("turns", "calls")

    async def dearer(path: MessagePath) -> int:
        done = await turns(path)
        for _ in range(round(0.08 * expected * done)):
            callable(path)
        return done

    assert counted(dearer, tmp_path) > expected * MORE_CALLS


@pytest.mark.measures
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.__name__)
def test_the_message_path_has_not_become_dearer(sample: Sample, tmp_path: Path) -> None:
    expected = baseline(sample.__name__)
    ratio = measured(sample, tmp_path, expected * DEARER)
    if ratio > expected * DEARER and (share := share_of_the_machine()) < QUIET:
        pytest.skip(f"the machine is busy: {share:.0%} of a processor is too little to tell")
    assert ratio <= expected * DEARER, (
        f"{sample.__name__} cost {ratio:.3f} of the reference each, {ratio / expected:.0%} of {expected}. If that is "
        f"worth it, change {BASELINE.name} and say why; ./dev bench flame shows where the time goes"
    )


def test_the_guard_notices_a_turn_that_is_dearer(tmp_path: Path) -> None:
    expected = baseline("turns")

    async def dearer(path: MessagePath) -> int:
        done = 0
        for _ in range(3):
            done += await turns(path)
        # Three fifths of what so many turns cost.
        for _ in range(3):
            reference()
        return done

    async def main() -> float:
        async with message_path(tmp_path, CLIENTS) as path:
            return await good_ratio(path, dearer)

    assert uvloop.run(main()) > expected * DEARER
