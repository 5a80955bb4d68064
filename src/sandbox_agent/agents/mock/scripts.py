"""What the mock agent does in a turn: the first script whose word is in the prompt, in the order of SCRIPTS.

Knows nothing of how turns are started or cancelled: a cancelled turn is a CancelledError at whatever is awaited.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from uuid import uuid4

from acp import (
    Client,
    plan_entry,
    start_tool_call,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
)
from acp.helpers import ContentBlock, SessionUpdate
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    AudioContentBlock,
    ElicitationBooleanPropertySchema,
    ElicitationFormSessionMode,
    ElicitationNumberPropertySchema,
    ElicitationSchema,
    ElicitationStringPropertySchema,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    PermissionOption,
    PlanEntryStatus,
    ResourceContentBlock,
    TextContentBlock,
    ToolCallLocation,
    ToolCallUpdate,
)

from sandbox_agent.agents.mock.sessions import Session

STEP = 0.05
"""Seconds between the steps of a tool call or plan, so that they can be seen."""

WORD, WHOLE_REPLY = 0.01, 0.5
"""Seconds per streamed word, and at most for all of them: an echo of a long prompt must not take minutes."""

SLOW_WORD, SLOW_DEFAULT = 0.15, 10.0

MOST_UPDATES = 1_000_000
LONGEST_UPDATE = 128 * 1024 * 1024
BURST = 64
"""Updates between two looks at stdin; without them, a cancel would be seen only after the last one."""


@dataclass(slots=True)
class Turn:
    """One prompt, and the ways to respond to it."""

    client: Client
    session: Session
    prompt: list[ContentBlock]
    takes_forms: bool
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = "\n".join(block.text for block in self.prompt if isinstance(block, TextContentBlock))

    async def send(self, update: SessionUpdate) -> None:
        """Send an update and keep it for a later load."""
        self.session.record(update)
        await self.client.session_update(session_id=self.session.session_id, update=update)

    async def say(self, text: str) -> None:
        """Send a text at once."""
        await self.send(update_agent_message_text(text))

    async def stream(self, text: str) -> None:
        """Send a text word by word."""
        words = re.findall(r"\S+\s*|\s+", text)
        for word in words:
            await self.say(word)
            await asyncio.sleep(min(WORD, WHOLE_REPLY / len(words)))


@dataclass(frozen=True, slots=True)
class Script:
    """A word, and what it does."""

    usage: str
    summary: str
    play: Callable[[Turn, re.Match[str]], Awaitable[None]]
    pattern: str = ""
    """What to look for; the usage as a whole word when empty."""

    def match(self, text: str) -> re.Match[str] | None:
        """Look for it in a text in lower case."""
        # A pattern that starts with a word boundary takes a second for a prompt of 64 MiB, this takes none.
        if self.usage.split()[0] not in text:
            return None
        return re.search(self.pattern or rf"\b{self.usage}\b", text)


async def play(turn: Turn) -> None:
    """Play the first script whose word is in the prompt, or echo it.

    Raises RequestError when the client refused one of our requests, ValueError when its answer is not what ACP allows.
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


def _attachment(block: ContentBlock) -> str | None:
    match block:
        case TextContentBlock():
            return None
        case ResourceContentBlock():
            name, uri, mime = block.name, block.uri, block.mime_type
        case EmbeddedResourceContentBlock():
            uri, mime = block.resource.uri, block.resource.mime_type
            name = PurePath(uri).name or uri
        case ImageContentBlock():
            name, uri, mime = "image", block.uri, block.mime_type
        case AudioContentBlock():
            name, uri, mime = "audio", None, block.mime_type
    return f"- {name} ({', '.join(fact for fact in (uri, mime) if fact) or 'of unknown type'})"


async def _help(turn: Turn, _: re.Match[str]) -> None:
    lines = ["I am the mock agent. The first of these words in your prompt decides what I do:", ""]
    lines += [f"- {script.usage}: {script.summary}" for script in SCRIPTS]
    lines += ["", "Anything else I repeat, with what you attached."]
    await turn.say("\n".join(lines))


async def _permission(turn: Turn, _: re.Match[str]) -> None:
    call = f"call-{uuid4().hex[:12]}"
    title = "Write notes.txt"
    path = str(PurePath(turn.session.cwd) / "notes.txt")
    diff = [tool_diff_content(path, "Permission was given.\n", None)]
    locations = [ToolCallLocation(path=path)]
    raw_input = {"path": path, "content": "Permission was given.\n"}
    await turn.send(
        start_tool_call(
            call, title, kind="edit", status="pending", content=diff, locations=locations, raw_input=raw_input
        )
    )
    response = await turn.client.request_permission(
        session_id=turn.session.session_id,
        tool_call=ToolCallUpdate(
            tool_call_id=call,
            title=title,
            kind="edit",
            status="pending",
            content=list(diff),
            locations=locations,
            raw_input=raw_input,
        ),
        options=[
            PermissionOption(option_id="allow_once", name="Allow once", kind="allow_once"),
            PermissionOption(option_id="allow_always", name="Always allow", kind="allow_always"),
            PermissionOption(option_id="reject_once", name="Reject", kind="reject_once"),
        ],
    )
    chosen = response.outcome.option_id if isinstance(response.outcome, AllowedOutcome) else "cancelled"
    await turn.send(update_tool_call(call, status="completed" if chosen.startswith("allow") else "failed"))
    await turn.say(f"You chose: {chosen}")


