"""Play the mock agent's turns: the first script whose word is in the prompt.

`agent.py` starts and cancels turns. A cancelled turn gets a CancelledError at any await.
"""

import asyncio
import copy
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import cast
from uuid import uuid4

from sandboxagent.adapters.stdio import Object, Peer, RpcError

STEP_INTERVAL = 0.05
"""Seconds between the steps of a tool call or plan, so that they can be seen."""

WORD_INTERVAL, REPLY_TIMEOUT = 0.01, 0.5
"""Seconds per streamed word, and maximum seconds for a whole reply. The echo of a long prompt must not take minutes."""

SLOW_WORD_INTERVAL, SLOW_TIMEOUT = 0.15, 10.0

MAX_UPDATES = 1_000_000
MAX_UPDATE_BYTES = 128 * 1024 * 1024
BURST = 64
"""Updates between two reads of stdin. Without these reads, a cancel would be seen only after the last update."""

STREAMED = ("agent_message_chunk", "agent_thought_chunk")


@dataclass(slots=True)
class Session:
    """One conversation, as it is stored."""

    session_id: str
    cwd: str
    mode: str
    model: str
    title: str | None = None
    updated_at: str = ""
    history: list[Object] = field(default_factory=list[Object])
    """The session's updates, as they are sent."""

    def record(self, update: Object) -> None:
        """Add an update to the history. Chunks of streamed text are merged into one."""
        match (self.history[-1] if self.history else None), update:
            case (
                {"sessionUpdate": kind, "content": {"text": str(text)}},
                {"sessionUpdate": again, "content": {"text": str(more)}},
            ) if kind == again and kind in STREAMED:
                self.history[-1] = {"sessionUpdate": kind, "content": {"type": "text", "text": text + more}}
            case _:
                self.history.append(copy.deepcopy(update))


@dataclass(frozen=True, slots=True)
class ClientFeatures:
    """The declared capabilities of the client that a turn may use."""

    forms: bool = False
    reads_files: bool = False
    writes_files: bool = False
    terminals: bool = False


@dataclass(slots=True)
class Turn:
    """One prompt, with methods to respond to it."""

    peer: Peer
    session: Session
    prompt: list[Object]
    client: "ClientFeatures"
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = "\n".join(str(block.get("text", "")) for block in self.prompt if block["type"] == "text")

    async def send(self, update: Object) -> None:
        """Send an update and keep it for a later load."""
        self.session.record(update)
        await self.show(update)

    async def show(self, update: Object) -> None:
        """Send an update."""
        await self.peer.notify("session/update", {"sessionId": self.session.session_id, "update": update})

    async def ask(self, method: str, params: Object) -> Object:
        """Send the client a request about this session, and return the answer."""
        return await self.peer.request(method, {"sessionId": self.session.session_id, **params})

    async def say(self, text: str) -> None:
        """Send a text at once."""
        await self.send(_message(text))

    async def stream(self, text: str) -> None:
        """Send a text word by word."""
        words = re.findall(r"\S+\s*|\s+", text)
        for word in words:
            await self.say(word)
            await asyncio.sleep(min(WORD_INTERVAL, REPLY_TIMEOUT / len(words)))


@dataclass(frozen=True, slots=True)
class Script:
    """A word in a prompt, and the function that plays it."""

    usage: str
    summary: str
    play: Callable[[Turn, re.Match[str]], Awaitable[None]]
    pattern: str = ""
    """Regular expression of the prompt's text. If empty, the usage must occur as a whole word."""

    def match(self, text: str) -> re.Match[str] | None:
        """Search for the script's word in a text in lower case."""
        # This check is fast. A pattern that starts with a word boundary takes a second for a prompt of 64 MiB.
        if self.usage.split()[0] not in text:
            return None
        return re.search(self.pattern or rf"\b{self.usage}\b", text)


async def play(turn: Turn) -> None:
    """Play the first script whose word is in the prompt, or echo the prompt.

    Raises RpcError if the client refused a request, and ValueError if ACP does not allow its answer.
    """
    text = turn.text.lower()
    for script in SCRIPTS:
        if found := script.match(text):
            await script.play(turn, found)
            return
    await _echo(turn)


