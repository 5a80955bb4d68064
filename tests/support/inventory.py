"""Entries of the inventory of sessions, their events, and a permission that is asked for meanwhile."""

from tests.support.client import Client, Json

PERMISSION = {
    "toolCall": {"toolCallId": "t1", "title": "Write a file"},
    "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
}


async def entry_of(client: Client, session: str) -> Json:
    """The session's entry, from whichever page has it."""
    cursor: Json = {}
    while True:
        page = await client.result("session/list", cursor)
        for entry in page["sessions"]:
            if entry["sessionId"] == session:
                return entry
        cursor = {"cursor": page["nextCursor"]}


async def all_events(client: Client, session: str, **more: object) -> list[Json]:
    return (await client.result("_sandboxagent/session/events", {"sessionId": session, **more}))["events"]
