"""Control through gateways: sessions opened, prompted and answered at any of them, on the nodes of a real fleet."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.fleet.gateway.conftest import Fleet
from tests.support.asking import ALLOW, PERMISSION, REJECT, permission
from tests.support.client import META, Client, Event, Json, Stream, run
from tests.support.opening import WAYS
from tests.support.running import BOUND, Server

pytestmark = pytest.mark.usefixtures("joined")


async def list_sessions(client: Client) -> httpx.Response:
    return await client.post({"jsonrpc": "2.0", "id": 1, "method": "session/list"})


def texts(events: list[Event]) -> str:
    return "".join(event.text for event in events)


async def new_session(client: Client, fleet: Fleet, **meta: Any) -> str:
    params: Json = {"cwd": fleet.nodes[0].work, "mcpServers": [], "_meta": {META: meta}}
    return (await client.result("session/new", params))["sessionId"]


@asynccontextmanager
async def watched(fleet: Fleet) -> AsyncGenerator[tuple[Client, Stream, Client, Stream]]:
    """A client with its stream at each gateway."""
    one, two = map(Client, fleet.gateways)
    async with one, two, one.stream() as first, two.stream() as second:
        yield one, first, two, second


def test_a_turn_runs_through_a_gateway_with_its_updates_before_its_result(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as client, client.stream() as stream:
            session = await new_session(client, fleet, node="n2")
            body = {"jsonrpc": "2.0", "id": 7, "method": "session/prompt"}
            body["params"] = client.prompt_params(session, [["say", "one "], ["say", "two"]])
            response = await client.post(body)
            assert response.json()["result"]["stopReason"] == "end_turn"
            last = int(response.headers["X-ACP-Last-Event-Id"])
            seen = await stream.turn_ended()
            assert texts(seen) == "one two"
            assert seen[-1].id == last
            listed = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert listed["node"] == "n2"

    run(main())


@pytest.mark.parametrize("way", WAYS)
def test_the_response_that_names_a_session_comes_before_its_updates(fleet: Fleet, way: str) -> None:
    """A node keeps the updates back until the gateway has given the response out."""

    async def main() -> None:
        assert await WAYS[way](fleet.gateways[0]) == ["response", "session/update"]

    run(main())


def test_attaching_again_says_where_the_stream_is_by_now(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as client, client.stream() as stream:
            session = await new_session(client, fleet)
            await client.prompt(session, "hello")
            said = await stream.turn_ended()
            again = await client.result("_sandboxagent/session/attach", {"sessionId": session})
            assert again["position"] >= said[-1].id
            await client.prompt(session, "more")
            assert (await stream.next()).id > again["position"]

    run(main())


def test_lists_of_a_gateway_show_what_its_client_has_changed_there(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[1]) as client:

            async def listed() -> list[Json]:
                """The session as HTTP shows it; `session/list` has it as well."""
                views = (await client.http.get("/v1/sessions")).json()["sessions"]
                views = [each for each in views if each["sessionId"] == session]
                names = [each["sessionId"] for each in (await client.result("session/list"))["sessions"]]
                assert names.count(session) == len(views)
                return views

            session = await new_session(client, fleet)
            assert len(await listed()) == 1
            await client.result(
                "_sandboxagent/session/set_metadata", {"sessionId": session, "metadata": {"colour": "red"}}
            )
            assert [each["metadata"] for each in await listed()] == [{"colour": "red"}]
            await client.result("_sandboxagent/session/terminate", {"sessionId": session})
            assert [each["ended"] for each in await listed()] == [True]
            await client.result("session/delete", {"sessionId": session})
            assert await listed() == []

    run(main())


def test_pages_up_to_the_position_of_attach_and_the_stream_are_everything_once(fleet: Fleet) -> None:
    said = [f"{number} " for number in range(400)]
    program: list[list[Any]] = [step for text in said for step in (["say", text], ["sleep", 0.002])]

    async def read(gateway: Server, session: str) -> None:
        async with Client(gateway) as client:
            through = (await client.result("_sandboxagent/session/attach", {"sessionId": session}))["position"]
            found: list[Event] = []
            after: int | None = 0
            while after is not None:
                page = await client.result(
                    "_sandboxagent/session/events", {"sessionId": session, "after": after, "before": through + 1}
                )
                found += [Event(each["id"], each["envelope"], "") for each in page["events"]]
                after = page["next"]
            async with client.stream() as stream:
                while all(event.text != said[-1] for event in found):
                    found.append(await stream.next())
            ids = [event.id for event in found]
            assert ids == sorted(set(ids))
            assert [each.text for each in found if each.update.get("sessionUpdate") == "agent_message_chunk"] == said

    async def main() -> None:
        async with Client(fleet.gateways[0]) as client:
            session = await new_session(client, fleet)
            turn = asyncio.create_task(client.prompt(session, program))
            await asyncio.gather(*(read(fleet.gateways[number % 2], session) for number in range(8)))
            await turn

    run(main())


def test_sessions_go_where_their_labels_say_and_everybody_lists_them(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two:
            for place in ("1", "2"):
                session = await new_session(one, fleet, labels={"place": place})
                listed = await one.result("_sandboxagent/session/get", {"sessionId": session})
                assert listed["session"]["sessionId"] == session
                page = await one.result("_sandboxagent/session/list")
                assert {each["sessionId"]: each["node"] for each in page["sessions"]}[session] == f"n{place}"
                await two.result("_sandboxagent/session/attach", {"sessionId": session})
            error = await one.error("session/new", {"cwd": "/", "_meta": {META: {"labels": {"place": "moon"}}}})
            assert error["data"]["type"] == "no-node"
            error = await one.error("session/new", {"cwd": "/", "_meta": {META: {"node": "n3"}}})
            assert error["data"]["type"] == "no-node"
            error = await one.error("session/new", {"cwd": "/", "_meta": {META: {"labels": "moon"}}})
            assert error["code"] == -32602

    run(main())


def test_a_permission_is_answered_through_any_gateway_and_the_first_answer_wins(fleet: Fleet) -> None:
    async def main() -> None:
        async with watched(fleet) as (one, first, two, second):
            session = await new_session(one, fleet)
            attached = await two.result("_sandboxagent/session/attach", {"sessionId": session})
            turn = asyncio.create_task(one.prompt(session, [permission(), ["echo_answer"]]))
            asked, also = await first.method(PERMISSION), await second.method(PERMISSION)
            assert also.id > attached["position"]
            pending = (await two.result("_sandboxagent/session/pending", {"sessionId": session}))["pending"]
            assert [each["id"] for each in pending] == [also.data["id"]] == [asked.data["id"]]
            assert await request_in_log(two, session) == pending[0]["id"]
            everywhere = (await one.result("_sandboxagent/session/pending"))["pending"]
            assert asked.data["id"] in [each["id"] for each in everywhere]
            # No id is taken under which nothing was asked.
            node, run, position = asked.data["id"].removeprefix("rq_").split(".")
            other = "n2" if node == "n1" else "n1"
            for id in (f"rq_{other}.{run}.{position}", f"rq_{node}.x.{position}", f"rq_{node}.{run}.1", 0):
                assert (await two.answer(id, ALLOW)).status_code == 404
            assert (await two.answer(also.data["id"], {"outcome": {"outcome": "selected"}})).status_code == 422
            assert (await two.answer(also.data["id"], ALLOW)).status_code == 202
            late = await one.answer(asked.data["id"], REJECT)
            assert late.status_code == 409, late.text
            withdrawn = await first.method("$/cancel_request")
            assert withdrawn.data["params"]["requestId"] == asked.data["id"]
            assert (await turn)["result"]["stopReason"] == "end_turn"
            assert '"optionId":"yes"' in texts(await first.turn_ended()).replace(" ", "")
            assert await request_in_log(two, session) is None

    async def request_in_log(client: Client, session: str) -> str | None:
        """The id by which the only request in the log can be answered."""
        page = await client.result("_sandboxagent/session/events", {"sessionId": session})
        [asked] = [event for event in page["events"] if event["envelope"].get("method") == PERMISSION]
        return asked.get("requestId")

    run(main())


def test_a_turn_is_cancelled_through_another_gateway(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two, one.stream() as stream:
            session = await new_session(one, fleet)
            turn = asyncio.create_task(one.prompt(session, [["say", "begun"], ["wait_cancel"]]))
            await stream.until(lambda event: event.text == "begun")
            assert (await two.notify("session/cancel", {"sessionId": session})).status_code == 202
            assert (await turn)["result"]["stopReason"] == "cancelled"

    run(main())


def test_prompt_is_shown_to_other_watching_clients_but_not_its_sender(fleet: Fleet) -> None:
    async def main() -> None:
        async with watched(fleet) as (one, first, two, second):
            session = await new_session(one, fleet)
            await two.result("_sandboxagent/session/attach", {"sessionId": session})
            await one.prompt(session, "hello")
            mine, theirs = await first.turn_ended(), await second.turn_ended()
            kinds = [[each.update.get("sessionUpdate") for each in seen] for seen in (mine, theirs)]
            assert [each.count("user_message_chunk") for each in kinds] == [0, 1]
            page = await two.result("_sandboxagent/session/events", {"sessionId": session})
            assert not any("user_message_chunk" in str(event["envelope"]) for event in page["events"])

    run(main())


def test_async_response_comes_on_the_stream_of_another_gateway(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two:
            session = await new_session(one, fleet)
            two.id = one.id
            async with two.stream() as stream:
                body = {"jsonrpc": "2.0", "id": "later", "method": "session/prompt"}
                body["params"] = one.prompt_params(session, [["say", "said"]])
                response = await one.post(body, Prefer="respond-async", Idempotency_Key="k1")
                assert (response.status_code, response.headers["Preference-Applied"]) == (202, "respond-async")
                seen = await stream.until(lambda event: event.data.get("id") == "later")
                assert texts(seen) == "said"
                assert seen[-1].data["result"]["stopReason"] == "end_turn"
            # The same again, elsewhere: its outcome, and no second turn.
            again = await two.post(body, Idempotency_Key="k1")
            assert again.json()["result"]["stopReason"] == "end_turn"
            page = await one.result("_sandboxagent/session/events", {"sessionId": session})
            assert str(page["events"]).count("'said'") == 1
            other = body | {"params": one.prompt_params(session, "other")}
            assert (await two.post(other, Idempotency_Key="k1")).status_code == 409

    run(main())


def test_async_attach_tells_the_position_of_a_stream_at_another_gateway(fleet: Fleet) -> None:
    async def main() -> None:
        async with (
            Client(fleet.gateways[0]) as maker,
            Client(fleet.gateways[0]) as one,
            Client(fleet.gateways[1]) as two,
        ):
            session = await new_session(maker, fleet, node="n2")
            await maker.prompt(session, [["say", "before"]])
            two.id = one.id
            async with two.stream() as stream:

                async def ask(id: str, method: str) -> Json:
                    body = {"jsonrpc": "2.0", "id": id, "method": f"_sandboxagent/session/{method}"}
                    body["params"] = {"sessionId": session}
                    assert (await one.post(body, Prefer="respond-async")).status_code == 202
                    return (await stream.until(lambda event: event.data.get("id") == id))[-1].data["result"]

                async def history(position: int) -> list[str]:
                    asked = {"sessionId": session, "before": position + 1}
                    events = str((await two.result("_sandboxagent/session/events", asked))["events"])
                    return [text for text in ("before", "after") if f"'{text}'" in events]

                first = await ask("first", "attach")
                assert await history(first["position"]) == ["before"]
                await maker.prompt(session, [["say", "after"]])
                assert texts(await stream.turn_ended()).endswith("after")
                # Its stream has brought that already: pages end there.
                assert await history((await ask("again", "attach"))["position"]) == ["before", "after"]
                assert await ask("asked", "pending") == {"pending": []}
                assert await ask("left", "detach") == {}

    run(main())


def test_the_same_key_opens_one_session_whichever_gateways_and_nodes_there_are(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two:
            two.id = one.id
            body = {"jsonrpc": "2.0", "id": 1, "method": "session/new"}
            body["params"] = {"cwd": fleet.nodes[0].work, "mcpServers": []}
            for place in range(4):
                key = f"new-{place}"
                answers = await asyncio.gather(*(each.post(body, Idempotency_Key=key) for each in (one, two, one)))
                assert len({answer.json()["result"]["sessionId"] for answer in answers}) == 1

    run(main())


def test_a_second_stream_at_another_gateway_takes_over(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two:
            two.id = one.id
            async with one.stream() as first, two.stream():
                await first.ended()
                assert first.comments[-1] == "closed: another stream took over"
            assert (await two.close()).status_code == 204
            async with asyncio.timeout(BOUND):
                while (await list_sessions(one)).status_code != 404:  # noqa: ASYNC110 - of a process
                    await asyncio.sleep(0.05)

    run(main())


def test_an_id_that_is_guessed_opens_nothing(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two:
            assert one.id is not None
            tag = one.id.partition(".")[0]
            for guess in (tag, f"{tag}.", f"{tag}.wrong", "x", "g*.x", ".", f"{tag}.{'x' * 32}"):
                for client in (one, two):
                    client.id = guess
                    assert (await list_sessions(client)).status_code == 404

    run(main())