async def _echo(turn: Turn) -> None:
    lines = [f"You said: {turn.text}" if turn.text else "You said nothing."]
    if attached := [line for block in turn.prompt if (line := _attachment(block))]:
        lines += ["", "You attached:", *attached]
    lines += ["", "Say help to see what else I can do."]
    await turn.stream("\n".join(lines))


def _attachment(block: Object) -> str | None:
    if block["type"] == "text":
        return None
    resource = block.get("resource")
    facts = cast("Object", resource) if isinstance(resource, dict) else block
    uri, mime = facts.get("uri"), facts.get("mimeType")
    name = PurePath(str(uri)).name or uri if facts is resource else block.get("name") or block["type"]
    return f"- {name} ({', '.join(str(fact) for fact in (uri, mime) if fact) or 'of unknown type'})"


async def _help(turn: Turn, _: re.Match[str]) -> None:
    lines = ["I am the mock agent. The first of these words in your prompt decides what I do:", ""]
    lines += [f"- {script.usage}: {script.summary}" for script in SCRIPTS]
    lines += ["", "Anything else I repeat, with what you attached."]
    await turn.say("\n".join(lines))


async def _permission(turn: Turn, _: re.Match[str]) -> None:
    call = _write_call(turn, "notes.txt", "Permission was given.\n")
    chosen = await _ask_permission(turn, call)
    await turn.send(_progress(call, "completed" if chosen.startswith("allow") else "failed"))
    await turn.say(f"You chose: {chosen}")


async def _write(turn: Turn, _: re.Match[str]) -> None:
    """Write a file as the prompt says, if the client permits it."""
    if not turn.client.writes_files:
        await turn.say("This client did not declare fs.writeTextFile, so I cannot write files.")
        return
    words = turn.text.split(maxsplit=2)
    name = words[1].rstrip(":")
    before = await _read(turn, name)
    content = f"{words[2].rstrip()}\n" if len(words) > 2 else "The mock agent wrote this.\n"
    call = _write_call(turn, name, content, before)
    chosen = await _ask_permission(turn, call)
    if not chosen.startswith("allow"):
        await turn.send(_progress(call, "failed"))
        await turn.say(f"You chose: {chosen}. I did not write {name}.")
        return
    await turn.send(_progress(call, "in_progress"))
    try:
        await turn.ask("fs/write_text_file", {"path": _path(turn, name), "content": content})
    except RpcError as refusal:
        await turn.send(_progress(call, "failed"))
        await turn.say(f"I could not write {name}: {refusal}")
        return
    await turn.send(_progress(call, "completed"))
    await turn.stream(f"I wrote {name}.")


async def _run(turn: Turn, _: re.Match[str]) -> None:
    """Run a command in a terminal of the client, if the client permits it."""
    if not turn.client.terminals:
        await turn.say("This client did not declare terminal, so I cannot run commands.")
        return
    command = turn.text.strip().partition(" ")[2].strip()
    call: Object = {
        "toolCallId": f"call-{uuid4().hex[:12]}",
        "title": command,
        "kind": "execute",
        "status": "pending",
        "rawInput": {"command": command},
    }
    chosen = await _ask_permission(turn, call)
    if not chosen.startswith("allow"):
        await turn.send(_progress(call, "failed"))
        await turn.say(f"You chose: {chosen}. I did not run it.")
        return
    try:
        shell = ["/bin/sh", "-c", command]
        made = await turn.ask("terminal/create", {"command": shell[0], "args": shell[1:], "cwd": turn.session.cwd})
        terminal: Object = {"terminalId": made["terminalId"]}
        await turn.send({**_progress(call, "in_progress"), "content": [{"type": "terminal", **terminal}]})
        try:
            ended = await turn.ask("terminal/wait_for_exit", terminal)
            await turn.ask("terminal/output", terminal)
        finally:
            await turn.ask("terminal/release", terminal)
    except RpcError as refusal:
        await turn.send(_progress(call, "failed"))
        await turn.say(f"I could not run it: {refusal}")
        return
    code = ended.get("exitCode")
    await turn.send(_progress(call, "completed" if code == 0 else "failed"))
    how = f"exit code {code}" if code is not None else f"signal {ended.get('signal')}"
    await turn.stream(f"The command ended with {how}.")


