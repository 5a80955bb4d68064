"""`sandbox-agent attach`: the last part of a session, then what happens there; and a way to say something."""

import asyncio
import signal
from contextlib import nullcontext

from sandbox_agent.cli.failures import document, tell
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.cli.output import EXIT_FAILED
from sandbox_agent.cli.talk import FAILURES
from sandbox_agent.cli.talk.conversation import Conversation
from sandbox_agent.cli.talk.interrupts import Interrupts, run
from sandbox_agent.cli.talk.json_lines import gap, write_line
from sandbox_agent.cli.talk.log import Live, OwnPrompts, before_last
from sandbox_agent.cli.talk.servers import Reports, find, served
from sandbox_agent.cli.talk.view import View, view
from sandbox_agent.client import Gap, Session, SessionEnded, SessionInfo
from sandbox_agent.client.asking import Handlers
from sandbox_agent.errors import SettingsError
from sandbox_agent.wire import methods


def start(arguments: Arguments) -> int:
    """Do what is wished for; gives the exit code."""
    if arguments.switch("all") and arguments.number("history") is not None:
        raise SettingsError("--all and --history exclude each other")
    seen = view(as_json=arguments.switch("json"), quiet=arguments.switch("quiet"))
    Reports(seen.say, seen.warn).install()
    return run(lambda interrupts: _attach(arguments, seen, interrupts))


async def _attach(arguments: Arguments, seen: View, interrupts: Interrupts) -> int:
    interrupts.restore = seen.restore
    talks = seen.terminal is not None and not arguments.switch("json") and not arguments.switch("read_only")
    async with seen.listening() if talks else nullcontext():
        return await _served(arguments, seen, interrupts, talks=talks)


async def _served(arguments: Arguments, seen: View, interrupts: Interrupts, *, talks: bool) -> int:
    as_json = arguments.switch("json")
    # Without a terminal, leave requests to other clients.
    handlers = seen.handlers("ask") if talks else Handlers()
    if seen.asking is not None:
        # What waits there is asked when what led to it has been shown.
        seen.asking.hold()
    try:
        async with served(arguments, seen.say, seen.warn, handlers) as server:
            info = await find(server.client, arguments.word("session") or "")
            session = await server.client.sessions.attach(info.session_id)
            live = Live(server.client, session)
            before = await live.boundary()
            after = 0
            if not arguments.switch("all"):
                turns = arguments.number("history")
                after = await before_last(session, 1 if turns is None else turns, before)
            if as_json:
                return await _lines(session, info, after, before)
            seen.showing.cwd = session.cwd
            own = OwnPrompts()
            own.watch(server.client)
            conversation = Conversation(session, own, seen, live.updates)
            if talks:
                seen.say(f"{session.agent} in {session.cwd} · /help lists the commands, Ctrl-C leaves")
            await conversation.replay(after, before)
            if not info.running:
                # A turn that a server's end has cut off has no end in the log.
                conversation.settle()
            if seen.asking is not None:
                seen.asking.use(server.client)
                seen.asking.release()
            return await _watched(conversation, info, seen, interrupts, talks=talks)
    except FAILURES as failure:
        seen.screen.finish()
        if as_json:
            write_line({"error": document(failure)})
        tell(failure)
        return EXIT_FAILED
    finally:
        seen.screen.finish()


async def _lines(session: Session, info: SessionInfo, after: int, before: int) -> int:
    """Every envelope of the log as a line."""
    if info.ended:
        async for event in session.history(after):
            write_line(gap(event) if isinstance(event, Gap) else event.envelope)
        return 0
    async for event in session.follow(after):
        write_line(gap(event) if isinstance(event, Gap) else event.envelope)
        if not isinstance(event, Gap) and event.id >= before and event.envelope.get("method") == methods.ENDED:
            break
    return 0


async def _watched(
    conversation: Conversation, info: SessionInfo, seen: View, interrupts: Interrupts, *, talks: bool
) -> int:
    if info.ended:
        seen.say("the session has ended" + ("; a prompt brings it back" if talks and info.resumable else ""))
        if not (talks and info.resumable):
            return 0
    interrupts.on = lambda number: number is signal.SIGINT and seen.terminal is not None and seen.terminal.interrupted()
    watching = asyncio.create_task(conversation.watch())
    tasks: list[asyncio.Task[SessionEnded | None] | asyncio.Task[None]] = [watching]
    if talks:
        tasks.append(asyncio.create_task(conversation.talk()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = watching.result() if watching.done() else None
        return EXIT_FAILED if ended is not None and ended.reason == "error" else 0
    finally:
        if seen.asking is not None:
            seen.asking.leave()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
