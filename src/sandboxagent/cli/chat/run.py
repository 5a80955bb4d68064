"""Run an agent from the arguments to the exit code, and attach to an existing session."""

import asyncio
import os
import select
import signal
import stat
import sys
from collections.abc import Awaitable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxagent import ClientError, Gap, SandboxAgent, Session, SessionEnded, SessionInfo
from sandboxagent.cli.chat import FAILURES
from sandboxagent.cli.chat.client import (
    ConnectedServer,
    Reports,
    ServerTarget,
    find_agent,
    find_named_session,
    find_newest_session,
    install_agent,
    is_agent_of,
    select_target,
    served,
)
from sandboxagent.cli.chat.conversation import Conversation, OneShot
from sandboxagent.cli.chat.history import OwnPrompts, before_last, end_of_log, is_end
from sandboxagent.cli.chat.input_history import NAME, InputHistory
from sandboxagent.cli.chat.json_lines import gap, write_line
from sandboxagent.cli.chat.requests import Answering, View, has_keyboard, view
from sandboxagent.cli.chat.signals import Interrupts, run
from sandboxagent.cli.failures import Failure, document, tell
from sandboxagent.cli.output import EXIT_FAILED, complain
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.client.requests import Handlers
from sandboxagent.core.discovery import find_server, is_named
from sandboxagent.core.settings import load
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.errors import SettingsError

DISCARD_TIMEOUT = 5.0
"""Seconds to terminate and delete a session that could not be used."""
MAX_STDIN_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes that are read from stdin."""
STDIN_TIMEOUT = 3.0
"""Seconds to wait for the first byte of a pipe if there is a prompt already: nobody may ever close the pipe."""
_OF_A_NEW_SESSION = ("cwd", "node", "permission_mode", "env")


# --- the arguments ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The arguments of one run, with its prompt."""

    agent: str | None
    """The agent; None with --continue or --session for the session's own."""
    prompt: str | None
    """The prompt; None for a conversation at the terminal."""
    session: str | None
    newest: bool
    """Whether to continue the newest session."""
    cwd: str | None
    node: str | None
    """The node of a fleet; None if the gateway chooses."""
    model: str | None
    mode: str | None
    permission_mode: str | None
    title: str | None
    env: dict[str, str] | None
    files: list[str]
    answering: Answering
    as_json: bool
    quiet: bool


def read_request(arguments: ParsedArguments) -> RunRequest:
    """Read the request from the arguments and stdin. Raises SettingsError, or the errors of `_is_agent`."""
    session, newest = arguments.word("session"), arguments.switch("continue")
    if session is not None and newest:
        raise SettingsError("--session and --continue exclude each other")
    for name in _OF_A_NEW_SESSION:
        if arguments.values.get(name) is not None and (session is not None or (newest and name != "cwd")):
            raise SettingsError(
                f"--{name.replace('_', '-')} is for a new session, but {'--continue' if newest else '--session'} names "
                "an existing one"
            )
    agent, given = arguments.word("agent"), arguments.word("prompt")
    goes_on = newest or session is not None
    if goes_on and given is None and agent is not None and not _is_agent(agent, arguments):
        agent, given = None, agent  # The word is the prompt, as in `run -c yes`.
    if agent is None and not goes_on:
        raise SettingsError("the following arguments are required: AGENT; try: sandbox-agent run --help")
    if arguments.switch("yes") and arguments.switch("no"):
        raise SettingsError("--yes and --no exclude each other")
    prompt = _read_prompt(given)
    if prompt is None and arguments.switch("json"):
        raise SettingsError("--json needs a prompt: an argument, or stdin")
    if prompt is not None and not prompt.strip():
        raise SettingsError("the prompt is empty; it is an argument, or comes from stdin")
    return RunRequest(
        agent=agent,
        prompt=prompt,
        session=session,
        newest=newest,
        cwd=arguments.word("cwd"),
        node=arguments.word("node"),
        model=arguments.word("model"),
        mode=arguments.word("mode"),
        permission_mode=arguments.word("permission_mode"),
        title=arguments.word("title"),
        env=read_environment(arguments.words("env")),
        files=arguments.words("attach_file"),
        answering="yes" if arguments.switch("yes") else "no" if arguments.switch("no") else "ask",
        as_json=arguments.switch("json"),
        quiet=arguments.switch("quiet"),
    )


