"""The walks of docs/architecture.md are what runs: call stacks of a real server, a gateway, a node and a command."""

import dis
import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import pytest
import uvloop

from sandboxagent.server.http import rpc
from sandboxagent.server.sessions.requests import Requests
from tests.support.architecture import PAGE, read_walks, write_walk
from tests.support.call_stacks import PACKAGE, Step, modules_entered, path_of, steps_of
from tests.support.message_path import Client, message_path
from tests.support.nats import PROGRAM
from tests.support.walking import GATEWAY, TARGETS, WALKS, Walked, scene_of

NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(name == GATEWAY and not PROGRAM.exists(), reason="there is no NATS"))
    for name in WALKS
]


@cache
def walked(scene: Callable[[], Walked]) -> Walked:
    return scene()


def test_every_walk_has_a_block_and_every_block_is_a_walk() -> None:
    assert list(read_walks(PAGE.read_text())) == list(WALKS)


@pytest.mark.parametrize("name", NAMES)
def test_a_walk_is_what_runs(name: str) -> None:
    documented, scene = read_walks(PAGE.read_text())[name], scene_of(name)

    ran = write_walk(walked(scene)[name])
    if ran != documented:
        # What the disk and the kernel do at once or later on a busy machine may take another way once.
        ran = write_walk(scene()[name])

    assert ran == documented, "./dev walks writes it anew"


@pytest.mark.parametrize("name", NAMES)
def test_no_stack_of_a_walk_enters_a_module_twice(name: str) -> None:
    for stack in walked(scene_of(name))[name]:
        entered = modules_entered(stack.steps)
        assert [module for module in entered if entered.count(module) > 1] == []


@pytest.mark.parametrize("name", [each for each in NAMES if each.values[0] in TARGETS])
def test_a_walk_visits_few_modules(name: str) -> None:
    visited = {step.path for stack in walked(scene_of(name))[name] for step in stack.steps}
    print(f"{name}: {len(visited)} modules, {TARGETS[name]} at most")

    assert len(visited) <= TARGETS[name], sorted(visited)


def test_every_way_of_a_prompt_is_the_same_walk_and_begins_no_coroutine(tmp_path: Path) -> None:
    """A head that is parsed, one that is repeated, and a body that comes by itself."""

    async def main() -> dict[str, Entered]:
        async with message_path(tmp_path) as path:
            (client,) = path.clients
            ways: dict[str, Callable[[Client], None]] = {
                "another socket": Client.connect_again,
                "the same head again": lambda _: None,
                "the body by itself": Client.cut_after_head,
            }
            with entered(Requests.submit) as first:
                await client.take_turn()
            assert first.begun, "its stream, which is a task, was not noticed"
            found: dict[str, Entered] = {}
            for way, prepare in ways.items():
                prepare(client)
                with entered(Requests.submit) as found[way]:
                    assert (await client.take_turn()).startswith(b"HTTP/1.1 200")
            return found

    ways = uvloop.run(main())

    assert [step for each in ways.values() for step in each.begun] == []
    stacks = [[from_rpc(steps) for steps in each.stacks] for each in ways.values()]
    assert all(each == stacks[0] for each in stacks)
    assert [len(each) for each in stacks] == [1, 1, 1]
    assert len(stacks[0][0]) > 1, "it does not come through server/http/rpc.py"


def test_a_notification_and_an_answer_for_a_held_session_begin_no_coroutine(tmp_path: Path) -> None:
    async def main() -> list[Step]:
        async with message_path(tmp_path) as path:
            (client,) = path.clients
            # The stream has begun, and the head is known.
            await client.take_turn()
            note = f'{{"jsonrpc":"2.0","method":"x/note","params":{{"sessionId":"{client.session}"}}}}'
            id = path.ask(client.session)
            # The stream has it: its own task may begin coroutines until then.
            await path.site.settle()
            with entered(Requests.notify) as notified:
                assert (await client.send(note)).startswith(b"HTTP/1.1 202")
            allow = f'{{"jsonrpc":"2.0","id":"{id}","result":{{"outcome":{{"outcome":"selected","optionId":"y"}}}}}}'
            with entered(Requests.answer) as answered:
                assert (await client.send(allow)).startswith(b"HTTP/1.1 202")
            assert (len(notified.stacks), len(answered.stacks)) == (1, 1)
            return notified.begun + answered.begun

    assert uvloop.run(main()) == []


class Entered:
    """What was entered in this process: the stacks of one function, and all coroutines of ours that were begun."""

    def __init__(self, code: CodeType) -> None:
        self.stacks: list[list[Step]] = []
        self.begun: list[Step] = []
        self._code = code

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        if code.co_flags & inspect.CO_COROUTINE and frame.f_lasti <= first_step(code):
            self.begun += steps_of([(code.co_filename, code.co_qualname)])
        if code is self._code:
            frames: list[tuple[str, str]] = []
            each: FrameType | None = frame
            while each is not None:
                if each.f_code.co_filename.startswith(f"{PACKAGE}/"):
                    frames.append((each.f_code.co_filename, each.f_code.co_qualname))
                each = each.f_back
            self.stacks.append(steps_of(frames[::-1]))


@contextmanager
def entered(function: Callable[..., object]) -> Generator[Entered]:
    found = Entered(function.__code__)
    sys.setprofile(found.note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def first_step(code: CodeType) -> int:
    """Where a coroutine is when it begins; where it goes on later comes after that."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


def from_rpc(steps: list[Step]) -> list[Step]:
    first = next(place for place, step in enumerate(steps) if step.path == path_of(rpc))
    return steps[first:]
