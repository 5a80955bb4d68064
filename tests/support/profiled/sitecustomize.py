"""Write down how chosen functions come to be called, in every program of ours that has this on its PYTHONPATH.

Python imports a module of this name at its start. `CALL_STACKS` names a directory: `watched.json` there says which
functions, and a line of `stacks` is the call stack of one, when it was entered. See `tests/support/call_stacks.py`.
"""

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType

LOOPS = ("asyncio.runners", "uvloop")


def watch(directory: Path) -> None:
    """Have the interpreter tell of every function that is entered, in this thread and in those that it starts."""
    chosen = json.loads((directory / "watched.json").read_text())
    package, watched = chosen["package"], {tuple(function) for function in chosen["functions"]}
    names = {name for _, name in watched}
    file = os.open(directory / "stacks", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (name := code.co_qualname) in names and (code.co_filename, name) in watched:
            stack: list[tuple[str, str]] = []
            each: FrameType | None = frame
            # What runs the event loop is the same for everything that it calls.
            while each is not None and each.f_globals.get("__name__") not in LOOPS:
                if each.f_code.co_filename.startswith(package):
                    stack.append((each.f_code.co_filename, each.f_code.co_qualname))
                each = each.f_back
            # One write: lines of several processes do not mix.
            os.write(file, json.dumps({"process": os.getpid(), "stack": stack[::-1]}).encode() + b"\n")

    threading.setprofile(note)
    sys.setprofile(note)


if "CALL_STACKS" in os.environ:
    watch(Path(os.environ["CALL_STACKS"]))
