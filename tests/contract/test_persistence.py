"""What a kill may cost: nothing that was acknowledged."""

import asyncio
import json
import signal
from collections import Counter
from itertools import count

import httpx
import pytest

from tests.support.client import Client, Json, run
from tests.support.history import events_of, text_of, view_of
from tests.support.running import Server

PERMISSION = {
    "toolCall": {"toolCallId": "t1", "title": "Write a file"},
    "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
}


def restart(server: Server, number: int = signal.SIGKILL) -> None:
    code = server.stop(number)
    assert code == (0 if number == signal.SIGTERM else -number)
    server.start()


def prompt_text(envelope: Json) -> str:
    return envelope["params"]["prompt"][0]["text"]


@pytest.mark.requirement("6.restart-log")
def test_without_persistence_nothing_is_left_after_a_restart() -> None:
    with Server("--no-persist") as server:

        async def before() -> str:
            async with Client(server) as client:
                session = await client.new_session()
                await client.prompt(session, "forget me")
                return session

        async def after(session: str) -> None:
            async with Client(server) as client:
                assert (await client.result("session/list"))["sessions"] == []
                assert (await client.http.get(f"/v1/sessions/{session}")).status_code == 404

        session = run(before())
        restart(server, signal.SIGTERM)
        run(after(session))
        data = server.directory / "data"
        assert not [path for path in data.rglob("*") if path.is_file() and b"forget me" in path.read_bytes()]


# kill -9, at once after an acknowledgement


@pytest.mark.requirement("6.kill-acknowledged")
def test_a_prompt_that_was_accepted_under_a_key_survives_a_kill_at_that_moment() -> None:
    with Server() as server:

        async def accepted() -> str:
            async with Client(server) as client:
                session = await client.new_session()
                body = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt"}
                body |= {"params": client.prompt_params(session, [["wait_cancel"], ["say", "accepted"]])}
                response = await client.post(body, Prefer="respond-async", Idempotency_Key="k")
                server.process.kill()
                assert response.status_code == 202
                return session

        async def prompts(session: str) -> list[str]:
            async with Client(server) as client:
                envelopes = [event["envelope"] for event in await events_of(client, session)]
                return [prompt_text(one) for one in envelopes if one.get("method") == "session/prompt"]

        session = run(accepted())
        restart(server)
        assert run(prompts(session)) == ['[["wait_cancel"], ["say", "accepted"]]']


@pytest.mark.requirement("6.kill-acknowledged")
def test_whatever_was_acknowledged_survives_a_kill_at_that_moment() -> None:
    """One server, killed right after each kind of acknowledgement."""
    with Server() as server:

        async def session_new() -> str:
            async with Client(server) as client:
                session = await client.new_session(title="made")
                server.process.kill()
                return session

        async def accepted(session: str) -> None:
            async with Client(server) as client:
                body = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt"}
                body |= {"params": client.prompt_params(session, [["sleep", 30], ["say", "accepted"]])}
                assert (await client.post(body, Prefer="respond-async")).status_code == 202
                server.process.kill()

        async def finished(session: str) -> None:
            async with Client(server) as client:
                assert (await client.prompt(session, [["say", "fin"], ["say", "ished"]]))["result"]
                server.process.kill()

        async def answered(session: str) -> None:
            async with Client(server) as client, client.stream() as stream:
                program = [["ask", "session/request_permission", PERMISSION], ["wait_answer"], ["wait_cancel"]]
                turn = asyncio.create_task(client.prompt(session, program))
                asked = await stream.method("session/request_permission")
                outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}, "answered": True}
                assert (await client.answer(asked.data["id"], outcome)).status_code == 202
                server.process.kill()
                await asyncio.wait([turn])
                assert isinstance(turn.exception(), httpx.HTTPError)

        async def changed(session: str, mode: str) -> None:
            async with Client(server) as client:
                await client.result("session/set_mode", {"sessionId": session, "modeId": mode})
                server.process.kill()

        async def described(session: str, number: int) -> None:
            async with Client(server) as client:
                change = {"sessionId": session, "metadata": {"number": number}}
                await client.result("_sandboxagent/session/set_metadata", change)
                server.process.kill()

        async def terminated(session: str) -> None:
            async with Client(server) as client:
                await client.result("_sandboxagent/session/terminate", {"sessionId": session})
                server.process.kill()

        async def look(session: str) -> tuple[Json, list[Json]]:
            async with Client(server) as client:
                return await view_of(client, session), await events_of(client, session)

        session = run(session_new())
        restart(server)
        view, events = run(look(session))
        assert view["title"] == "made"
        assert [event["envelope"].get("method") for event in events[:2]] == ["session/new", None]

        run(accepted(session))
        restart(server)
        assert json.dumps(run(look(session))[1]).count("accepted") == 1

        run(finished(session))
        restart(server)
        texts = [text_of(event["envelope"]) for event in run(look(session))[1]]
        assert [text for text in texts if text] == ["fin", "ished"]
        result, turn = run(look(session))[1][-3:-1]
        assert result["envelope"]["result"] == {"stopReason": "end_turn"}
        assert turn["envelope"]["params"]["state"] == "ended"

        run(answered(session))
        restart(server)
        assert [event for event in run(look(session))[1] if event["envelope"].get("result", {}).get("answered")]

        run(changed(session, "plan"))
        restart(server)
        assert run(look(session))[0]["mode"] == "plan"

        run(described(session, 5))
        restart(server)
        assert run(look(session))[0]["metadata"]["number"] == 5

        run(terminated(session))
        restart(server)
        view, events = run(look(session))
        assert (view["ended"], view["resumable"]) == (True, False)
        assert view["terminationInfo"]["reason"] == "terminated"
        assert events[-1]["envelope"]["method"] == "_sandboxagent/session/ended"


