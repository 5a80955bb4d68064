"""What the scripted agent says when it plays a program, without having to watch a stream."""

from tests.support.client import Client
from tests.support.history import events_of


async def said(client: Client, session: str, *steps: list[object]) -> list[str]:
    """The texts of the chunks of one turn, read from the session's log."""
    before = (await client.result("_sandboxagent/session/attach", {"sessionId": session}))["position"]
    response = await client.prompt(session, list(steps))
    assert "result" in response, response
    updates = [
        event["envelope"]["params"]["update"]
        for event in await events_of(client, session, before)
        if event["direction"] == "fromAgent" and event["envelope"].get("method") == "session/update"
    ]
    return [one["content"]["text"] for one in updates if one["sessionUpdate"] == "agent_message_chunk"]
