"""Plays Amp's command line, as far as the adapter uses it: a prompt is a list of steps in JSON.

usage: fake_amp.py threads new | threads continue ID … --settings-file FILE    a message on stdin, lines on stdout

Steps: ["say", text], ["think", text], ["use", id, tool, arguments] (asks the delegate of its settings as Amp does),
["sneak", id, tool, arguments] (does not ask), ["help", id, tool, arguments] (asks, and tells nothing, as a helper of
Amp's), ["write", path, text], ["raw", line], ["fail", text], ["leave", path] (starts a process in a session of its own,
and writes its id), ["hold"] (waits until it is ended), ["complain", text] (on stderr), ["exit", code]. What it was
called with, and its settings, are in `called.json` in its directory.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

THREAD = "T-0a1b2c3d-0000-4000-8000-{:012}"
USAGE = {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 5, "max_tokens": 300000}


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def assistant(*content: Any, stop: str = "end_turn") -> None:
    message = {"type": "message", "role": "assistant", "content": content, "stop_reason": stop, "usage": USAGE}
    tell(type="assistant", message=message, parent_tool_use_id=None)


def sneak(id: str, tool: str, arguments: Any) -> None:
    """Use a tool without asking."""
    assistant({"type": "tool_use", "id": id, "name": tool, "input": arguments}, stop="tool_use")
    result = {"type": "tool_result", "tool_use_id": id, "content": "done", "is_error": False}
    tell(type="user", message={"role": "user", "content": [result]})


def use(settings: Any, id: str, tool: str, arguments: Any) -> None:
    """Use a tool: tell of it, ask, and tell what came of it."""
    assistant({"type": "tool_use", "id": id, "name": tool, "input": arguments}, stop="tool_use")
    asked = ask(settings, id, tool, arguments)
    said = json.dumps({"output": "done", "exitCode": 0}) if asked.returncode == 0 else asked.stderr
    result = {"type": "tool_result", "tool_use_id": id, "content": said, "is_error": asked.returncode != 0}
    tell(type="user", message={"role": "user", "content": [result]})


def ask(settings: Any, id: str, tool: str, arguments: Any) -> "subprocess.CompletedProcess[str]":
    """Run the delegate."""
    rule = settings["amp.permissions"][-1]
    environment = {**os.environ, "AGENT": "amp", "AGENT_TOOL_NAME": tool, "AGENT_TOOL_USE_ID": id}
    return subprocess.run(
        [rule["to"]], input=json.dumps(arguments), env=environment, capture_output=True, text=True, check=False
    )


def leave(path: str) -> None:
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(path).write_text(str(left.pid))


def play(settings: Any, steps: list[list[Any]]) -> str | None:
    """Play the steps; what went wrong, if a step says so."""
    for name, *given in steps:
        match name:
            case "say":
                assistant({"type": "text", "text": given[0]})
            case "think":
                assistant({"type": "thinking", "thinking": given[0]}, stop="tool_use")
            case "use":
                use(settings, *given)
            case "help":
                ask(settings, *given)
            case "sneak":
                sneak(*given)
            case "write":
                Path(given[0]).parent.mkdir(exist_ok=True)
                Path(given[0]).write_text(given[1])
            case "raw":
                print(given[0], flush=True)
            case "leave":
                leave(given[0])
            case "hold":
                signal.pause()
            case "complain":
                print(given[0], file=sys.stderr, flush=True)
            case "exit":
                sys.exit(given[0])
            case "fail":
                return given[0]
            case _:
                raise ValueError(name)
    return None


def main() -> None:
    if sys.argv[1:] == ["threads", "new"]:
        number = int(os.environ.get("FAKE_AMP_FAILS", "0"))
        if number:
            print("Error creating thread: fetch failed", file=sys.stderr)
            sys.exit(number)
        made = Path(os.environ["FAKE_AMP_THREADS"])
        count = int(made.read_text()) + 1 if made.exists() else 0
        made.write_text(str(count))
        print(THREAD.format(count))
        return
    settings = json.loads(Path(sys.argv[sys.argv.index("--settings-file") + 1]).read_text())
    mode = oct(Path(sys.argv[sys.argv.index("--settings-file") + 1]).stat().st_mode & 0o777)
    message = json.loads(sys.stdin.readline())
    content = message["message"]["content"]
    called = {"arguments": sys.argv[1:], "settings": settings, "mode": mode, "content": content}
    Path("called.json").write_text(json.dumps(called))
    tell(type="system", subtype="init", session_id=sys.argv[3], tools=[])
    tell(type="user", message={"role": "user", "content": content})
    problem = play(settings, json.loads(content[-1]["text"]))
    if problem is None:
        tell(type="result", subtype="success", is_error=False, result="")
    else:
        tell(type="result", subtype="error_during_execution", is_error=True, error=problem)


if __name__ == "__main__":
    main()
