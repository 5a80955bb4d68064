"""What an agent gets when it asks for files and terminals."""

import json

from tests.support.client import Client, Json
from tests.support.saying import said

READ, WRITE = "fs/read_text_file", "fs/write_text_file"
CREATE, OUTPUT, WAIT = "terminal/create", "terminal/output", "terminal/wait_for_exit"
KILL, RELEASE = "terminal/kill", "terminal/release"


async def answers(client: Client, session: str, *requests: tuple[str, Json]) -> list[Json]:
    """Let a session's agent make requests, all at once; gives the whole answers in that order."""
    asking = [["ask", method, params] for method, params in requests]
    return [json.loads(line) for line in await said(client, session, *asking, *[["echo_answer"]] * len(requests))]


async def answer(client: Client, session: str, method: str, **params: object) -> Json:
    return (await answers(client, session, (method, params)))[0]


async def gets(client: Client, session: str, method: str, **params: object) -> Json:
    """The result of a request that must succeed."""
    answered = await answer(client, session, method, **params)
    assert "result" in answered, answered
    return answered["result"]


async def refused(client: Client, session: str, method: str, **params: object) -> Json:
    """The error of a request that must fail."""
    answered = await answer(client, session, method, **params)
    assert "error" in answered, answered
    return answered["error"]


async def runs(client: Client, session: str, command: str, *args: str, **params: object) -> str:
    """Start a command; gives the terminal's id."""
    asked = {"command": command, "args": list(args), **params}
    return (await gets(client, session, CREATE, **asked))["terminalId"]
