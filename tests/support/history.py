"""What a server tells of a session: its view, and its log."""

from tests.support.client import Client, Json


async def view_of(client: Client, session: str) -> Json:
    return (await client.http.get(f"/v1/sessions/{session}")).json()


async def events_of(client: Client, session: str, after: int = 0) -> list[Json]:
    """The whole log of a session after a position."""
    events: list[Json] = []
    while True:
        page = await client.result("_sandboxagent/session/events", {"sessionId": session, "after": after})
        events += page["events"]
        if page["next"] is None:
            return events
        after = page["next"]


def text_of(envelope: Json) -> str:
    """The text of a message chunk, else nothing."""
    return envelope.get("params", {}).get("update", {}).get("content", {}).get("text", "")
