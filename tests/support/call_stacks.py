"""The call stacks of running programs: how a function came to be entered, by our own code from first to last."""

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import sandboxagent
from tests.support.running import eventually

PACKAGE = Path(sandboxagent.__file__).parent
PROFILED = Path(__file__).with_name("profiled")
Function = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """A function of ours: the file in which it is, below the package, and its name there."""

    path: str
    function: str

    def __str__(self) -> str:
        return f"{self.path} {self.function}"


@dataclass(frozen=True)
class Stack:
    """The functions that were on the stack of one process when the last of them was entered."""

    process: int
    steps: list[Step]

    @property
    def entered(self) -> Step:
        return self.steps[-1]


class CallStacks:
    """What was entered in all programs that are started with `environment`."""

    def __init__(self, directory: Path, functions: Iterable[Function]) -> None:
        watched = [_code_of(function) for function in functions]
        (directory / "watched.json").write_text(json.dumps({"package": f"{PACKAGE}/", "functions": watched}))
        self.environment = {"PYTHONPATH": str(PROFILED), "CALL_STACKS": str(directory)}
        self._file = directory / "stacks"
        self._file.touch()

    def count(self) -> int:
        """How much has been entered so far."""
        return self._file.read_bytes().count(b"\n")

    def since(self, count: int) -> list[Stack]:
        """What has been entered after so much else."""
        lines = self._file.read_bytes().splitlines()[count:]
        return [Stack(each["process"], steps_of(each["stack"])) for each in map(json.loads, lines)]

    def wait_for(self, count: int, ends: "list[End]") -> list[Stack]:
        """The stacks on which these functions were entered one after another, each the first time that it was."""
        found: list[Stack] = []

        def is_complete() -> bool:
            found[:] = match(self.since(count), ends)
            return len(found) == len(ends)

        eventually(is_complete, " then ".join(str(step_of(end.function)) for end in ends))
        return found


@dataclass(frozen=True)
class End:
    """A function with which a stack ends; `through` was entered before it on the same stack."""

    function: Function
    through: Function | None = None

    def ends(self, stack: Stack) -> bool:
        return stack.entered == step_of(self.function) and (
            self.through is None or step_of(self.through) in stack.steps
        )


def match(stacks: list[Stack], ends: list[End]) -> list[Stack]:
    """The first stack that ends as the first of these says, the first after it that ends as the second, and so on."""
    remaining = iter(stacks)
    found: list[Stack] = []
    for end in ends:
        stack = next((stack for stack in remaining if end.ends(stack)), None)
        if stack is None:
            break
        found.append(stack)
    return found


def step_of(function: Function) -> Step:
    """A function as it stands in a stack."""
    (step,) = steps_of([_code_of(function)])
    return step


def steps_of(frames: Iterable[Iterable[str]]) -> list[Step]:
    """The functions of some frames: comprehensions, lambdas and inner functions are part of the one that has them."""
    steps: list[Step] = []
    for path, name in frames:
        function, *inner = name.split(".<locals>.")
        step = Step(Path(path).relative_to(PACKAGE).as_posix(), function)
        if not (inner and steps and steps[-1] == step):
            steps.append(step)
    return steps


def modules_entered(steps: Iterable[Step]) -> list[str]:
    """The modules of a stack, each as often as it is entered from another one."""
    entered: list[str] = []
    for step in steps:
        if not entered or entered[-1] != step.path:
            entered.append(step.path)
    return entered


def path_of(module: ModuleType) -> str:
    """A module as it stands in a stack."""
    assert module.__file__ is not None
    return Path(module.__file__).relative_to(PACKAGE).as_posix()


def _code_of(function: Function) -> tuple[str, str]:
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_qualname
