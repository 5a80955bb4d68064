"""`sandbox-agent run`: from what is wished for to the end of it."""

import asyncio
import signal
from contextlib import nullcontext

from sandbox_agent.cli.failures import document, tell
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.cli.output import EXIT_FAILED, complain
from sandbox_agent.cli.progress import show_install
from sandbox_agent.cli.talk import FAILURES
from sandbox_agent.cli.talk.conversation import Conversation
from sandbox_agent.cli.talk.interrupts import Interrupts, run
from sandbox_agent.cli.talk.json_lines import write_line
from sandbox_agent.cli.talk.log import OwnPrompts
from sandbox_agent.cli.talk.one_shot import OneShot
from sandbox_agent.cli.talk.servers import Reports, Served, find, served
from sandbox_agent.cli.talk.view import View, view
from sandbox_agent.cli.talk.wishes import Wish, attached, directory, wish
from sandbox_agent.client import SandboxAgent, Session
from sandbox_agent.errors import SettingsError


def start(arguments: Arguments) -> int:
    """Do what is wished for; gives the exit code."""
    wanted = wish(arguments)
    seen = view(as_json=wanted.as_json, quiet=wanted.quiet)
    if wanted.prompt is None and seen.terminal is None:
        raise SettingsError("a prompt is needed: an argument, or stdin")
    Reports(seen.say, seen.warn).install()
    return run(lambda interrupts: _run(arguments, wanted, seen, interrupts))


async def _run(arguments: Arguments, wanted: Wish, seen: View, interrupts: Interrupts) -> int:
    interrupts.restore = seen.restore
    async with seen.listening() if wanted.prompt is None else nullcontext():
        return await _served(arguments, wanted, seen, interrupts)


async def _served(arguments: Arguments, wanted: Wish, seen: View, interrupts: Interrupts) -> int:
    if wanted.answering == "yes" and not wanted.quiet:
        complain("--yes: whatever the agent asks permission for is allowed, once each time")
    try:
        own = OwnPrompts()
        # In a session that others use, too, one prompt answers for itself alone.
        only = (lambda: True) if wanted.prompt is None else own.runs
        async with served(arguments, seen.say, seen.warn, seen.handlers(wanted.answering, only=only)) as server:
            own.watch(server.client)
            files = attached(wanted.files, local=server.here)
            session = await _session(server, wanted, seen)
            if wanted.prompt is not None:
                shot = OneShot(server.client, session, own, seen, interrupts)
                return await shot.run(wanted.prompt, files, as_json=wanted.as_json)
            conversation = Conversation(session, own, seen, session.updates())
            conversation.attach(files)
            return await _chat(conversation, session, seen, interrupts)
    except FAILURES as failure:
        seen.screen.finish()
        if wanted.as_json:
            write_line({"error": document(failure)})
        tell(failure)
        return EXIT_FAILED
    finally:
        seen.screen.finish()


async def _session(server: Served, wanted: Wish, seen: View) -> Session:
    """The session that is talked to: a new one, or one that is there."""
    client = server.client
    if wanted.session is None:
        cwd = directory(wanted.cwd, local=server.here)
        await _install(client, wanted.agent, quiet=wanted.quiet)
        seen.screen.status(f"starting {wanted.agent} …")
        session = await client.sessions.create(
            wanted.agent,
            cwd=cwd,
            title=wanted.title,
            model=wanted.model,
            mode=wanted.mode,
            permission_mode=wanted.permission_mode,
        )
    else:
        info = await find(client, wanted.session)
        if (await client.agents.get(wanted.agent)).id != info.agent:
            raise SettingsError(f"session {info.session_id} is one of {info.agent}, not of {wanted.agent}")
        seen.screen.status(f"starting {wanted.agent} …")
        session = await client.sessions.attach(info.session_id)
        await _set(session, wanted)
    seen.showing.cwd = session.cwd
    if seen.asking is not None:
        seen.asking.use(client)
    for warning in session.warnings:
        seen.warn(f"warning: {warning}")
    return session


async def _install(client: SandboxAgent, agent: str, *, quiet: bool) -> None:
    """Have an agent installed, if it is not, and show how far that is."""
    if (await client.agents.get(agent)).installed:
        return
    install = client.agents.install(agent)
    if not quiet:
        await show_install(install)
    await install


async def _set(session: Session, wanted: Wish) -> None:
    if wanted.model is not None:
        await session.set_model(wanted.model)
    if wanted.mode is not None:
        await session.set_mode(wanted.mode)
    if wanted.title is not None:
        await session.set_metadata({"title": wanted.title})


async def _chat(conversation: Conversation, session: Session, seen: View, interrupts: Interrupts) -> int:
    cancelling: set[asyncio.Task[None]] = set()

    def interrupted(number: signal.Signals) -> bool:
        """Ctrl-C throws away what is typed, then cancels the turn, then leaves."""
        assert seen.terminal is not None
        if number is not signal.SIGINT or conversation.is_cancelling:
            return False
        if seen.terminal.interrupted():
            return True
        if conversation.busy:
            cancelling.add(asyncio.create_task(conversation.cancel()))
        return conversation.busy

    interrupts.on = interrupted
    seen.say(f"{session.agent} in {session.cwd} · /help tells what can be typed, Ctrl-D leaves")
    watching = asyncio.create_task(conversation.watch(revive=True))
    talking = asyncio.create_task(conversation.talk())
    try:
        await asyncio.wait([watching, talking], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
            return EXIT_FAILED
        talking.result()
        return 0
    finally:
        if seen.asking is not None:
            seen.asking.leave()
        for task in (watching, talking, *cancelling):
            task.cancel()
        await asyncio.gather(watching, talking, *cancelling, return_exceptions=True)
        seen.say(f"go on with: sandbox-agent run {session.agent} --session {session.id}")