@pytest.mark.requirement("6.kill-updates")
def test_a_kill_costs_at_most_the_updates_of_the_last_50_milliseconds() -> None:
    with Server() as server:

        async def before() -> tuple[str, int]:
            async with Client(server) as client, client.stream() as stream:
                session = await client.new_session()
                program = [["flood", 100, 100], ["sleep", 0.06], ["say", "later"], ["wait_cancel"]]
                turn = asyncio.create_task(client.prompt(session, program))
                events = await stream.until(lambda event: event.text == "later")
                server.kill()
                await asyncio.wait([turn])
                assert isinstance(turn.exception(), httpx.HTTPError)
                return session, events[-2].id

        async def after(session: str, last: int) -> None:
            async with Client(server) as client:
                logged = [event for event in await events_of(client, session) if event["id"] <= last]
                texts = [text_of(event["envelope"]) for event in logged if text_of(event["envelope"])]
                assert [int(text.split()[0]) for text in texts] == list(range(100))
                view = await view_of(client, session)
                assert (view["ended"], view["running"]) == (True, False)

        found = run(before())
        server.start()
        run(after(*found))


# Chaos


@pytest.mark.requirement("6.chaos")
def test_repeated_kills_mid_turn_neither_lose_nor_repeat_acknowledged_prompts() -> None:
    """Four senders prompt as fast as they can, half of them with respond-async, and the server is killed under them."""
    accepted: list[str] = []
    finished: list[str] = []
    sent = count()
    sessions: list[str] = []
    highest_seen = 0

    with Server() as server:

        async def send(client: Client, session: str, asynchronous: bool) -> None:
            while True:
                text = f"<{next(sent)}>"
                body = {"jsonrpc": "2.0", "id": text, "method": "session/prompt"}
                body |= {"params": client.prompt_params(session, text)}
                if not asynchronous:
                    response = await client.post(body)
                    assert response.status_code == 200
                    assert response.json()["result"]["stopReason"] == "end_turn"
                    finished.append(text)
                    continue
                response = await client.post(body, Prefer="respond-async")
                assert response.status_code == 202
                accepted.append(text)
                if len(accepted) % 8 == 0:  # fewer than may wait in a session
                    await client.prompt(session, "<pause>")

        async def guarded(client: Client, session: str, asynchronous: bool) -> None:
            try:
                await send(client, session, asynchronous)
            except httpx.HTTPError:
                return

        async def one_round(first: bool) -> None:
            before = len(accepted) + len(finished)
            async with Client(server) as one, Client(server) as two:
                if first:
                    sessions.extend([await one.new_session(), await two.new_session()])
                senders = [
                    asyncio.create_task(guarded(client, session, asynchronous))
                    for client, session in ((one, sessions[0]), (two, sessions[1]))
                    for asynchronous in (False, True)
                ]
                while len(accepted) + len(finished) < before + 60:
                    assert not any(sender.done() for sender in senders)
                    await asyncio.sleep(0)
                server.kill()
                await asyncio.gather(*senders)

        async def check() -> int:
            async with Client(server) as client:
                logs = [await events_of(client, session) for session in sessions]
            ids = [event["id"] for log in logs for event in log]
            assert len(ids) == len(set(ids))
            assert all([event["id"] for event in log] == sorted(event["id"] for event in log) for log in logs)
            envelopes = [event["envelope"] for log in logs for event in log]
            prompts = Counter(prompt_text(one) for one in envelopes if one.get("method") == "session/prompt")
            echoes = Counter(text for one in envelopes if (text := text_of(one)))
            responses = [one for one in envelopes if "method" not in one and isinstance(one["id"], str)]
            results = Counter(one["id"] for one in responses)
            for counted in (prompts, echoes, results):
                del counted["<pause>"]
                assert [key for key, times in counted.items() if times > 1] == []
            assert [text for text in accepted + finished if prompts[text] != 1] == []
            assert [text for text in finished if (echoes[text], results[text]) != (1, 1)] == []
            return max(ids)

        for number in range(3):
            run(one_round(first=number == 0))
            server.start()
            highest = run(check())
            assert highest > highest_seen
            highest_seen = highest
    assert len(accepted) >= 20
    assert len(finished) >= 20