async def _read(turn: Turn, name: str) -> str | None:
    """Return the text of a file; None if it cannot be read."""
    if not turn.client.reads_files:
        return None
    try:
        content = (await turn.ask("fs/read_text_file", {"path": _path(turn, name)})).get("content")
    except RpcError:
        return None
    return content if isinstance(content, str) else None


def _path(turn: Turn, name: str) -> str:
    return str(PurePath(turn.session.cwd) / name)


def _write_call(turn: Turn, name: str, text: str, before: str | None = None) -> Object:
    path = _path(turn, name)
    diff = {"type": "diff", "path": path, "newText": text, **({} if before is None else {"oldText": before})}
    return {
        "toolCallId": f"call-{uuid4().hex[:12]}",
        "title": f"Write {name}",
        "kind": "edit",
        "status": "pending",
        "content": [diff],
        "locations": [{"path": path}],
        "rawInput": {"path": path, "content": text},
    }


async def _ask_permission(turn: Turn, call: Object) -> str:
    """Announce a tool call and ask permission for it. Return the chosen option, or `cancelled`."""
    await turn.send({"sessionUpdate": "tool_call", **call})
    options = {"allow_once": "Allow once", "allow_always": "Always allow", "reject_once": "Reject"}
    offered = [{"optionId": kind, "name": name, "kind": kind} for kind, name in options.items()]
    answer = await turn.ask("session/request_permission", {"toolCall": call, "options": offered})
    match answer:
        case {"outcome": {"outcome": "selected", "optionId": str(chosen)}}:
            return chosen
        case {"outcome": {"outcome": "cancelled"}}:
            return "cancelled"
        case _:
            raise ValueError("an answer needs an outcome")


async def _question(turn: Turn, _: re.Match[str]) -> None:
    colors = [("red", "Red", "Like a tomato"), ("green", "Green", "Like a cucumber"), ("blue", "Blue", "Like the sky")]
    answer = await turn.ask(
        "_sandboxagent/session/request_question",
        {
            "questionId": f"question-{uuid4().hex[:12]}",
            "prompt": "Which color do you like?",
            "options": [[id, label] for id, label, _ in colors],
            "questions": [
                {
                    "header": "Color",
                    "question": "Which color do you like?",
                    "options": [
                        {"id": id, "label": label, "description": description} for id, label, description in colors
                    ],
                    "multiSelect": False,
                }
            ],
        },
    )
    match answer:
        case {"status": "answered", "answers": answers}:
            await turn.say(f"You answered: {json.dumps(answers)}")
        case {"status": str(status)}:
            await turn.say(f"The question was {status}.")
        case _:
            raise ValueError("an answer needs a status")


async def _form(turn: Turn, _: re.Match[str]) -> None:
    if not turn.client.forms:
        await turn.say("This client did not declare elicitation.form, so I cannot show it a form.")
        return
    form: Object = {
        "type": "object",
        "title": "An order",
        "properties": {
            "color": {"type": "string", "title": "Color", "enum": ["red", "green", "blue"]},
            "gift": {"type": "boolean", "title": "Wrap it as a gift"},
            "amount": {"type": "number", "title": "How many", "minimum": 1, "maximum": 100},
            "note": {"type": "string", "title": "Note", "description": "Anything you like"},
        },
        "required": ["color"],
    }
    asked: Object = {"mode": "form", "message": "What would you like?", "requestedSchema": form}
    match await turn.ask("elicitation/create", asked):
        case {"action": "accept", **answer}:
            await turn.say(f"You filled in: {json.dumps(answer.get('content') or {}, sort_keys=True)}")
        case {"action": "decline" | "cancel" as action}:
            await turn.say(f"You answered the form with: {action}")
        case _:
            raise ValueError("an answer needs an action")


