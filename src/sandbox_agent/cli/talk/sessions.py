"""Finding a session by the beginning of its id, making one, and having its agent installed first."""

from msgspec import UNSET

from sandbox_agent.cli.progress import shown
from sandbox_agent.client import ClientError, Progress, SandboxAgent, ServerProblem, SessionInfo
from sandbox_agent.wire.agents import Progress as Shown

MOST_CANDIDATES = 10
_GONE = frozenset({"session-not-found", "removed", "not-found"})


async def find(client: SandboxAgent, name: str) -> SessionInfo:
    """The session with this id or alias, or the only one whose id or alias begins so. Raises ClientError."""
    if name not in ("", ".", ".."):
        try:
            return await client.sessions.get(name)
        except ServerProblem as problem:
            if problem.slug not in _GONE:
                raise
    found = [each async for each in client.sessions.list()] if name else []
    begin = [each for each in found if each.session_id.startswith(name) or (each.alias or "").startswith(name)]
    same = [each for each in begin if name in (each.session_id, each.alias)]
    if same or len(begin) == 1:
        return (same or begin)[0]
    if not begin:
        raise ClientError(f"there is no session {name!r:.200}; try: sandbox-agent sessions list")
    listed = ", ".join(each.session_id for each in begin[:MOST_CANDIDATES])
    more = f" and {len(begin) - MOST_CANDIDATES} more" if len(begin) > MOST_CANDIDATES else ""
    raise ClientError(f"{name!r} is the beginning of {len(begin)} sessions: {listed}{more}")


async def install(client: SandboxAgent, agent: str, *, quiet: bool) -> None:
    """Have an agent installed, if it is not, and show how far that is. Raises ClientError."""
    if (await client.agents.get(agent)).installed:
        return
    steps = client.agents.install(agent)
    if not quiet:
        with shown(agent) as show:
            async for step in steps:
                if isinstance(step, Progress):
                    show(_told(step))
    await steps


def _told(step: Progress) -> Shown:
    done = UNSET if step.bytes is None else step.bytes
    total = UNSET if step.total_bytes is None else step.total_bytes
    return Shown(step.stage, step.message, done, total)  # pyright: ignore[reportArgumentType]