async def _question(turn: Turn, _: re.Match[str]) -> None:
    colors = [("red", "Red", "Like a tomato"), ("green", "Green", "Like a cucumber"), ("blue", "Blue", "Like the sky")]
    answer: dict[str, object] = await turn.client.ext_method(
        "sandboxagent/session/request_question",
        {
            "sessionId": turn.session.session_id,
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
    if not turn.takes_forms:
        await turn.say("This client did not declare elicitation.form, so I cannot show it a form.")
        return
    form = ElicitationSchema(
        title="An order",
        properties={
            "color": ElicitationStringPropertySchema(type="string", title="Color", enum=["red", "green", "blue"]),
            "gift": ElicitationBooleanPropertySchema(type="boolean", title="Wrap it as a gift"),
            "amount": ElicitationNumberPropertySchema(type="number", title="How many", minimum=1, maximum=100),
            "note": ElicitationStringPropertySchema(type="string", title="Note", description="Anything you like"),
        },
        required=["color"],
    )
    mode = ElicitationFormSessionMode(session_id=turn.session.session_id, requested_schema=form)
    response = await turn.client.create_elicitation(message="What would you like?", mode=mode)
    if isinstance(response, AcceptElicitationResponse):
        await turn.say(f"You filled in: {json.dumps(response.content or {}, sort_keys=True)}")
    else:
        await turn.say(f"You answered the form with: {response.action}")


async def _tool(turn: Turn, _: re.Match[str]) -> None:
    call = f"call-{uuid4().hex[:12]}"
    path = str(PurePath(turn.session.cwd) / "greeting.txt")
    diff = [tool_diff_content(path, "Hello, world!\n", "Hello.\n")]
    await turn.send(
        start_tool_call(
            call,
            "Edit greeting.txt",
            kind="edit",
            status="pending",
            content=diff,
            locations=[ToolCallLocation(path=path)],
            raw_input={"path": path, "old": "Hello.\n", "new": "Hello, world!\n"},
        )
    )
    await asyncio.sleep(STEP)
    await turn.send(update_tool_call(call, status="in_progress"))
    await asyncio.sleep(STEP)
    await turn.send(update_tool_call(call, status="completed", content=diff, raw_output={"written": False}))
    await turn.say("The tool call is done. No file was touched.")


async def _plan(turn: Turn, _: re.Match[str]) -> None:
    steps = ["Understand the question", "Do the work", "Check the result"]

    async def show(done: int, *, at_work: bool) -> None:
        states: list[PlanEntryStatus] = ["completed" if index < done else "pending" for index in range(len(steps))]
        if at_work:
            states[done] = "in_progress"
        entries = [plan_entry(step, status=state) for step, state in zip(steps, states, strict=True)]
        await turn.send(update_plan(entries))
        await asyncio.sleep(STEP)

    await show(0, at_work=False)
    for index in range(len(steps)):
        await show(index, at_work=True)
    await show(len(steps), at_work=False)
    await turn.say("All went to plan.")


async def _think(turn: Turn, _: re.Match[str]) -> None:
    for thought in ("Let me see. ", "This needs a thought, ", "or two."):
        await turn.send(update_agent_thought_text(thought))
        await asyncio.sleep(STEP)
    await turn.stream("I thought about it, and it is as you say.")


async def _slow(turn: Turn, found: re.Match[str]) -> None:
    seconds = float(found[1] or SLOW_DEFAULT)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    count = 0
    while (left := end - loop.time()) > 0:
        count += 1
        await turn.say(f"word {count} ")
        await asyncio.sleep(min(SLOW_WORD, left))


async def _crash(turn: Turn, _: re.Match[str]) -> None:
    sys.stderr.write("mock agent: crashing, as the prompt asked for\n")
    sys.stderr.flush()
    os._exit(3)


async def _big(turn: Turn, found: re.Match[str]) -> None:
    count = min(int(found[1]), MOST_UPDATES)
    size = min(int(found[2]), LONGEST_UPDATE) if found[2] else None
    for index in range(count):
        text = f"{index} " if size is None else f"{index} ".ljust(size, "x")[:size]
        await turn.client.session_update(session_id=turn.session.session_id, update=update_agent_message_text(text))
        if index % BURST == 0:
            await asyncio.sleep(0)
    # Not the updates themselves: a load would replay, and the file hold, up to a million of them.
    turn.session.record(update_agent_message_text(f"({count} updates)"))


SCRIPTS = (
    Script("help", "shows this list", _help),
    Script("permission", "asks for permission to write a file", _permission),
    Script("question", "asks a question with three answers", _question),
    Script("form", "shows a form, if the client takes forms", _form),
    Script("tool", "makes a tool call with a diff", _tool),
    Script("plan", "makes a plan and works it off", _plan),
    Script("think", "thinks before it speaks", _think),
    Script("slow [seconds]", "streams words, for ten seconds or that many", _slow, r"\bslow\b(?:\s+(\d+(?:\.\d+)?))?"),
    Script("crash", "exits with code 3", _crash),
    Script(
        "big <n> [bytes]",
        f"sends that many updates at once, up to {MOST_UPDATES:,}, of that many bytes each",
        _big,
        r"\bbig\s+(\d+)\b(?:\s+(\d+)\b)?",
    ),
)
