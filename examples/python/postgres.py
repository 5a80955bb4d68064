"""Stores sessions in PostgreSQL, every event once, whatever crashes; and prints them from there.

usage: python examples/python/postgres.py run [agent] [prompt]   one turn, kept while it happens
       python examples/python/postgres.py keep SESSION           a session of the server at SANDBOX_AGENT_URL
       python examples/python/postgres.py tell SESSION           what was said in it; needs no server

DATABASE_URL says which database; without it the variables PGHOST, PGUSER and so on do, as for psql.
"""

import asyncio
import os
import sys

import psycopg
from psycopg.types.json import Json

from sandboxagent import Gap, SandboxAgent, Session

# `json` keeps an envelope's text as it is. `jsonb` would refuse the \u0000 that a tool may well print.
TABLE = """
create table if not exists events (
    session_id text not null,
    id bigint not null,
    at timestamptz not null,
    direction text not null,
    envelope json not null,
    primary key (session_id, id)
)"""
# Two processes may store the same session: an event that is already there is not stored again.
INSERT = "insert into events values (%s, %s, %s, %s, %s) on conflict do nothing"
LAST = "select coalesce(max(id), 0) from events where session_id = %s"
ALL = "select envelope from events where session_id = %s order by id"


async def keep(session: Session, connection: psycopg.AsyncConnection) -> None:
    """Keep a session from where the database ends, until it is terminated."""
    # Events come and are kept in order, so the last one says where to go on. The ids are those of the server's log:
    # neither a restart of the server nor one of ours changes them.
    [(last,)] = await (await connection.execute(LAST, [session.id])).fetchall()
    print(f"keeping {session.id} after event {last}", flush=True)
    async for event in session.log(last):
        if isinstance(event, Gap):
            print(f"what came after {event.after} and before {event.resumes_at} is no longer there", file=sys.stderr)
        else:
            row = [session.id, event.id, event.at, event.direction, Json(event.envelope)]
            await connection.execute(INSERT, row)


async def database() -> psycopg.AsyncConnection:
    """A connection on which each event is committed by itself."""
    connection = await psycopg.AsyncConnection.connect(os.environ.get("DATABASE_URL", ""), autocommit=True)
    await connection.execute(TABLE)
    return connection


# The commands


async def run(agent: str = "mock", prompt: str = "Hello!") -> None:
    """Run a session and store it, then print it from the database."""
    async with await database() as connection, SandboxAgent.start() as client:
        session = await client.sessions.create(agent)
        async with asyncio.TaskGroup() as group:
            group.create_task(keep(session, connection))
            await session.prompt(prompt)
            await session.terminate()
    await tell(session.id)


async def follow(session_id: str) -> None:
    """Keep a session of a server that runs. It may be killed and started again at any time."""
    url, token = os.environ.get("SANDBOX_AGENT_URL", "http://127.0.0.1:2468"), os.environ.get("SANDBOX_AGENT_TOKEN")
    async with await database() as connection, SandboxAgent.connect(url, token, name="postgres example") as client:
        await keep(await client.sessions.attach(session_id), connection)


async def tell(session_id: str) -> None:
    """Print what was said in a session, as the database has it."""
    async with await database() as connection:
        async for (envelope,) in await connection.execute(ALL, [session_id]):
            match envelope:
                case {"method": "session/prompt", "params": {"prompt": [*blocks]}}:
                    print("\n> " + " ".join(str(block.get("text", block["type"])) for block in blocks))
                case {"method": "session/update", "params": {"update": {"content": {"text": str(text)}, **update}}}:
                    print(text if update["sessionUpdate"] == "agent_message_chunk" else "", end="")
                case {"method": "_sandboxagent/session/turn", "params": {"state": "ended"}}:
                    print()
                case _:
                    pass


COMMANDS = {"run": run, "keep": follow, "tell": tell}
name, *arguments = sys.argv[1:] or ["run"]
if name not in COMMANDS:
    sys.exit(__doc__)
asyncio.run(COMMANDS[name](*arguments))