def _is_agent(word: str, arguments: ParsedArguments) -> bool:
    """Whether a word is the name of an agent, and not a prompt.

    Raises:
        SettingsError: the arguments or settings are invalid.
        ClientError: the named server does not say which agents it has.
    """
    if word == "-" or any(map(str.isspace, word)):
        return False
    named = find_server(arguments.values, os.environ) if is_named(arguments.values, os.environ) else None
    if named is not None:
        return asyncio.run(is_agent_of(named, word))
    from sandboxagent.server.agents.manifest import load_manifest

    flags = {name: value for name, value in arguments.values.items() if name in ("config_dir", "data_dir")}
    settings = load(flags, os.environ, ["data_dir", "agents_dir", "agents_file"])
    known = load_manifest(settings.agents_file).agents
    return any(word in (agent.id, *agent.registry) for agent in known) or (settings.agents_dir / word).is_dir()


def absolute_path(path: str) -> str:
    """Make a path absolute without resolving links, so that the agent runs where the user expects it."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def session_directory(given: str | None, *, local: bool) -> str:
    """Return the directory of a new session. Raises SettingsError."""
    path = absolute_path(given or ".")
    if local and not Path(path).is_dir():
        raise SettingsError(f"--cwd: {path} is not a directory")
    return path


def read_environment(given: list[str]) -> dict[str, str] | None:
    """Return the environment variables of a new session. Raises SettingsError."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name:
            raise SettingsError(f"--env: {each!r} has no name; give NAME or NAME=VALUE")
        if not equals and name not in os.environ:
            raise SettingsError(f"--env: {name} is not set here; set it, or give --env {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found or None


def find_attachments(files: list[str], *, local: bool) -> list[str]:
    """Return the absolute paths of a prompt's attachments. Raises SettingsError."""
    paths = [each if each.startswith("file://") else absolute_path(each) for each in files]
    missing = [path for path in paths if local and not path.startswith("file://") and not Path(path).exists()]
    if missing:
        raise SettingsError(f"--attach-file: {missing[0]} does not exist")
    return paths


def _read_prompt(given: str | None) -> str | None:
    """Return the prompt from the argument and a pipe; None when there is neither, at a terminal."""
    if given == "-":
        return _read_stdin()
    if has_keyboard():
        return given
    if given is None:
        return _read_stdin()
    if not _stdin_has_input():
        return given
    more = _read_stdin()
    return f"{given}\n\n{more}" if more.strip() else given


def _stdin_has_input() -> bool:
    """Whether stdin has data or has ended. Wait up to `STDIN_TIMEOUT` for a pipe. False for a device."""
    try:
        kind = os.fstat(0).st_mode
    except OSError:
        return False
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return stat.S_ISREG(kind)
    if select.select([0], [], [], STDIN_TIMEOUT)[0]:
        return True
    complain(f"nothing came from stdin in {STDIN_TIMEOUT:g} s; continuing without it (< /dev/null skips this wait)")
    return False


def _read_stdin() -> str:
    keyboard: object = sys.stdin
    if keyboard is None:
        return ""
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise SettingsError(f"stdin has more than {MAX_STDIN_BYTES >> 20} MiB; --attach-file is for large files")
    return data.decode(errors="replace")


# --- the work ---------------------------------------------------------------------------------------------------------


def start_run(arguments: ParsedArguments) -> int:
    """Run `sandbox-agent run`. Return the exit code."""
    as_json = arguments.switch("json")
    try:
        wanted = read_request(arguments)
    except ClientError as failure:
        return _report(failure, as_json=as_json)
    seen = view(as_json=as_json, quiet=wanted.quiet, verbose=arguments.switch("verbose"))
    if wanted.prompt is None and seen.terminal is None:
        raise SettingsError("a prompt is needed: an argument, or stdin")
    with Reports(seen).installed():
        try:
            choice = select_target(arguments, seen.say)
        except ClientError as failure:
            return _report(failure, as_json=as_json)
        _remember(arguments, seen)
        return run(lambda interrupts: _run(choice, wanted, seen, interrupts))


async def _run(choice: ServerTarget, wanted: RunRequest, seen: View, interrupts: Interrupts) -> int:
    interrupts.restore = seen.restore
    if wanted.answering == "yes" and not wanted.quiet:
        complain("--yes: everything the agent asks permission for is allowed, once each time")
    async with seen.status.running(), seen.listening() if wanted.prompt is None else nullcontext():
        return await _report_failures(_prompt_agent(choice, wanted, seen, interrupts), seen, as_json=wanted.as_json)


def _remember(arguments: ParsedArguments, seen: View) -> None:
    """Let the terminal bring back lines of earlier runs."""
    flags = {name: value for name, value in arguments.values.items() if name in ("config_dir", "data_dir")}
    if seen.terminal is not None:
        with suppress(SettingsError):  # The search for a server reports it.
            seen.terminal.remember(InputHistory(load(flags, os.environ, ["data_dir"]).data_dir / NAME))


async def _report_failures(work: Awaitable[int], seen: View, *, as_json: bool) -> int:
    """Return the exit code of the work. If it fails, print the failure."""
    try:
        return await work
    except FAILURES as failure:
        seen.status.end()
        seen.screen.finish()
        return _report(failure, as_json=as_json)
    finally:
        seen.status.end()
        seen.screen.finish()


def _report(failure: Failure, *, as_json: bool) -> int:
    if as_json:
        write_line({"error": document(failure)})
    tell(failure)
    return EXIT_FAILED


async def _prompt_agent(choice: ServerTarget, wanted: RunRequest, seen: View, interrupts: Interrupts) -> int:
    own = OwnPrompts()
    # With a prompt, answer only the requests of its own turn: other clients may use the session, too.
    only = (lambda: True) if wanted.prompt is None else own.runs
    async with served(choice, seen.handlers(wanted.answering, only=only)) as server:
        own.watch(server.client)
        files = find_attachments(wanted.files, local=server.here)
        if wanted.session is None and not wanted.newest:
            session = await _new_session(server, wanted, seen)
        else:
            session = await _old_session(server, wanted, seen)
        seen.showing.cwd = session.cwd
        if seen.asking is not None:
            seen.asking.use(server.client)
        if wanted.prompt is not None:
            shot = OneShot(server.client, session, own, seen, interrupts)
            return await shot.run(wanted.prompt, files, as_json=wanted.as_json)
        end = await end_of_log(server.client, session)
        conversation = Conversation(session, own, seen, session.updates(end))
        conversation.attach(files)
        seen.showing.unfolds = True
        seen.say(f"{session.agent} in {session.cwd} · /help lists the commands, Ctrl-D leaves")
        if wanted.agent is not None and (wanted.session is not None or wanted.newest):
            prompt = f"sandbox-agent run {session.agent} {wanted.agent} --session {session.id}"
            seen.say(f"{wanted.agent} is the name of an agent; to send it as a prompt: {prompt}")
        before = end + 1
        await conversation.learn(before)
        if wanted.session is not None or wanted.newest:
            await conversation.resume(before)
            if not (await session.info()).running:
                # A turn that the server's end cut off has no end in the log.
                conversation.settle()
        if seen.asking is not None:
            seen.asking.resume()
        return await _chat(conversation, session, seen, interrupts)


async def _new_session(server: ConnectedServer, wanted: RunRequest, seen: View) -> Session:
    """Create a session with all requested settings. Raises ClientError."""
    client, agent = server.client, wanted.agent
    assert agent is not None
    cwd = session_directory(wanted.cwd, local=server.here)
    agents = client.agents if wanted.node is None else client.agents.of_node(wanted.node)
    await install_agent(agents, agent, quiet=wanted.quiet)
    seen.status.begin(f"starting {agent} …")
    session = await client.sessions.create(
        agent,
        cwd=cwd,
        node=wanted.node,
        title=wanted.title,
        permission_mode=wanted.permission_mode,
        env=wanted.env,
    )
    seen.status.end()
    try:
        await _choose_model_and_mode(session, wanted)
    except FAILURES:
        await _discard(client, session)
        raise
    seen.showing.spending.begin_session()
    for warning in session.warnings:
        seen.warn(f"warning: {warning}")
    return session


async def _discard(client: SandboxAgent, session: Session) -> None:
    """Terminate and delete a session without prompts."""
    with suppress(TimeoutError, *FAILURES):
        async with asyncio.timeout(DISCARD_TIMEOUT):
            await client.sessions.terminate(session.id)
            await client.sessions.delete(session.id)


async def _old_session(server: ConnectedServer, wanted: RunRequest, seen: View) -> Session:
    """Attach to the session that is named, or to the newest one."""
    client = server.client
    known = None if wanted.agent is None else await find_agent(client.agents, wanted.agent)
    agent = wanted.agent if known is None else known.id
    if wanted.session is None:
        info = await find_newest_session(client, session_directory(wanted.cwd, local=server.here), agent)
    else:
        info = await find_named_session(client, wanted.session)
        if agent not in (None, info.agent):
            belongs = f"session {info.session_id} belongs to {info.agent}, not to {wanted.agent}"
            if wanted.prompt is None:
                belongs += f"; to send this word as a prompt, name the agent before it: run {info.agent} {wanted.agent}"
            raise SettingsError(belongs)
    seen.status.begin(f"starting {info.agent} …")
    if seen.asking is not None and wanted.prompt is None:
        # Show the last turns before asking the requests that wait.
        seen.asking.pause()
    session = await client.sessions.attach(info.session_id)
    seen.status.end()
    await _choose_model_and_mode(session, wanted)
    if wanted.title is not None:
        await session.set_metadata({"title": wanted.title})
    return session


async def _choose_model_and_mode(session: Session, wanted: RunRequest) -> None:
    """Set the model and the mode. Raises RequestError, which lists the valid ones."""
    if wanted.model is not None:
        await session.set_model(wanted.model)
    if wanted.mode is not None:
        await session.set_mode(wanted.mode)


async def _chat(conversation: Conversation, session: Session, seen: View, interrupts: Interrupts) -> int:
    cancelling = Tasks()

    def interrupted(number: signal.Signals) -> bool:
        """Handle Ctrl-C: discard the typed text, else cancel the turn, else leave."""
        assert seen.terminal is not None
        if number is not signal.SIGINT or conversation.is_cancelling:
            return False
        if seen.terminal.interrupted():
            return True
        if conversation.busy:
            cancelling.run(conversation.cancel(), "cancel the turn")
        return conversation.busy

    interrupts.on = interrupted
    watching = asyncio.create_task(conversation.watch(resume=True))
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
        for task in (watching, talking):
            task.cancel()
        await asyncio.gather(watching, talking, cancelling.close(), return_exceptions=True)
        seen.say(f"continue with: sandbox-agent run {session.agent} --session {session.id}")


def start_attaching(arguments: ParsedArguments) -> int:
    """Run `sandbox-agent attach`. Return the exit code."""
    if arguments.switch("all") and arguments.number("history") is not None:
        raise SettingsError("--all and --history exclude each other")
    seen = view(as_json=arguments.switch("json"), quiet=arguments.switch("quiet"), verbose=arguments.switch("verbose"))
    with Reports(seen).installed():
        try:
            choice = select_target(arguments, seen.say)
        except ClientError as failure:
            return _report(failure, as_json=arguments.switch("json"))
        return run(lambda interrupts: _attach(choice, arguments, seen, interrupts))


async def _attach(choice: ServerTarget, arguments: ParsedArguments, seen: View, interrupts: Interrupts) -> int:
    interrupts.restore = seen.restore
    as_json = arguments.switch("json")
    talks = seen.terminal is not None and not as_json and not arguments.switch("read_only")
    _remember(arguments, seen)
    async with seen.status.running(), seen.listening() if talks else nullcontext():
        work = _show_session(choice, arguments, seen, interrupts, talks=talks)
        return await _report_failures(work, seen, as_json=as_json)


async def _show_session(
    choice: ServerTarget, arguments: ParsedArguments, seen: View, interrupts: Interrupts, *, talks: bool
) -> int:
    # Without a terminal, leave requests to other clients.
    handlers = seen.handlers("ask") if talks else Handlers()
    if seen.asking is not None:
        # Show the last turns before asking the requests that wait.
        seen.asking.pause()
    async with served(choice, handlers) as server:
        info = await find_named_session(server.client, arguments.word("session") or "")
        session = await server.client.sessions.attach(info.session_id)
        end = await end_of_log(server.client, session)
        after, before = 0, end + 1
        if not arguments.switch("all"):
            turns = arguments.number("history")
            after = await before_last(session, 1 if turns is None else turns, before)
        if arguments.switch("json"):
            return await _print_envelopes(session, info, after, before)
        seen.showing.cwd = session.cwd
        own = OwnPrompts()
        own.watch(server.client)
        conversation = Conversation(session, own, seen, session.updates(end))
        await conversation.learn(before)
        seen.showing.unfolds = talks
        if talks:
            seen.say(f"{session.agent} in {session.cwd} · /help lists the commands, Ctrl-C leaves")
        await conversation.replay(after, before)
        if not info.running:
            # A turn that the server's end cut off has no end in the log.
            conversation.settle()
        if seen.asking is not None:
            seen.asking.use(server.client)
            seen.asking.resume()
        return await _watch_session(conversation, info, seen, interrupts, talks=talks)


async def _print_envelopes(session: Session, info: SessionInfo, after: int, before: int) -> int:
    """Print every envelope of the log as a line. Return the exit code."""
    log = session.log(after)
    if info.ended:
        log.close()
    async for event in log:
        write_line(gap(event) if isinstance(event, Gap) else event.envelope)
        if not isinstance(event, Gap) and event.id >= before and is_end(event.envelope):
            break
    return 0


async def _watch_session(
    conversation: Conversation, info: SessionInfo, seen: View, interrupts: Interrupts, *, talks: bool
) -> int:
    if info.ended:
        seen.say("the session is idle; a prompt resumes it" if info.resumable else "the session has ended")
        if not (info.resumable and seen.screen.stream.isatty()):
            return 0
    interrupts.on = lambda number: number is signal.SIGINT and seen.terminal is not None and seen.terminal.interrupted()
    watching = asyncio.create_task(conversation.watch(resume=seen.screen.stream.isatty()))
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