async def _tool(turn: Turn, _: re.Match[str]) -> None:
    path = str(PurePath(turn.session.cwd) / "greeting.txt")
    diff = [{"type": "diff", "path": path, "newText": "Hello, world!\n", "oldText": "Hello.\n"}]
    call: Object = {
        "toolCallId": f"call-{uuid4().hex[:12]}",
        "title": "Edit greeting.txt",
        "kind": "edit",
        "status": "pending",
        "content": diff,
        "locations": [{"path": path, "line": 1}],
        "rawInput": {"path": path, "old": "Hello.\n", "new": "Hello, world!\n"},
    }
    await turn.send({"sessionUpdate": "tool_call", **call})
    await asyncio.sleep(STEP_INTERVAL)
    await turn.send(_progress(call, "in_progress"))
    await asyncio.sleep(STEP_INTERVAL)
    await turn.send({**_progress(call, "completed"), "content": diff, "rawOutput": {"written": False}})
    await turn.say("The tool call is done. No file was touched.")


async def _plan(turn: Turn, _: re.Match[str]) -> None:
    steps = ["Understand the question", "Do the work", "Check the result"]

    async def show(done: int, *, at_work: bool) -> None:
        states = ["completed" if index < done else "pending" for index in range(len(steps))]
        if at_work:
            states[done] = "in_progress"
        entries = [
            {"content": step, "priority": "medium", "status": state} for step, state in zip(steps, states, strict=True)
        ]
        await turn.send({"sessionUpdate": "plan", "entries": entries})
        await asyncio.sleep(STEP_INTERVAL)

    await show(0, at_work=False)
    for index in range(len(steps)):
        await show(index, at_work=True)
    await show(len(steps), at_work=False)
    await turn.say("All went to plan.")


async def _think(turn: Turn, _: re.Match[str]) -> None:
    for thought in ("Let me see. ", "This needs a thought, ", "or two."):
        await turn.send({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": thought}})
        await asyncio.sleep(STEP_INTERVAL)
    await turn.stream("I thought about it, and it is as you say.")


async def _slow(turn: Turn, found: re.Match[str]) -> None:
    seconds = float(found[1] or SLOW_TIMEOUT)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    count = 0
    while (left := end - loop.time()) > 0:
        count += 1
        await turn.say(f"word {count} ")
        await asyncio.sleep(min(SLOW_WORD_INTERVAL, left))


async def _crash(turn: Turn, _: re.Match[str]) -> None:
    sys.stderr.write("mock agent: crashing, as the prompt asked for\n")
    sys.stderr.flush()
    os._exit(3)


async def _big(turn: Turn, found: re.Match[str]) -> None:
    count = min(int(found[1]), MAX_UPDATES)
    size = min(int(found[2]), MAX_UPDATE_BYTES) if found[2] else None
    for index in range(count):
        text = f"{index} " if size is None else f"{index} ".ljust(size, "x")[:size]
        await turn.show(_message(text))
        if index % BURST == 0:
            await asyncio.sleep(0)
    # Do not record the updates themselves: a load would replay, and the file would hold, up to a million of them.
    turn.session.record(_message(f"({count} updates)"))


def _message(text: str) -> Object:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


def _progress(call: Object, status: str) -> Object:
    return {"sessionUpdate": "tool_call_update", "toolCallId": call["toolCallId"], "status": status}


SCRIPTS = (
    Script("help", "shows this list", _help),
    Script("write <file> [text]", "writes a file, after you permit it", _write, r"^\s*write\s+[^\s:]"),
    Script("run <command>", "runs a command in a terminal, after you permit it", _run, r"^\s*run\s+\S"),
    Script("permission", "asks for permission to write a file, and writes nothing", _permission),
    Script("question", "asks a question with three answers", _question),
    Script("form", "shows a form, if the client takes forms", _form),
    Script("tool", "makes a tool call with a diff", _tool),
    Script("plan", "makes a plan and works it off", _plan),
    Script("think", "thinks before it speaks", _think),
    Script("slow [seconds]", "streams words, for ten seconds or that many", _slow, r"\bslow\b(?:\s+(\d+(?:\.\d+)?))?"),
    Script("crash", "exits with code 3", _crash),
    Script(
        "big <n> [bytes]",
        f"sends that many updates at once, up to {MAX_UPDATES:,}, of that many bytes each",
        _big,
        r"\bbig\s+(\d+)\b(?:\s+(\d+)\b)?",
    ),
)
